"""slang/splat/exposure.slang."""

from __future__ import annotations

import numpy as np

from splat_py.shaders import exposure as shader
from tests.reference.exposure import NEUTRAL
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback


def expose(red: Array, green: Array, blue: Array, color: Array) -> Array:
    c = np.concatenate([color, np.ones((len(color), 1))], 1)
    return np.stack([(row * c).sum(1) for row in (red, green, blue)], 1)


def test_colours_and_gradients() -> None:
    rng = np.random.default_rng(60)
    red, green, blue = rng.normal(size=(3, 20, 4))
    color, v = rng.uniform(size=(20, 3)), rng.normal(size=(20, 3))
    rows = {"red": red, "green": green, "blue": blue}
    assert_value(shader.expose(rows, color), expose(red, green, blue, color))
    *v_rows, v_color = pullback(expose, v, red, green, blue, color)
    assert_gradients(shader.expose, v, [rows, color], [dict(zip(rows, v_rows, strict=True)), v_color])


def test_the_neutral_one_changes_nothing() -> None:
    np.testing.assert_array_equal(shader.neutralExposure(np.arange(12)), NEUTRAL)
