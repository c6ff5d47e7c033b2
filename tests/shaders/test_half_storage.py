"""slang/parallel/half_storage.slang."""

from __future__ import annotations

import numpy as np

from splat_py import shaders


def test_every_finite_half_survives() -> None:
    """Also those below the least normal one, which some devices flush to 0."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    values = halves.astype(np.uint16).view(np.float16).astype(np.float32)
    halves, values = halves[np.isfinite(values)], values[np.isfinite(values)]
    words = halves | halves[::-1] << 16
    found = shaders.half_storage.unpackHalves(words)
    expected = np.stack([values, values[::-1]], axis=1)
    tiny = np.abs(expected) < 2**-14
    np.testing.assert_array_equal(found[~tiny], expected[~tiny])
    assert (np.abs(found - expected)[tiny] < 2**-14).all()
    np.testing.assert_array_equal(shaders.half_storage.packHalves(found[~tiny.any(1)]), words[~tiny.any(1)])


def test_rounding() -> None:
    """To the nearest half, or one of its neighbours where a device truncates."""
    values = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    found = shaders.half_storage.unpackHalves(shaders.half_storage.packHalves(values))
    np.testing.assert_allclose(found, values, rtol=2**-10, atol=2**-24)
