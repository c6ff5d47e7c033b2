"""What tests of falloffs share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from splat_py.shaders import falloff as shader
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 80


def check(name: str, f: Callable[[Array, Array], Array], low: float, high: float, furthest: float) -> None:
    """Values and gradients of σ and of the first extra number, which lies between `low` and `high`, up to a σ of `furthest`."""
    rng = np.random.default_rng(7)
    sigma, first = rng.uniform(0.01, furthest, COUNT), rng.uniform(low, high, COUNT)
    extras = np.zeros((COUNT, 4))
    extras[:, 0] = first
    function = shader.falloffOf[name]
    assert_value(function(sigma, extras), f(sigma, first), rtol=2e-5)
    v = rng.normal(size=COUNT)
    v_sigma, v_first = pullback(f, v, sigma, first)
    v_extras = np.zeros((COUNT, 4))
    v_extras[:, 0] = v_first
    assert_gradients(function, v, [sigma, extras], [v_sigma, v_extras], atol=1e-5)
