"""slang/splat/relocation.slang against equation 9 as it is written, in float64."""

from __future__ import annotations

import numpy as np

from splat_py.shaders import relocation as shader
from tests.reference.mcmc import equation_9, logit, sigmoid
from tests.shaders.oracle import assert_value


def test_shares() -> None:
    """Every number of copies, and opacities from the faintest that is shared to the largest float32 has below 1."""
    opacities = np.array([0.005, 0.0051, 0.02, 0.1, 0.3, 0.5, 0.9, 0.99, 0.9999, 1 - 2**-22])
    copies = np.arange(1, 52)
    logits = np.repeat(logit(opacities).astype(np.float32), len(copies))
    each = np.tile(copies, len(opacities))
    actual = shader.shareOf(logits, each, 1e-6)
    expected = np.array([equation_9(o, n) for o, n in zip(sigmoid(logits.astype(float)), each.tolist(), strict=True)])
    assert_value(sigmoid(actual["logit"].astype(float)), expected[:, 0], rtol=5e-6, atol=0)
    # Beyond 0.9999, an opacity's last digit in float32 is more than what is left.
    assert_value(actual["logScale"], np.log(expected[:, 1]), rtol=1e-5, atol=3e-6)


def test_bounds() -> None:
    few = shader.shareOf(0.0, np.array([0, 1, 51, 52, 1000]), 0.005)
    np.testing.assert_array_equal(few["logit"][[0, 2, 2]], few["logit"][[1, 3, 4]])
    assert abs(few["logit"][0]) < 1e-6 and abs(few["logScale"][0]) < 1e-6
    least = shader.shareOf(logit(np.array(0.01)), 20, 0.005)
    assert_value(sigmoid(least["logit"]), 0.005)
    assert_value(least["logScale"], np.log(equation_9(0.01, 20)[1]))
    opaque = shader.shareOf(np.array([30.0, 100.0]), 3, 0.005)
    assert np.isfinite(opaque["logit"]).all() and np.isfinite(opaque["logScale"]).all()
