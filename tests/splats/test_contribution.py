"""Pruning by contribution, and the regularisers of opacities and scales."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py.demo.scene import write_demo_scene
from splat_py.errors import SplatError
from splat_py.scene import Dataset, load_dataset
from splat_py.scene.options import DataOptions
from splat_py.splats.config import TrainConfig
from splat_py.splats.contribution import contributions
from splat_py.splats.rendering import _rasterized, _Rendering
from splat_py.splats.run import train
from splat_py.splats.trainer import Trainer

CONFIG = TrainConfig(steps=20, sh_degree=0, init="random", init_num_pts=80, accumulate="pair", prune_contribution=6.0)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_scene(tmp_path_factory.mktemp("capture") / "demo", views=4, size=24)


@pytest.fixture(scope="module")
def dataset(capture: Path) -> Dataset:
    return load_dataset(capture, test_every=2)


def test_a_contribution_is_what_a_picture_shows_of_one_gaussian(dataset: Dataset) -> None:
    """White among black ones, one after another: no gradient is involved."""
    gaussians = Trainer(dataset, replace(CONFIG, init_num_pts=10)).gaussians()
    gaussians.logit_opacities += torch.linspace(-2, 5, 10)
    gaussians.log_scales += 1
    found = contributions(gaussians, dataset)
    expected = np.zeros(10)
    for view in dataset.train:
        for i in range(10):
            colors = torch.eye(10)[i][:, None].repeat(1, 3)
            how = _Rendering(False, dataset.near, None)
            image, *_ = _rasterized(gaussians, dataset.views[view].camera, (0.0, 0.0, 0.0), "RGB", how, colors)
            expected[i] = max(expected[i], float(image[..., 0].double().sum()))
    assert expected.max() > 20 > 1 > expected.min()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_what_contributes_little_is_removed_and_told(capture: Path, dataset: Dataset, tmp_path: Path) -> None:
    train(DataOptions(capture, test_every=2), CONFIG, tmp_path / "run")
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert [removal["step"] for removal in metrics["pruned"]] == [12, 16]
    first, second = metrics["pruned"]
    assert first["before"] > first["after"] >= second["before"] and second["after"] == metrics["gaussians"]


def test_resumed_runs_end_in_the_same_bits(dataset: Dataset) -> None:
    whole, begun = Trainer(dataset, CONFIG), Trainer(dataset, CONFIG)
    while begun.step < 13:
        begun.advance()
    begun = Trainer(dataset, resume=begun.checkpoint())
    for trainer in (whole, begun):
        trainer.fit()
    state = whole.checkpoint().state
    assert len(state["means"]) < 80 and whole.removals[1:] == begun.removals
    for name, values in begun.checkpoint().state.items():
        np.testing.assert_array_equal(values, state[name], err_msg=name)


def test_a_threshold_that_leaves_nothing_is_named(dataset: Dataset) -> None:
    with pytest.raises(SplatError, match="prune_contribution"):
        Trainer(dataset, replace(CONFIG, prune_contribution=1e6)).fit()


def test_regularizers_shrink_and_dim(dataset: Dataset) -> None:
    config = replace(CONFIG, prune_contribution=0.0, steps=40)
    plain, smaller = (Trainer(dataset, c).fit() for c in (config, replace(config, opacity_reg=5.0, scale_reg=5.0)))
    assert smaller.opacities.mean() < 0.8 * plain.opacities.mean()
    assert smaller.scales.mean() < 0.95 * plain.scales.mean()
