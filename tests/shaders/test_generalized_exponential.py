"""slang/splat/generalized_exponential.slang."""

from __future__ import annotations

import numpy as np

from splat_py import shaders
from tests.shaders.falloffs import check


def test_value() -> None:
    check("GeneralizedExponential", lambda sigma, beta: np.exp(-0.5 * sigma**beta), 0.4, 2.5, 9)


def test_at_the_mean() -> None:
    """Where the power's derivative is infinite, it is zero."""
    function = shaders.falloff.falloffOf["GeneralizedExponential"]
    np.testing.assert_allclose(function(0.0, [0.5, 0, 0, 0]), 1, atol=1e-3)
    v_sigma, v_extras = shaders.gradients(function, 1.0, 0.0, [0.5, 0, 0, 0])
    assert v_sigma == 0 and np.isfinite(v_extras).all()
