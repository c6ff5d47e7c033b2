"""slang/splat/prelude.slang."""

from __future__ import annotations

import numpy as np

from splat_py import shaders


def test_what_it_brings() -> None:
    """Types and functions of the modules that types of one's own are made of."""
    module = shaders.source(
        "import splat.prelude;\n"
        "[Differentiable] public float twice(float sigma) { return falloffOf<GaussianFalloff>(sigma, float4(0.0)) * 2.0; }\n"
        "public float limit() { return ALPHA_MIN; }\n"
    )
    np.testing.assert_allclose(module.twice(2.0), 2 * np.exp(-1), rtol=1e-6)
    np.testing.assert_allclose(module.limit(), 1 / 255, rtol=1e-6)
