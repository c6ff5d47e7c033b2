"""slang/splat/environment.slang."""

from __future__ import annotations

import numpy as np

from splat_py.shaders import environment as shader
from tests.reference import sh_basis
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback


def over(directions: Array, color: Array, T: Array, sh: Array) -> Array:
    behind = np.einsum("bk,bkc->bc", sh_basis(directions, 3), sh) + 0.5
    return color + np.where(behind.real > 0, behind, 0) * T[:, None]


def test_colours_and_gradients() -> None:
    rng = np.random.default_rng(63)
    d = rng.normal(size=(30, 3))
    d = (d / np.linalg.norm(d, axis=1, keepdims=True)).astype(np.float32).astype(float)
    color, T, sh, v = rng.uniform(size=(30, 3)), rng.uniform(size=30), rng.normal(0, 0.3, (30, 16, 3)), rng.normal(size=(30, 3))
    assert_value(shader.overEnvironment(color, T, d, sh), over(d, color, T, sh), atol=1e-5)
    v_color, v_T, v_sh = pullback(lambda c, t, s: over(d, c, t, s), v, color, T, sh)
    assert_gradients(shader.overEnvironment, v, [color, T, d, sh], [v_color, v_T, None, v_sh], rtol=1e-4, atol=1e-5)


def test_directions_of_pixels() -> None:
    turn = np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]])
    camera = {"rotation": turn, "translation": [1, 2, 3], "focal": [10, 20], "principal": [5, 6]}
    rest = {"radial": [0, 0, 0], "radialMore": [0, 0, 0], "tangential": [0, 0], "thinPrism": [0, 0, 0, 0]}
    slope = np.array([(8 - 5) / 10, (2 - 6) / 20, 1])
    assert_value(shader.pixelDirection(camera | rest, [8, 2]), turn.T @ slope / np.linalg.norm(slope))
