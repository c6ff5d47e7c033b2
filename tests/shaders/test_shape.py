"""slang/splat/shape.slang: the ellipse as a shape, which is the conic that blending and footprints know."""

from __future__ import annotations

import numpy as np

from splat_py.shaders import footprint, shape
from tests.shaders.oracle import assert_gradients, assert_value, pullback
from tests.shaders.test_footprint import conics

COUNT = 60
RNG = np.random.default_rng(54)


def test_sigma() -> None:
    mean, pixels = RNG.uniform(0, 8, (COUNT, 2)), RNG.integers(0, 8, (COUNT, 2)) + 0.5
    conic = conics(*np.exp(RNG.uniform(-0.5, 2, (2, COUNT))), RNG.uniform(0, np.pi, COUNT))

    def sigma_of(mean: np.ndarray, conic: np.ndarray) -> np.ndarray:
        (x, y), (a, b, c) = (pixels - mean).T, conic.T
        return a * x * x + 2 * b * x * y + c * y * y

    sigma = shape.sigmaOf[3, "Ellipse"]
    assert_value(sigma(mean, conic, pixels), sigma_of(mean, conic), rtol=1e-4, atol=1e-5)
    v = RNG.normal(size=COUNT)
    expected = [*pullback(sigma_of, v, mean, conic), None]
    assert_gradients(sigma, v, [mean, conic, pixels], expected, rtol=1e-4, atol=1e-4)


def test_bounds() -> None:
    """Those of a Gaussian's footprint."""
    mean, opacity = RNG.uniform(0, 48, (COUNT, 2)), RNG.uniform(0, 1, COUNT)
    conic = conics(*np.exp(RNG.uniform(-0.5, 2, (2, COUNT))), RNG.uniform(0, np.pi, COUNT))
    expected = footprint.footprint["GaussianFalloff"](mean, conic, opacity, np.zeros(4))
    actual = shape.boundsOf[3, "Ellipse"](mean, conic, footprint.sigmaMaxOf["GaussianFalloff"](opacity, np.zeros(4)))
    assert set(actual) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name])
    assert np.all(expected["radius"] < 0)
