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


def test_by_arithmetic() -> None:
    """As NumPy has it: every half, and floats of all sizes, those between two halves among them."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    expected = halves.astype(np.uint16).view(np.float16).astype(np.float32)
    found = shaders.half_storage.floatOfHalf(halves)
    # A device may take what a float holds without a leading one for 0.
    tiny = np.abs(expected) < 2**-14
    np.testing.assert_array_equal(found[~tiny], expected[~tiny])
    assert (np.abs(found[tiny] - expected[tiny]) < 2**-14).all()
    rng = np.random.default_rng(1)
    values = (rng.normal(size=20000) * 2.0 ** rng.integers(-26, 18, 20000)).astype(np.float32)
    middles = (expected[1000:31000] + expected[1001:31001]) / 2
    values = np.concatenate([values, middles, -middles, [0, -0.0, 65519, 65520, 1e30, np.inf, -np.inf]]).astype(np.float32)
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(shaders.half_storage.halfOfFloat(values), wanted)
    assert shaders.half_storage.halfOfFloat(np.array([np.nan], np.float32))[0] == 0x7E00
