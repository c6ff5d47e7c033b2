"""slang/splat/spherical_gaussians.slang."""

from __future__ import annotations

import numpy as np
import pytest

from splat_py.shaders import color, spherical_gaussians
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 50
RNG = np.random.default_rng(42)
DIRECTIONS = RNG.normal(size=(COUNT, 3))
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)
AXES = RNG.normal(size=(COUNT, 3)) * np.exp(RNG.uniform(-2, 3, size=(COUNT, 1)))


def lobe(directions: Array, axes: Array) -> Array:
    return np.exp((axes * directions).sum(-1) - np.sqrt((axes * axes).sum(-1)))


def colors_of(directions: Array, features: Array) -> Array:
    total = features[:, 0] + 0.5
    for k in range(1, features.shape[1] - 1, 2):
        total = total + features[:, k + 1] * lobe(directions, features[:, k])[:, None]
    return np.where(total.real > 0, total, 0)


def test_a_lobe() -> None:
    v = RNG.normal(size=COUNT)
    assert_value(spherical_gaussians.sphericalGaussian(DIRECTIONS, AXES), lobe(DIRECTIONS, AXES))
    expected = pullback(lobe, v, DIRECTIONS, AXES)
    assert_gradients(spherical_gaussians.sphericalGaussian, v, [DIRECTIONS, AXES], expected, atol=1e-5)


def test_it_is_one_along_its_axis() -> None:
    along = DIRECTIONS * np.linalg.norm(AXES, axis=1, keepdims=True)
    np.testing.assert_allclose(spherical_gaussians.sphericalGaussian(DIRECTIONS, along), 1, atol=1e-5)


def test_no_axis_is_no_error() -> None:
    """A lobe that is the same everywhere, whose axis can grow."""
    assert spherical_gaussians.sphericalGaussian([0, 0, 1], [0, 0, 0]) == pytest.approx(1, abs=1e-5)
    _, v_axis = spherical_gaussians.sphericalGaussian.gradients(1.0, [0, 0, 1.0], [0, 0, 0.0])
    np.testing.assert_allclose(v_axis, [0, 0, 1], atol=1e-5)


@pytest.mark.parametrize("vectors", [1, 3, 7])
def test_colors(vectors: int) -> None:
    features, v = RNG.normal(size=(COUNT, vectors, 3)), RNG.normal(size=(COUNT, 3))
    expected = colors_of(DIRECTIONS, features)
    assert 0.05 < np.mean(expected == 0) < 0.6
    shaded = color.colorOf[vectors, 1, "SphericalGaussians"]
    assert_value(shaded(DIRECTIONS, features, np.zeros(1)), expected)
    v_directions, v_features = pullback(colors_of, v, DIRECTIONS, features)
    found = shaded.gradients(v, DIRECTIONS, features, np.zeros(1))
    np.testing.assert_allclose(found[0], v_directions, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], v_features, rtol=1e-4, atol=1e-5)
    assert v_directions.any() == (vectors > 1)
