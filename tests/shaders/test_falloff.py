"""slang/splat/falloff.slang."""

from __future__ import annotations

import numpy as np

from splat_py.shaders import falloff as shader
from tests.shaders.oracle import assert_value


def test_gaussian() -> None:
    sigma, v = np.random.default_rng(7).uniform(0, 12, (2, 50))
    function, nothing = shader.falloffOf["GaussianFalloff"], np.zeros((50, 4))
    assert_value(function(sigma, nothing), np.exp(-0.5 * sigma))
    v_sigma, v_extras = function.gradients(v, sigma, nothing)
    assert_value(v_sigma, -0.5 * np.exp(-0.5 * sigma) * v, rtol=1e-4)
    assert not v_extras.any()
