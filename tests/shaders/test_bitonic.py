"""slang/parallel/bitonic.slang: the pairs of a sort's steps, carried out here."""

from __future__ import annotations

import numpy as np
import pytest

from splat_py.shaders import bitonic as shader


@pytest.mark.parametrize("count", [2, 16, 256])
def test_its_steps_sort(count: int) -> None:
    keys = np.random.default_rng(count).permutation(count)
    pairs = np.arange(count // 2, dtype=np.uint32)
    run = 2
    while run <= count:
        distance = run // 2
        while distance:
            low = np.asarray(shader.lowerOfPair(pairs, distance)).astype(int)
            high = low + distance
            # Each key is in one pair.
            assert sorted([*low, *high]) == list(range(count))
            ascending = np.asarray(shader.isAscending(low.astype(np.uint32), run)).astype(bool)
            swap = (keys[low] > keys[high]) == ascending
            keys[low], keys[high] = np.where(swap, keys[high], keys[low]), np.where(swap, keys[low], keys[high])
            distance //= 2
        run *= 2
    assert (keys == np.arange(count)).all()
