"""Pruning by contribution and by information, and the regularisers of opacities and scales."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from splat_py import Dataset
from splat_py.render.views import rasterized, render_tensor
from splat_py.scene.data_options import DataOptions
from splat_py.train.config import TrainConfig
from splat_py.train.density import contributions, prune
from splat_py.train.run import train
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.train.refinement import assert_resumes

CAPTURE = 4, 24
LOADED = {"test_every": 2, "test_split": "first"}
CONFIG = TrainConfig(steps=20, sh_degree=0, init="random", init_num_pts=80, accumulate="pair", prune_contribution=6.0)


def test_a_contribution_is_what_a_picture_shows_of_one_gaussian(dataset: Dataset) -> None:
    """A picture with a signal of one Gaussian, for each in turn, without gradients."""
    gaussians = Trainer(dataset, replace(CONFIG, init_num_pts=10)).gaussians()
    gaussians.logit_opacities += torch.linspace(-2, 5, 10)
    gaussians.log_scales += 1
    found = contributions(gaussians, dataset)
    expected = np.zeros(10)
    for view in dataset.train:
        for i in range(10):
            one = torch.eye(10)[i][:, None]
            _, _, meta = rasterized(gaussians, dataset.views[view].camera, extra_signals=one, near=dataset.near)
            expected[i] = max(expected[i], float(meta["render_extra_signals"].double().sum()))
    assert expected.max() > 20 > 1 > expected.min()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_what_contributes_little_is_removed_and_told(capture: Path, dataset: Dataset, tmp_path: Path) -> None:
    train(DataOptions(capture, test_every=2), CONFIG, tmp_path / "run")
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert [removal["step"] for removal in metrics["pruned"]] == [12, 16]
    first, second = metrics["pruned"]
    assert first["before"] > first["after"] >= second["before"] and second["after"] == metrics["gaussians"]


def test_pictures_miss_what_holds_least_information_least(dataset: Dataset) -> None:
    """Less than as many Gaussians of least contribution or opacity. Some are nearly opaque."""
    config = replace(CONFIG, prune_contribution=0.0, prune_information=0.7)
    trainer = Trainer(dataset, config)
    gaussians = trainer.gaussians()
    gaussians.logit_opacities += torch.linspace(-2, 8, 80).roll(31)
    left, removal = prune(trainer.parameters, gaussians, dataset, config, 11)
    assert (removal.before, removal.after) == (80, 24)
    contributed = torch.from_numpy(contributions(gaussians, dataset))
    kept = [torch.isin(gaussians.means[:, 0], torch.from_numpy(left.state()["means"][:, 0]))]
    kept += [values >= values.sort().values[-24] for values in (contributed, gaussians.logit_opacities)]

    def error(those: torch.Tensor) -> float:
        rest = replace(gaussians, logit_opacities=gaussians.logit_opacities.where(those, torch.tensor(-20.0)))
        cameras = [dataset.views[view].camera for view in dataset.train]
        return sum(float((render_tensor(rest, c) - render_tensor(gaussians, c)).square().sum()) for c in cameras)

    assert [int(those.sum()) for those in kept] == [24, 24, 24]
    by_information, *others = map(error, kept)
    assert by_information < 0.8 * min(others), (by_information, others)


def test_mcmc_would_add_again_what_was_pruned() -> None:
    mcmc = TrainConfig(strategy="mcmc", prune_information=0.5)
    refused("prune_information and strategy mcmc exclude each other", mcmc.validate)


def test_resumed_runs_end_in_the_same_bits(dataset: Dataset, tmp_path: Path) -> None:
    whole, begun = assert_resumes(dataset, CONFIG, tmp_path, 13)
    assert whole.parameters.count < 80 and whole.removals[1:] == begun.removals


def test_regularizers_shrink_and_dim_and_thresholds_are_named(dataset: Dataset) -> None:
    config = replace(CONFIG, prune_contribution=0.0, steps=40)
    plain, smaller = (Trainer(dataset, c).fit() for c in (config, replace(config, opacity_reg=5.0, scale_reg=5.0)))
    assert smaller.opacities.mean() < 0.8 * plain.opacities.mean()
    assert smaller.scales.mean() < 0.95 * plain.scales.mean()
    refused("prune_contribution", Trainer(dataset, replace(CONFIG, prune_contribution=1e6)).fit)
