"""slang/splat/falloff.slang."""

from __future__ import annotations

import numpy as np

from tests.shaders.falloffs import check


def test_gaussian() -> None:
    check("GaussianFalloff", lambda sigma, first: np.exp(-0.5 * sigma + 0 * first), 0, 1, 12)
