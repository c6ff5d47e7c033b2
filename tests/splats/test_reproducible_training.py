"""Training with gradients that add up in a fixed order, and with lists that come in segments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splat_py.demo.scene import write_demo_scene
from splat_py.gpu.device import get_device
from splat_py.scene import Dataset, load_dataset
from splat_py.splats.config import TrainConfig
from splat_py.splats.trainer import Trainer

# Densifies twice.
CONFIG = TrainConfig(steps=120, densify_every=20, densify_start=1, init_num_pts=2000, init="random")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_dataset(write_demo_scene(tmp_path_factory.mktemp("capture") / "demo", views=8, size=48))


def checkpoint_bytes(dataset: Dataset, config: TrainConfig, path: Path) -> bytes:
    Trainer(dataset, config).fit(checkpoint=path)
    return path.read_bytes()


def test_two_runs_with_rows_for_intersections_leave_the_same_bytes(dataset: Dataset, tmp_path: Path) -> None:
    config = replace(CONFIG, accumulate="pair")
    first, second = (checkpoint_bytes(dataset, config, tmp_path / f"{i}.safetensors") for i in range(2))
    assert first == second
    # Atomic additions from two cores come in any order: without rows for intersections the runs differ.
    third, fourth = (checkpoint_bytes(dataset, CONFIG, tmp_path / f"{i}.safetensors") for i in range(2, 4))
    assert third != fourth or not get_device().software


def test_a_step_that_needs_more_segments_is_repeated(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list is found to be too long only when the step has run: the parameters are those of lists in one piece."""
    config = replace(CONFIG, steps=12, accumulate="pair")
    device = get_device()
    results = []
    for length in (None, 64):
        monkeypatch.setattr(device, "tuning", replace(device.tuning, segment=length))
        trainer = Trainer(dataset, config)
        trainer.fit()
        assert trainer._gradients.segments == 1 if length is None else trainer._gradients.segments > 1
        results.append(trainer.checkpoint().state)
    for name, values in results[0].items():
        np.testing.assert_array_equal(values, results[1][name], err_msg=name)
