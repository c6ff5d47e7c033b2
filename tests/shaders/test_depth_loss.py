"""slang/splat/depth_loss.slang."""

from __future__ import annotations

import numpy as np

from splat_py.shaders import depth_loss as shader
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 50
RNG = np.random.default_rng(4)
ALPHA = RNG.uniform(0.02, 1, COUNT)
ACCUMULATED = ALPHA * np.exp(RNG.uniform(-3, 3, COUNT))


def disparity(accumulated: Array, alpha: Array) -> Array:
    return alpha / accumulated


def test_disparity() -> None:
    v = RNG.normal(size=COUNT)
    assert_value(shader.expectedDisparity(ACCUMULATED, ALPHA), disparity(ACCUMULATED, ALPHA))
    expected = pullback(disparity, v, ACCUMULATED, ALPHA)
    assert_gradients(shader.expectedDisparity, v, [ACCUMULATED, ALPHA], expected)


def test_gradient_of_the_loss() -> None:
    known = ACCUMULATED / ALPHA * np.exp(RNG.uniform(-1, 1, COUNT))
    sign = np.sign(disparity(ACCUMULATED, ALPHA) - 1 / known)
    assert -0.5 < sign.mean() < 0.5
    expected = np.stack(pullback(disparity, sign, ACCUMULATED, ALPHA), -1)
    assert_value(shader.disparityGradient(ACCUMULATED, ALPHA, known), expected)


def test_there_is_none_where_nothing_is_known_or_shown() -> None:
    accumulated, alpha = np.array([1.0, 1, 1, 1e-3, 0, -1]), np.array([0.5, 0.5, 0.5, 1e-3, 0.5, 0.5])
    known = np.array([0.0, -1, np.nan, 1, 1, 1])
    assert not shader.disparityGradient(accumulated, alpha, known).any()
