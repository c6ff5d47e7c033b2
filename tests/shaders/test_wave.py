"""slang/parallel/wave.slang, and of slang/kernels/cpu what lanes and numbers are to CPU drivers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from splat_py import shaders

MODULE = shaders.load(Path(__file__).with_name("lanes.slang"))


def test_active_lanes_of_full_waves_and_of_the_last_one() -> None:
    active, size, lane = MODULE.lanes(np.arange(64)).T
    np.testing.assert_array_equal(active, size)
    np.testing.assert_array_equal(lane, np.arange(64) % size)
    active, size, lane = MODULE.lanes(np.arange(3)).T
    assert np.all(size >= 4)
    np.testing.assert_array_equal(active, 3)
    np.testing.assert_array_equal(lane, np.arange(3))


def test_squares_of_eight_lanes() -> None:
    if MODULE.lanes(np.arange(64))[0][1] < 8:
        pytest.skip("waves are smaller than eight lanes here")
    rng = np.random.default_rng(48)
    values = rng.integers(0, 1000, (16, 8, 8)).astype(float)
    found = np.reshape(MODULE.transposed(values.reshape(-1, 8)), (16, 8, 10))
    np.testing.assert_array_equal(found[..., :8], values.transpose(0, 2, 1))
    np.testing.assert_array_equal(found[..., 8], values.min(axis=1))
    np.testing.assert_array_equal(found[..., 9], np.tile(values.min(axis=1)[:, :4], 2))


def test_integers() -> None:
    rng = np.random.default_rng(43)
    whole = np.concatenate([rng.integers(-(2**22) + 1, 2**22, (60, 3)), [[0, -1, 1], [2**22 - 1, 1 - 2**22, 7]]])
    np.testing.assert_array_equal(MODULE.integers(whole.astype(float)), whole)
