"""slang/splat/wave.slang."""

from __future__ import annotations

from pathlib import Path

import numpy as np

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
