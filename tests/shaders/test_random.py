"""slang/splat/random.slang."""

from __future__ import annotations

import numpy as np

from splat_py.shaders import random as shader
from tests.reference.random_numbers import normals_of
from tests.volume.reference import pcg4d, uniform

RNG = np.random.default_rng(41)


def test_hash() -> None:
    """Bit for bit the published function."""
    v = RNG.integers(0, 2**32, (500, 4), dtype=np.uint32)
    v[0], v[1] = 0, 2**32 - 1
    np.testing.assert_array_equal(shader.hash(v), pcg4d(v))


def test_one_counter_more_changes_half_of_the_bits() -> None:
    v = RNG.integers(0, 2**31, (2000, 4), dtype=np.uint32)
    for counter in range(4):
        moved = v.copy()
        moved[:, counter] += 1
        flipped = np.unpackbits((shader.hash(v) ^ shader.hash(moved)).view(np.uint8)).mean()
        assert abs(flipped - 0.5) < 0.01


def test_uniform() -> None:
    words = np.array([0, 255, 256, 2**31, 2**32 - 1], np.uint32)
    expected = (words >> 8) / 2.0**24
    np.testing.assert_array_equal(shader.uniformFrom(words), expected)
    assert expected[-1] < 1
    drawn = np.sort(shader.uniformFrom(shader.hash(np.stack([np.arange(4000), *np.zeros((3, 4000))], axis=1))[:, 0]))
    # Kolmogorov and Smirnov, at one in a thousand.
    assert np.abs(drawn - (np.arange(4000) + 0.5) / 4000).max() < 1.95 / np.sqrt(4000)


def test_offsets_of_a_ray() -> None:
    words = shader.hash(np.stack([np.full(100, 7), np.arange(100), np.full(100, 9), np.zeros(100)], axis=1))
    np.testing.assert_array_equal(shader.uniformFrom(words[:, 0]), uniform(7, 100, 9))


def test_normals() -> None:
    counters = np.stack([np.arange(20_000), *np.full((3, 20_000), 9)], axis=1)
    words = shader.hash(counters)
    words[:3] = [[0] * 4, [2**32 - 1] * 4, [2**32 - 1, 0, 0, 2**31]]
    drawn = shader.normalsFrom(words)
    np.testing.assert_allclose(drawn, normals_of(words), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=4 / np.sqrt(20_000))
    np.testing.assert_allclose(np.cov(drawn.T), np.eye(3), atol=6 / np.sqrt(20_000))
    assert abs((drawn**4).mean() - 3) < 0.15
