"""Whole runs with each strategy: resumed, repeated for lists that did not fit, and with other types of splats and colours."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splat_py import Dataset
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import evaluate
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.train.refinement import assert_same_bits

CAPTURE = 4, 24
CONFIG = TrainConfig(
    steps=30,
    init="random",
    init_num_pts=400,
    densify_every=5,
    densify_start=1,
    opacity_reset_every=10,
    sh_degree=1,
    accumulate="pair",
    max_gaussians=430,
)
# Opacities fall fast enough for some Gaussians to be moved.
MCMC = replace(CONFIG, strategy="mcmc", opacities_lr=0.5)
TYPES: dict[str, dict[str, Any]] = {
    "Gaussians": {},
    "betas of lobes": {"splat": "BetaKernel", "color": "SphericalGaussians", "color_features": 9},
}


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("config", [CONFIG, MCMC], ids=lambda config: config.strategy)
def test_resumed_and_repeated_runs_are_the_same(
    config: TrainConfig, types: dict[str, Any], dataset: Dataset, tmp_path: Path
) -> None:
    """Equal to the bit. Lists that are too small at first do not add noise twice."""
    config = replace(config, **types)
    first = Trainer(dataset, config)
    begun = first.checkpoint()
    while first.step < 12:
        first.advance()
    first.save_checkpoint(tmp_path / "c.safetensors")
    first.fit()
    state = first.checkpoint().state
    assert len(state["means"]) == 430 if config.strategy == "mcmc" else len(state["means"]) != 400
    repeated = Trainer(dataset, resume=replace(begun, capacity=3))
    submissions = []
    submit = repeated._submit
    repeated._submit = lambda step: submissions.append(step) or submit(step)  # type: ignore[method-assign,func-returns-value]
    for other in (Trainer(dataset, resume=Checkpoint.load(tmp_path / "c.safetensors")), repeated):
        other.fit()
        assert_same_bits(other.checkpoint().state, state)
    assert len(submissions) > config.steps


def test_mcmc_moves_what_has_faded_unless_all_have(dataset: Dataset) -> None:
    trainer = Trainer(dataset, replace(MCMC, steps=60, max_gaussians=400))
    while trainer.step < 24:
        trainer.advance()
    before = trainer.gaussians()
    faded = (before.logit_opacities.sigmoid() <= 0.005).numpy()
    trainer.advance()
    after = trainer.gaussians()
    assert faded.sum() > 5 and len(after) == 400
    assert (after.logit_opacities.sigmoid() > 0.004).all()
    distances = np.linalg.norm(after.means.numpy()[:, None] - before.means.numpy(), axis=-1)
    assert (distances.argmin(axis=1)[faded] != np.flatnonzero(faded)).mean() > 0.9
    fading = Trainer(dataset, replace(MCMC, prune_opacity=0.4, opacities_lr=0.0))
    refused(r"no Gaussian is left after step 5: all have faded to prune_opacity \(0\.4\)", fading.fit)


def test_mcmc_learns(dataset: Dataset) -> None:
    trainer = Trainer(dataset, replace(MCMC, steps=150, opacities_lr=0.05, max_gaussians=600))
    scores = [evaluate(gaussians, dataset).psnr for gaussians in (trainer.gaussians(), trainer.fit())]
    assert trainer.parameters.count == 600
    assert scores[1] > scores[0] + 4, scores


def test_a_strategy_in_a_configuration() -> None:
    assert TrainConfig.from_dict({}).strategy == "default"
    refused("strategy", TrainConfig.from_dict, {"strategy": "classic"})
    mcmc = TrainConfig(strategy="mcmc")
    assert mcmc.densifies_at(24_899) and not mcmc.densifies_at(25_099) and not mcmc.resets_opacities_at(2999)
    assert not TrainConfig().densifies_at(15_099) and TrainConfig().resets_opacities_at(2999)
