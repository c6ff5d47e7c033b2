"""Where a run begins that has no points: anywhere in the box that its cameras look at."""

from __future__ import annotations

import numpy as np
import pytest

from splat_py.demo.scene import write_demo_scene
from splat_py.scene import Dataset, Gaussians, load_dataset
from splat_py.splats.config import TrainConfig
from splat_py.splats.trainer import Trainer


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_dataset(write_demo_scene(tmp_path_factory.mktemp("capture") / "demo", views=3, size=16))


def start(dataset: Dataset, seed: int) -> Gaussians:
    return Trainer(dataset, TrainConfig(init="random", seed=seed)).gaussians()


def test_random_points_fill_the_box_and_follow_the_seed(dataset: Dataset) -> None:
    gaussians = start(dataset, 3)
    means = gaussians.means.numpy()
    low, high = dataset.bounds
    assert (means >= low - 1e-5).all() and (means <= high + 1e-5).all()
    np.testing.assert_array_less(0.95 * (high - low), means.max(0) - means.min(0))
    colors = gaussians.sh[:, 0].numpy()
    assert colors.std() > 0.5, "colours are random too"
    again, other = start(dataset, 3), start(dataset, 4)
    assert np.array_equal(again.means, means) and np.array_equal(again.sh[:, 0], colors)
    assert not np.array_equal(other.means, means)
