"""slang/splat/portable.slang."""

from __future__ import annotations

import numpy as np

from splat_py import shaders
from splat_py.shaders import portable as shader
from tests.shaders.oracle import assert_value

RNG = np.random.default_rng(31)
COLORS, OPACITIES = RNG.normal(size=(9, 3)), RNG.uniform(size=9)


def test_weighted_color() -> None:
    expected = np.column_stack([COLORS * OPACITIES[:, None], OPACITIES])
    assert_value(shader.weightedColor(COLORS, OPACITIES), expected)


def test_its_backward_pass_is_the_derivative_of_the_mean() -> None:
    v_mean = RNG.normal(size=4)
    v_colors, v_opacities = shaders.gradients(shader.weightedColor, np.tile(v_mean / 9, (9, 1)), COLORS, OPACITIES)
    actual = shader.weightedColorBackward(np.tile(v_mean, (9, 1)), np.full(9, 9), COLORS, OPACITIES)
    assert_value(actual, np.column_stack([v_colors, v_opacities]))
