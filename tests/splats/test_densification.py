"""Adaptive density control on the device against the same on NumPy arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from splat_py.errors import SplatError
from splat_py.fit.random_keys import Use, random_key
from splat_py.gpu.device import get_device
from splat_py.splats.config import TrainConfig
from splat_py.splats.densification import densify, reset_opacities
from splat_py.splats.gaussian_rows import check_parameters
from splat_py.splats.parameters import Parameters
from tests.reference import densification as reference
from tests.splats.refinement import KINDS, Arrays, assert_states, in_double, state_of

CONFIG = TrainConfig(seed=3)
STEP, SCENE_SCALE = 499, 7.0
COUNT = 700


def expected(state: Arrays, config: TrainConfig, step: int) -> Arrays:
    key = random_key(config.seed, step, Use.SPLIT)
    return reference.densify(
        in_double(state),
        grow_grad=config.grow_grad2d,
        most=max(config.max_gaussians - len(state["means"]), 0),
        split_scale=config.split_scale * SCENE_SCALE,
        prune_opacity=config.prune_opacity,
        prune_scale=config.prune_scale * SCENE_SCALE if step >= config.opacity_reset_every else np.inf,
        key=(key["key0"], key["key1"]),
    )


def densified(state: Arrays, config: TrainConfig = CONFIG, step: int = STEP) -> Arrays:
    return densify(Parameters(get_device(), state), config, step, SCENE_SCALE).state()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({}, STEP),
        ({}, 3199),
        ({"max_gaussians": COUNT + 40}, STEP),
        ({"max_gaussians": COUNT - 100}, STEP),
        ({"grow_grad2d": 1.0}, STEP),
        ({"split_scale": 0.0, "prune_scale": 0.02, "opacity_reset_every": 100}, STEP),
        ({"split_scale": 1e3, "prune_opacity": 0.3}, STEP),
    ],
    ids=str,
)
def test_against_the_reference(change: dict[str, Any], step: int, kind: str) -> None:
    config, state = replace(CONFIG, **change), state_of(COUNT, kind)
    before = {name: values.copy() for name, values in state.items()}
    actual, wanted = densified(state, config, step), expected(state, config, step)
    assert_states(actual, wanted)
    # Rows that stay are copies.
    stay = np.isin(actual["quats"][:, 0], state["quats"][:, 0])
    assert stay.all() and len(actual["means"]) != COUNT
    assert all(np.array_equal(state[name], values) for name, values in before.items())


def test_of_equal_gradients_the_first_grow() -> None:
    state = state_of(300)
    state["times_seen"][:] = 2
    state["gradient_norms"][:] = np.repeat([1e-3, 2e-3, 2e-3], 100)
    state["logit_opacities"][:] = 0
    config = replace(CONFIG, max_gaussians=450, split_scale=1e3)
    actual = densified(state, config)
    assert_states(actual, expected(state, config, STEP))
    np.testing.assert_array_equal(actual["quats"][300:], state["quats"][100:250])


def test_halves_are_drawn_from_the_gaussian() -> None:
    """20,000 of one: their mean and covariance; and those of another step or seed are others."""
    state = {name: np.repeat(values[:1], 10_000, axis=0) for name, values in state_of(1).items()}
    state |= {"gradient_norms": np.ones(10_000, np.float32), "times_seen": np.ones(10_000, np.float32)}
    state["log_scales"][:] = np.log([0.5, 0.2, 0.8])
    state["logit_opacities"][:] = 1
    quat = state["quats"][0].astype(float)
    rotation = reference.Rotation.from_quat(quat, scalar_first=True).as_matrix()
    means = densified(state)["means"].astype(float)
    assert len(means) == 20_000
    local = (means - state["means"][0]) @ rotation / [0.5, 0.2, 0.8]
    np.testing.assert_allclose(local.mean(axis=0), 0, atol=4 / np.sqrt(20_000))
    np.testing.assert_allclose(np.cov(local.T), np.eye(3), atol=6 / np.sqrt(20_000))
    others = [densified(state, replace(CONFIG, seed=4))["means"], densified(state, step=STEP + 100)["means"]]
    assert not any(np.isclose(means, other).all(axis=1).any() for other in others)
    np.testing.assert_array_equal(densified(state)["means"], means.astype(np.float32))


def test_nothing_grows_where_there_are_too_many_already() -> None:
    state = state_of(COUNT)
    grown = densified(state, replace(CONFIG, max_gaussians=10))
    assert len(grown["means"]) == (state["logit_opacities"] > -5.3).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_reset_opacities(kind: str) -> None:
    state = state_of(COUNT, kind)
    parameters = Parameters(get_device(), state)
    reset_opacities(parameters, CONFIG)
    assert_states(parameters.state(), reference.reset_opacities(in_double(state), CONFIG.prune_opacity))


def test_none_is_left() -> None:
    state = state_of(20)
    state["logit_opacities"][:] = -9
    with pytest.raises(SplatError, match=r"^no Gaussian is left after step 500: all have been pruned by prune_opacity"):
        densified(state)


@pytest.mark.parametrize("name", ["means", "weights.v", "max_radii", "sh.m"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_parameters_that_are_not_finite(name: str, value: float) -> None:
    state = state_of(37, "harmonics" if name == "sh.m" else "everything")
    check_parameters(Parameters(get_device(), state), 8)
    state[name].flat[-1] = value
    with pytest.raises(SplatError, match=f"stopped after step 8: NaN or infinity in {name};"):
        check_parameters(Parameters(get_device(), state), 8)
