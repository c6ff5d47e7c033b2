"""PSNR over time: measured, summarised and drawn."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from splat_py.commands.devices import draw_curves
from splat_py.scene.data_options import DataOptions
from splat_py.train.benchmark import Plan, Point, captures, measure, summary
from splat_py.train.config import TrainConfig
from tests.refusals import refused

CAPTURE = 9, 32


def test_a_run_is_measured_in_a_process_of_its_own(capture: Path) -> None:
    points = measure(Plan(DataOptions(capture, test_every=5), TrainConfig(steps=30, sh_degree=0), points=2))
    assert [point.step for point in points] == [15, 30]
    first, last = points
    # Importing alone takes longer than this.
    assert 0.2 < first.processor_seconds < last.processor_seconds
    assert 0.2 < first.seconds < last.seconds
    assert len(last.views) == 2 and last.psnr == pytest.approx(np.mean(list(last.views.values())))
    assert last.psnr > 10 and last.gaussians > 1000
    refused("holds out no view", measure, Plan(DataOptions(capture, test_every=0), TrainConfig(steps=1)))


def test_the_last_step_is_always_evaluated() -> None:
    assert Plan(DataOptions(Path()), TrainConfig(steps=7), points=3).steps == [2, 5, 7]
    assert Plan(DataOptions(Path()), TrainConfig(steps=2), points=8).steps == [1, 2]
    first, last = summary(runs(20.0, 22.0))
    assert (first["step"], last["step"], last["psnr"], last["processor_seconds"]) == (5, 10, 21.0, 4.0)
    assert last["psnr_spread"] == pytest.approx(np.sqrt(2))
    assert summary(runs(20.0))[1]["psnr_spread"] == 0


def runs(*psnr: float) -> list[list[Point]]:
    return [[Point(5, 10, 1.0, 2.0, value - 1, 0.5, {}), Point(10, 20, 3.0, 4.0, value, 0.5, {})] for value in psnr]


def test_curves_are_drawn(tmp_path: Path) -> None:
    found = {"steps": 10, "mean": summary(runs(20.0, 22.0))}
    draw_curves(tmp_path / "plot.svg", {"<fox> ÷8": found, "demo": found})
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    assert len(root.findall("{*}polyline")) == 2
    assert "<fox> ÷8, 10 steps" in [text.text for text in root.findall("{*}text")]


def test_captures_at_several_sizes_and_those_with_a_protocol(capture: Path, tmp_path: Path) -> None:
    found = [(name, data.downscale, data.test_split) for name, data in captures([capture], [8, 1])]
    assert found == [("demo ÷8", 8, "first"), ("demo", 1, "first")]
    synthetic = tmp_path / "lego"
    synthetic.mkdir()
    (synthetic / "transforms_train.json").touch()
    assert [(name, data.downscale) for name, data in captures([synthetic], [8, 4])] == [("lego", 1)]
