"""slang/parallel/threads.slang."""

from __future__ import annotations

import numpy as np

from splat_py.gpu.kernels import linear_groups
from splat_py.shaders import threads as shader


def test_every_element_has_one_thread() -> None:
    """Also where rows of workgroups are full."""
    for count in (1, 64, 65, 64 * 32768 + 1):
        x, y, _ = linear_groups(count)
        last = shader.threadIndex(np.array([x - 1, y - 1, 0]), 63)
        assert count <= last + 1 and x <= 65535
    group, thread = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]]), np.array([5, 0, 0])
    np.testing.assert_array_equal(shader.threadIndex(group, thread), [5, 64, 64 * 32768])


def test_morton_blocks() -> None:
    """Every pixel of a block once, and each run of 4^k of them a square."""
    pixels = np.asarray(shader.mortonPixel(np.arange(64 * 64)))
    assert len(np.unique(pixels, axis=0)) == 64 * 64
    for run in (4, 16, 64, 256):
        blocks = pixels.reshape(-1, run, 2)
        assert np.all(np.ptp(blocks, axis=1) == int(run**0.5) - 1)
