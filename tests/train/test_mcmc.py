"""Markov chain Monte Carlo on the device against the reference on NumPy arrays, and against its purpose."""

from dataclasses import replace

import numpy as np
import pytest

from splat_py.fit.steps import Use
from splat_py.gpu.device import get_device
from splat_py.train.config import TrainConfig
from splat_py.train.density import record_noise, record_prior, relocate_and_grow
from splat_py.train.parameters import Parameters
from tests.reference import mcmc as reference
from tests.train.refinement import KINDS, Arrays, assert_states, in_double, key_of, state_of

CONFIG = TrainConfig(strategy="mcmc", seed=3)
STEP, SCENE_SCALE = 499, 7.0
COUNT = 700


def relocated(state: Arrays, config: TrainConfig = CONFIG) -> Arrays:
    return relocate_and_grow(Parameters(get_device(), state), config, STEP).state()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [1_000_000, COUNT + 11, COUNT, 10])
def test_relocation_and_growth(most: int, kind: str) -> None:
    state, config = state_of(COUNT, kind), replace(CONFIG, max_gaussians=most)
    moved = reference.relocate(in_double(state), config.prune_opacity, key_of(CONFIG, STEP, Use.RELOCATION))
    wanted = reference.grow(moved, config.prune_opacity, most, key_of(CONFIG, STEP, Use.GROWTH))
    actual = relocated(state, config)
    assert_states(actual, wanted)
    assert len(actual["means"]) == {10: COUNT, 1_000_000: 735}.get(most, most)
    assert (moved["means"] != state["means"]).any(axis=1).sum() > COUNT // 8


def test_none_is_dead_and_there_is_no_more_to_come() -> None:
    state = state_of(COUNT)
    state["logit_opacities"][:] = np.abs(state["logit_opacities"])
    assert_states(relocated(state, replace(CONFIG, max_gaussians=COUNT)), state, atol=0)


def test_draws_follow_the_opacities() -> None:
    """60,000 dead ones move to seven others, one of them nearly dead, as often as the opacities demand."""
    opacities = np.array([0.0051, 0.02, 0.1, 0.3, 0.5, 0.9, 0.999])
    count = 60_000
    state = {name: np.repeat(values[:1], count + 7, axis=0) for name, values in state_of(1).items()}
    state["means"][:, 0] = np.arange(count + 7)
    state["logit_opacities"][:] = -9
    state["logit_opacities"][1000:1007] = np.log(opacities / (1 - opacities))
    means = relocated(state, replace(CONFIG, max_gaussians=10))["means"][:, 0]
    came = np.bincount(means.astype(int) - 1000, minlength=7)
    assert len(came) == 7
    wanted = count * opacities / opacities.sum()
    # χ² with six degrees of freedom, at one in a thousand.
    assert ((came - 1 - wanted) ** 2 / wanted).sum() < 22.5


def test_pictures_stay() -> None:
    """Many dead ones become copies of one: its opacity is that of all of them blended."""
    state = {name: np.repeat(values[:1], 50, axis=0) for name, values in state_of(1).items()}
    state["logit_opacities"][:] = -9
    state["logit_opacities"][0] = 2
    after = relocated(state, replace(CONFIG, max_gaussians=10))
    opacities = reference.sigmoid(after["logit_opacities"].astype(float))
    assert 1 - np.prod(1 - opacities) == pytest.approx(reference.sigmoid(np.array(2.0)), rel=1e-5)


@pytest.mark.parametrize("counts", [True, False], ids=["a step that counts", "one to be repeated"])
def test_noise(counts: bool) -> None:
    state = state_of(COUNT)
    state["logit_opacities"][:50] = np.linspace(-6.5, -4, 50)
    state["log_scales"] += 1.5
    status = get_device().memory.array(np.array([0 if counts else 9, 0, 0], np.uint32))
    parameters = Parameters(get_device(), state)
    with get_device().recording() as recorder:
        record_noise(recorder, parameters, CONFIG, STEP, SCENE_SCALE, status)
    scale = 5e5 * CONFIG.means_lr_at(STEP, SCENE_SCALE)
    added = reference.noise(in_double(state), scale if counts else 0, key_of(CONFIG, STEP, Use.NOISE))
    assert (np.abs(added).max() > 1) == counts
    assert_states(parameters.state(), {**state, "means": state["means"] + added}, atol=2e-5 * max(np.abs(added).max(), 0.1))


def test_prior() -> None:
    state = state_of(COUNT)
    rng = np.random.default_rng(1)
    v_logits, v_scales = rng.normal(size=COUNT) * 1e-6, rng.normal(size=(COUNT, 3)) * 1e-6
    parameters = Parameters(get_device(), state)
    parameters.v_gaussians.opacities.write(v_logits)
    parameters.v_gaussians.scales.write(v_scales)
    with get_device().recording() as recorder:
        record_prior(recorder, parameters, 0.01, 0.02)
    for_logits, for_scales = reference.prior_gradient(in_double(state), 0.01, 0.02)
    np.testing.assert_allclose(parameters.v_gaussians.opacities.numpy(), v_logits + for_logits, rtol=1e-5, atol=1e-11)
    np.testing.assert_allclose(parameters.v_gaussians.scales.numpy(), v_scales + for_scales, rtol=1e-5, atol=1e-11)
    assert_states(parameters.state(), state, atol=0)
