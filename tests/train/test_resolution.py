"""Small photographs first."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splat_py import Dataset, load_dataset
from splat_py.gpu.device import get_device
from splat_py.scene.camera import Camera
from splat_py.scene.images import averaged
from splat_py.train import benchmark
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import StepReport, Trainer
from splat_py.train.views import largest_divisor
from tests.train.refinement import assert_same_bits

# The shorter side is just long enough to be halved.
CAPTURE = 6, 128
CAMERA = Camera(np.eye(4), np.array([[10.0, 0, 6], [0, 10, 4], [0, 0, 1]]), 12, 8, "view")


def test_sizes_double_at_equal_intervals(dataset: Dataset, tmp_path: Path) -> None:
    config = TrainConfig(steps=1000)
    assert config.coarse_end == 300
    assert [config.divisor_at(step, 4) for step in (0, 149, 150, 299, 300, 999)] == [4, 4, 2, 2, 1, 1]
    assert [config.divisor_at(step, 2) for step in (0, 299, 300)] == [2, 2, 1]
    assert {config.divisor_at(step, 1) for step in range(1000)} == {1}
    assert replace(config, coarse_stop=0).divisor_at(0, 4) == 1
    assert TrainConfig().coarse_end == 3000
    assert largest_divisor(dataset) == 2
    assert largest_divisor(load_dataset(dataset.root, downscale=1.1)) == 1
    views = [replace(view, camera=view.camera.scaled(8)) for view in dataset.views]
    assert largest_divisor(replace(dataset, views=views)) == 4


def test_a_coarse_photograph_averages_areas_and_counts_where_all_of_it_does() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (8, 12, 3)).astype(np.uint8)
    ignored = np.zeros((8, 12), bool)
    ignored[5, 7] = True
    coarse = averaged(rgb, ignored, CAMERA.scaled(0.5))
    assert np.abs(coarse[..., :3] - rgb.reshape(4, 2, 6, 2, 3).mean((1, 3))).max() <= 0.5
    expected = np.full((4, 6), 255)
    expected[2, 3] = 0
    np.testing.assert_array_equal(coarse[..., 3], expected)
    np.testing.assert_array_equal(averaged(rgb, ignored, CAMERA), np.dstack([rgb, np.where(ignored, 0, 255)]))


def test_a_run_resumed_before_photographs_grow_is_the_uninterrupted_one(dataset: Dataset, tmp_path: Path) -> None:
    config = TrainConfig(steps=60, accumulate="pair", sh_degree=1)
    divisors: list[int] = []

    def note(report: StepReport) -> None:
        divisors.append(report.divisor)

    straight = Trainer(dataset, config)
    straight.fit(note)
    assert divisors == [2] * 18 + [1] * 42
    assert {width for width, _ in straight._gradients.targets} == {128}, "arrays of small renders are kept"

    broken = Trainer(dataset, config)
    while broken.step < 11:
        broken.advance()
    assert {width for width, _ in broken._gradients.targets} == {64}
    file = tmp_path / "checkpoint.safetensors"
    broken.save_checkpoint(file)
    resumed = Trainer(dataset, resume=Checkpoint.load(file))
    resumed.fit()
    assert resumed.parameters.count == straight.parameters.count
    assert_same_bits(resumed.checkpoint().state, straight.checkpoint().state)


def test_benchmarks_time_whole_photographs(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers: list[Trainer] = []

    class Remembered(Trainer):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            trainers.append(self)

    monkeypatch.setattr(benchmark, "Trainer", Remembered)
    name, _ = benchmark.step_times(get_device(), capture, 1, count=50, repeats=1)
    (trainer,) = trainers
    assert "128×128" in name and largest_divisor(trainer.dataset) == 2
    assert {target.image.colors.shape for target in trainer._gradients.targets.values()} == {(1, 128, 128, 3)}
