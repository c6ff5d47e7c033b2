"""slang/splat/beta_kernel.slang."""

from __future__ import annotations

import numpy as np

from splat_py import shaders
from tests.shaders.falloffs import check


def test_value() -> None:
    check("BetaKernel", lambda sigma, b: (1 - sigma / 9) ** (4 * np.exp(b)), -1.5, 1.5, 8.9)


def test_beyond_its_edge() -> None:
    function = shaders.falloff.falloffOf["BetaKernel"]
    assert function(9.5, [0.0, 0, 0, 0]) < 1e-6
    v_sigma, _ = shaders.gradients(function, 1.0, 9.5, [0.0, 0, 0, 0])
    assert v_sigma == 0
