"""slang/splat/image_loss.slang. The whole loss, through the walk, is tested in tests/image/test_rasterizers.py."""

from __future__ import annotations

import numpy as np

from splat_py.shaders import image_loss as shader
from tests.shaders.oracle import assert_gradients, assert_value

RNG = np.random.default_rng(32)
COLOR, TARGET = RNG.uniform(size=(2, 50, 3))


def test_squared_error() -> None:
    error = COLOR - TARGET
    squared = shader.pixelLoss["false"]
    assert_value(squared(COLOR, TARGET), (error**2).mean(axis=1))
    v = RNG.normal(size=50)
    assert_gradients(squared, v, [COLOR, TARGET], [2 / 3 * error * v[:, None], None])


def test_linear() -> None:
    linear = shader.pixelLoss["true"]
    assert_value(linear(COLOR, TARGET), (COLOR * TARGET).sum(axis=1))
    v = RNG.normal(size=50)
    assert_gradients(linear, v, [COLOR, TARGET], [TARGET * v[:, None], None])
