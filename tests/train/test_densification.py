"""Adaptive density control on the device against the reference on NumPy arrays, and the order of rows in space."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import Dataset
from splat_py.fit.steps import MOMENTS, Use
from splat_py.gpu.device import get_device
from splat_py.scene.gaussians import Gaussians
from splat_py.train.config import TrainConfig
from splat_py.train.density import check_parameters, densify, in_spatial_order, reset_opacities
from splat_py.train.parameters import GROUPS, Parameters
from splat_py.train.trainer import Trainer
from tests.reference import densification as reference
from tests.reference.morton import morton_codes
from tests.refusals import refused
from tests.train.refinement import KINDS, Arrays, assert_states, in_double, key_of, state_of

CAPTURE = 2, 32
CONFIG = TrainConfig(seed=3)
STEP, SCENE_SCALE = 499, 7.0
COUNT = 700


def expected(state: Arrays, config: TrainConfig, step: int) -> Arrays:
    return reference.densify(
        in_double(state),
        grow_grad=config.grow_grad2d,
        most=max(config.max_gaussians - len(state["means"]), 0),
        split_scale=config.split_scale * SCENE_SCALE,
        prune_opacity=config.prune_opacity,
        prune_scale=config.prune_scale * SCENE_SCALE if step >= config.opacity_reset_every else np.inf,
        key=key_of(config, step, Use.SPLIT),
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
    assert np.isin(actual["quats"][:, 0], state["quats"][:, 0]).all() and len(actual["means"]) != COUNT
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
    state = state_of(COUNT)
    grown = densified(state, replace(CONFIG, max_gaussians=10))
    assert len(grown["means"]) == (state["logit_opacities"] > -5.3).sum()


def test_halves_are_drawn_from_the_gaussian() -> None:
    """20,000 halves of one Gaussian: their mean and covariance; another step or seed draws others."""
    state = {name: np.repeat(values[:1], 10_000, axis=0) for name, values in state_of(1).items()}
    state |= {"gradient_norms": np.ones(10_000, np.float32), "times_seen": np.ones(10_000, np.float32)}
    state["log_scales"][:] = np.log([0.5, 0.2, 0.8])
    state["logit_opacities"][:] = 1
    rotation = reference.Rotation.from_quat(state["quats"][0].astype(float), scalar_first=True).as_matrix()
    means = densified(state)["means"].astype(float)
    assert len(means) == 20_000
    local = (means - state["means"][0]) @ rotation / [0.5, 0.2, 0.8]
    np.testing.assert_allclose(local.mean(axis=0), 0, atol=4 / np.sqrt(20_000))
    np.testing.assert_allclose(np.cov(local.T), np.eye(3), atol=6 / np.sqrt(20_000))
    others = [densified(state, replace(CONFIG, seed=4))["means"], densified(state, step=STEP + 100)["means"]]
    assert not any(np.isclose(means, other).all(axis=1).any() for other in others)
    np.testing.assert_array_equal(densified(state)["means"], means.astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_reset_opacities(kind: str) -> None:
    state = state_of(COUNT, kind)
    parameters = Parameters(get_device(), state)
    reset_opacities(parameters, CONFIG)
    assert_states(parameters.state(), reference.reset_opacities(in_double(state), CONFIG.prune_opacity))


@pytest.mark.parametrize("name", ["means", "weights.v", "max_radii", "sh.m"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_parameters_that_are_not_finite(name: str, value: float) -> None:
    state = state_of(37, "harmonics" if name == "sh.m" else "everything")
    check_parameters(Parameters(get_device(), state), 8)
    state[name].flat[-1] = value
    refused(f"stopped after step 8: NaN or infinity in {name};", check_parameters, Parameters(get_device(), state), 8)


def test_gradients_are_counted_in_halves_of_the_image(dataset: Dataset) -> None:
    """Photographs are twice as wide as high: x times half the width, y times half the height."""
    photographs = [dataset.image(view)[8:24] for view in range(2)]
    views = []
    for view in dataset.views:
        K = view.camera.K - np.array([[0, 0, 0], [0, 0, 8], [0, 0, 0]])
        views.append(replace(view, camera=replace(view.camera, height=16, K=K)))
    images: Any = photographs
    trainer = Trainer(replace(dataset, views=views, _images=images), TrainConfig(steps=100, init="random", init_num_pts=90))
    trainer.advance()
    state = trainer.checkpoint().state
    v_means2d = trainer._gradients.v_splats.numpy()[0, :, :2].astype(float)
    radii = trainer._gradients.splats.radii.numpy()[0]
    seen = radii[:, 0] > 0
    assert seen.sum() > 20
    norms = seen * np.hypot(v_means2d[:, 0] * 16, v_means2d[:, 1] * 8)
    assert np.abs(v_means2d[seen]).sum(0).min() > 0.1 * np.abs(v_means2d[seen]).sum(0).max()
    np.testing.assert_allclose(state["gradient_norms"], norms, rtol=1e-5, atol=1e-12)
    np.testing.assert_array_equal(state["times_seen"], seen)
    np.testing.assert_allclose(state["max_radii"], seen * radii.max(1) / 32, rtol=1e-6)


def test_rows_are_sorted_by_morton_codes_with_all_they_have() -> None:
    rng = np.random.default_rng(3)
    means = rng.uniform(-3, 3, (700, 3)).astype(np.float32)
    means[5] = means[9]  # rows with equal codes keep their order
    bounds = np.array([[-2.0, -1.5, -1.0], [1.0, 2.5, 1.0]])
    fresh = Parameters.fresh(get_device(), Gaussians.from_points(means, rng.uniform(0, 1, means.shape), sh_degree=1))
    before = fresh.state() | {f"{name}.{m}": rng.normal(size=fresh.state()[name].shape).astype(np.float32)
                              for name in GROUPS for m in MOMENTS}  # fmt: skip
    after = in_spatial_order(Parameters(get_device(), before), bounds).state()

    codes = morton_codes(means, bounds)
    expected = np.argsort(codes, kind="stable")
    for name in GROUPS:
        for array in (name, f"{name}.m", f"{name}.v"):
            np.testing.assert_array_equal(after[array], before[array][expected])
    assert torch.unique(torch.tensor(codes)).numel() > 600
