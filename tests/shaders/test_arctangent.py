"""slang/splat/arctangent.slang."""

from __future__ import annotations

import numpy as np

from splat_py import shaders
from splat_py.shaders import arctangent as shader
from tests.shaders.oracle import assert_value

RNG = np.random.default_rng(12)


def test_angle() -> None:
    """In all directions, and its gradient."""
    angle = np.concatenate([RNG.uniform(-np.pi, np.pi, 200), np.arange(-7, 8) * np.pi / 8])
    radius = 10 ** RNG.uniform(-3, 3, len(angle))
    y, x = (radius * np.sin(angle)).astype(np.float32), (radius * np.cos(angle)).astype(np.float32)
    assert_value(shader.polarAngle(y, x), np.arctan2(y.astype(float), x), rtol=5e-7, atol=5e-7)
    v_y, v_x = shaders.gradients(shader.polarAngle, 1.0, y, x)
    squared = x.astype(float) ** 2 + y.astype(float) ** 2
    np.testing.assert_allclose(v_y * radius, x / squared * radius, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(v_x * radius, -y / squared * radius, rtol=1e-4, atol=1e-5)


def test_rest() -> None:
    x = np.linspace(0.05, np.tan(np.pi / 8), 50)
    assert_value(shader.arctangentRest(x**2), (np.arctan(x) / x - 1) / x**2, rtol=1e-6)
    np.testing.assert_allclose(shader.arctangentRest(0.0), -1 / 3, rtol=1e-6)


def test_square_root() -> None:
    x = 10 ** RNG.uniform(-12, 6, 100)
    assert_value(shader.squareRoot(x), np.sqrt(x), rtol=1e-6, atol=0)
    (v_x,) = shaders.gradients(shader.squareRoot, 1.0, x)
    np.testing.assert_allclose(v_x, 0.5 / np.sqrt(x), rtol=1e-5)
