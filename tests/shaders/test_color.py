"""slang/splat/color.slang: harmonics as colours are in test_spherical_harmonics.py."""

from __future__ import annotations

import numpy as np
import pytest

from splat_py.shaders import color, spherical_harmonics

RNG = np.random.default_rng(41)
DIRECTIONS = RNG.normal(size=(30, 3))
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)


@pytest.mark.parametrize(("kind", "function"), [("SphericalHarmonics", "shColor"), ("HarmonicSum", "shSum")])
def test_harmonics_are_an_instance(kind: str, function: str) -> None:
    """To the last bit, and without a gradient of weights that are not there."""
    features, v = RNG.normal(size=(30, 9, 3)), RNG.normal(size=(30, 3))
    shaded, plain = color.colorOf[9, 1, kind], getattr(spherical_harmonics, function)[9]
    np.testing.assert_array_equal(shaded(DIRECTIONS, features, np.zeros(1)), plain(DIRECTIONS, features))
    v_directions, v_features, v_weights = shaded.gradients(v, DIRECTIONS, features, np.zeros(1))
    for found, expected in zip((v_directions, v_features), plain.gradients(v, DIRECTIONS, features), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert not v_weights.any()
