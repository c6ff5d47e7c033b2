"""`splat train --quality`: steps and sizes that fit a time, corrections that photographs call for, and folders of runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import splat_py
from splat_py.commands import quality
from splat_py.commands.quality import StepCost, choose, exposure_spread, measure, sampled, shown_seconds
from splat_py.demo.scene import write_demo_scene
from splat_py.scene.data_options import DataOptions
from splat_py.train.config import TrainConfig
from tests.commands.program import done, refusal, splat
from tests.scene.captures import ring, write_colmap, write_image

# Seconds of a step on a slow processor: 50 ms for 256×256 pixels, and 1 ms for 1,000 Gaussians.
COST = StepCost(0.001, 0.05 / 256**2, 1e-6)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_scene(tmp_path_factory.mktemp("large") / "demo", views=4, size=256)


def chosen(
    data: Path, monkeypatch: pytest.MonkeyPatch, name: str = "draft", cost: StepCost = COST, **given: Any
) -> tuple[DataOptions, TrainConfig, list[str]]:
    """Choose for a device on which steps cost as given, with options that the command line names."""
    monkeypatch.setattr(quality, "measure", lambda *arguments: cost)
    options = {name: given[name] for name in ("downscale", "max_memory") if name in given}
    config = TrainConfig(**{name: value for name, value in given.items() if name not in options})
    device = splat_py.get_device()
    return choose(DataOptions(data, **options), config, frozenset(given), name, device, lambda *progress: None)


def test_a_run_costs_what_its_steps_do() -> None:
    flat = TrainConfig(steps=1000, budget=500)
    assert COST.seconds(flat, 256**2, 500, 1) == pytest.approx(1000 * (0.001 + 0.05 + 500e-6))
    # A first third on small photographs, and Gaussians that double in the first half.
    assert COST.seconds(replace(flat, steps=3000), 256**2, 500, 4) < 3 * COST.seconds(flat, 256**2, 500, 1)
    growing = COST.seconds(replace(flat, budget=1000), 0, 500, 1)
    assert growing == pytest.approx(1000 * (0.001 + (0.5 * 750 + 0.5 * 1000) * 1e-6), rel=0.01)


def test_faster_devices_and_longer_times_get_more(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, config, said = chosen(large, monkeypatch)
    assert 80 < COST.seconds(config, 256**2 / data.downscale**2, 2000, 1) < 200
    assert said[0].startswith(f"--quality draft: {config.steps:,} steps on photographs of ")
    assert config.filter_3d == config.antialiased == (data.downscale > 1) == any("--no-filter-3d" in line for line in said)
    better = chosen(large, monkeypatch, "good")
    assert better[0].downscale <= data.downscale and better[1].steps > config.steps
    slow = StepCost(*(100 * part for part in (COST.fixed, COST.pixel, COST.gaussian)))
    slower = chosen(large, monkeypatch, cost=slow)
    assert slower[0].downscale > 1 and slower[1].filter_3d and slower[1].steps < config.steps
    # A GPU: the whole run, on whole photographs.
    data, config, _ = chosen(large, monkeypatch, cost=StepCost(1e-4, 1e-9, 1e-9))
    assert (data.downscale, config.steps, config.filter_3d) == (1.0, 30_000, False)


def test_given_options_keep_their_values(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, config, said = chosen(large, monkeypatch, steps=70, budget=2500, filter_3d=False)
    assert (config.steps, config.budget, config.filter_3d) == (70, 2500, False) and "up to 2,500 Gaussians" in said[0]
    data, config, _ = chosen(large, monkeypatch, downscale=3.0)
    assert data.downscale == 3.0 and config.steps > 70 and config.filter_3d
    _, config, _ = chosen(large, monkeypatch, downscale=1.0, steps=29_000, filter_3d=True)
    assert config.steps == 29_000 and config.filter_3d


def test_memory_decides_too(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[int] = []

    def refuse_large(dataset: Any, *rest: Any) -> None:
        fits.append(dataset.views[0].camera.width)
        if fits[-1] > 100:
            raise splat_py.SplatError("too large")

    monkeypatch.setattr(quality, "plan_memory", refuse_large)
    data, _, _ = chosen(large, monkeypatch, cost=StepCost(1e-4, 1e-9, 1e-9))
    assert data.downscale == 3.0 and max(fits) == 256


def test_a_trial_times_real_steps(capture: Path) -> None:
    told: list[tuple[int, int]] = []
    dataset = DataOptions(capture).load(0)
    cost = measure(dataset, TrainConfig(filter_3d=True), splat_py.get_device(), lambda *progress: told.append(progress))
    parts = cost.fixed, cost.pixel, cost.gaussian
    assert min(parts) >= 0 < max(parts)
    assert told[-1][0] == told[-1][1] == len(told)


@pytest.mark.parametrize("spread", [0.0, 0.4])
def test_exposures_are_measured_from_the_colours_of_points(
    spread: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cameras, rng = ring(24), np.random.default_rng(0)
    points = np.array([1.0, 2.0, 3.0]) + rng.uniform(-0.3, 0.3, (60, 3))
    write_colmap(tmp_path, cameras, points=points)
    gains = rng.normal(0, spread, len(cameras))
    for camera, stops in zip(cameras, gains, strict=True):
        pixels = np.full((camera.height, camera.width, 3), 110 * 2 ** (stops / 2.2))
        write_image(tmp_path / "images" / camera.name, pixels.round().astype(np.uint8))
    monkeypatch.setattr(quality, "read_observations", lambda model: {camera.name: points for camera in cameras})
    assert exposure_spread(sampled(DataOptions(tmp_path, test_every=0))) == pytest.approx(spread, rel=0.35, abs=0.01)
    _, config, said = chosen(tmp_path, monkeypatch)
    assert config.exposure == (spread > 0) == any("--no-exposure" in line for line in said)
    assert not chosen(tmp_path, monkeypatch, exposure=False)[1].exposure
    assert not chosen(tmp_path, monkeypatch, ppisp=True)[1].exposure
    assert not chosen(tmp_path, monkeypatch, bilateral_grid=True)[1].exposure


def test_a_capture_that_does_not_say_what_photographs_show_has_no_known_exposures(capture: Path) -> None:
    assert exposure_spread(sampled(DataOptions(capture))) is None


def test_an_environment_is_learnt_where_surfaces_can_be_kept_opaque(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(4).uniform((0, 1, 2), (2, 3, 4), (60, 3))
    write_colmap(tmp_path, ring(), "SIMPLE_RADIAL", [52.0, 24, 16, 0.01], points=points)
    data, config, said = chosen(tmp_path, monkeypatch)
    assert config.environment and data.undistort and any("--environment --undistort, for" in line for line in said)
    for given in ({"environment": False}, {"splat": "BetaKernel"}, {"random_background": True}):
        assert not chosen(tmp_path, monkeypatch, **given)[1].environment
    write_colmap(tmp_path / "no points", ring())
    write_colmap(tmp_path / "fisheye", ring(), "OPENCV_FISHEYE", [40.0, 40, 24, 16, 0.01, 0, 0, 0], points=points)
    for name in ("no points", "fisheye"):
        data, config, _ = chosen(tmp_path / name, monkeypatch)
        assert not config.environment and not data.undistort


def test_durations() -> None:
    shown = [shown_seconds(seconds) for seconds in (42, 89, 130, 3700, 9000)]
    assert shown == ["42 seconds", "89 seconds", "2 minutes", "62 minutes", "2 hours"]


def test_photographs_are_all_that_a_run_needs(capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "measure", lambda *arguments: StepCost(0.1, 0, 0))
    monkeypatch.setitem(quality.SECONDS, "good", 0.8)
    name = capture.name
    printed = done("train", capture, cwd=tmp_path)
    assert "--quality good: 8 steps on photographs of 32×32, up to" in printed and "metrics are in runs/demo" in printed
    run = tmp_path / "runs" / name
    config = json.loads((run / "run.json").read_text())["config"]
    assert config["steps"] == 8 and (run / "scene.html").exists()
    # The next run has the next folder. Explicit steps choose nothing.
    printed = done("train", capture, "--steps", 3, cwd=tmp_path)
    assert "--quality" not in printed
    assert json.loads((tmp_path / "runs" / f"{name}-2" / "run.json").read_text())["config"]["steps"] == 3
    result = splat("train", capture, "--resume", cwd=tmp_path)
    assert result.returncode == 0 and f"runs/{name}-2 is finished" in result.stderr
    # The run itself knows its photographs, so resuming needs no folder.
    printed = done("train", "--resume", "--out", run, "--steps", 9, "--quality", "best", cwd=tmp_path)
    assert "runs/demo" in printed.replace(str(tmp_path), "") and "--quality best chooses options of new runs" in printed
    assert json.loads((run / "metrics.json").read_text())["steps"] == 9
    assert "name the run to resume with --out" in refusal("train", "--resume", cwd=tmp_path)
    assert "runs/other has no checkpoint to resume from; leave out --resume" in refusal(
        "train", "other", "--resume", cwd=tmp_path
    )
    assert "name a folder of photographs, a video or a capture" in refusal("train", "--out", "x", cwd=tmp_path)
