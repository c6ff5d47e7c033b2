"""slang/parallel: atomic_floats.slang, cpu_driver.slang, half_storage.slang, threads.slang and wave.slang."""

from pathlib import Path

import numpy as np
import pytest

from splat_py import shaders
from splat_py.gpu.kernels import linear_groups
from splat_py.shaders import cpu_driver, half_storage, threads
from tests.shaders.kernels import dispatch

LANES = shaders.load(Path(__file__).with_name("lanes.slang"))
ADD_UP = """
import parallel.atomic_floats;
StructuredBuffer<float> values;
RWStructuredBuffer<Atomic<uint>> sums;

[shader("compute")]
[numthreads(64, 1, 1)]
void addUp(uint3 id: SV_DispatchThreadID)
{
    addByCompareAndSwap(sums, id.x % 3, values[id.x]);
}
"""


def test_many_threads_add_to_few_floats() -> None:
    """Whole numbers, whose sum does not depend on the order."""
    values = np.random.default_rng(50).integers(-100, 100, 64 * 50).astype(np.float32)
    first = np.array([0, 1.5, -2], np.float32)
    sums = dispatch(ADD_UP, "addUp", 50, values=values, sums=first)["sums"]
    np.testing.assert_array_equal(sums, first + [values[i::3].sum() for i in range(3)])


def test_every_finite_half_survives() -> None:
    """Subnormal halves survive, too, although some devices flush them to 0."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    values = halves.astype(np.uint16).view(np.float16).astype(np.float32)
    halves, values = halves[np.isfinite(values)], values[np.isfinite(values)]
    words = halves | halves[::-1] << 16
    found = half_storage.unpackHalves(words)
    expected = np.stack([values, values[::-1]], axis=1)
    tiny = np.abs(expected) < 2**-14
    np.testing.assert_array_equal(found[~tiny], expected[~tiny])
    assert (np.abs(found - expected)[tiny] < 2**-14).all()
    np.testing.assert_array_equal(half_storage.packHalves(found[~tiny.any(1)]), words[~tiny.any(1)])


def test_rounding_to_halves() -> None:
    """The result is the nearest half, or a neighbour of it on devices that truncate."""
    values = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    found = half_storage.unpackHalves(half_storage.packHalves(values))
    np.testing.assert_allclose(found, values, rtol=2**-10, atol=2**-24)


def test_halves_by_arithmetic() -> None:
    """Equal to NumPy's for every half, and for floats of all sizes, including those between two halves."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    expected = halves.astype(np.uint16).view(np.float16).astype(np.float32)
    found = half_storage.floatOfHalf(halves)
    # A device may flush floats below the smallest normal number to 0.
    tiny = np.abs(expected) < 2**-14
    np.testing.assert_array_equal(found[~tiny], expected[~tiny])
    assert (np.abs(found[tiny] - expected[tiny]) < 2**-14).all()
    rng = np.random.default_rng(1)
    values = (rng.normal(size=20000) * 2.0 ** rng.integers(-26, 18, 20000)).astype(np.float32)
    middles = (expected[1000:31000] + expected[1001:31001]) / 2
    values = np.concatenate([values, middles, -middles, [0, -0.0, 65519, 65520, 1e30, np.inf, -np.inf]]).astype(np.float32)
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(half_storage.halfOfFloat(values), wanted)
    assert half_storage.halfOfFloat(np.array([np.nan], np.float32))[0] == 0x7E00


def test_every_element_has_one_thread() -> None:
    """This holds for full rows of workgroups, too."""
    for count in (1, 64, 65, 64 * 32768 + 1):
        x, y, _ = linear_groups(count)
        last = threads.threadIndex(np.array([x - 1, y - 1, 0]), 63)
        assert count <= last + 1 and x <= 65535
    group, thread = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]]), np.array([5, 0, 0])
    np.testing.assert_array_equal(threads.threadIndex(group, thread), [5, 64, 64 * 32768])


def test_morton_blocks() -> None:
    """Every pixel of a block occurs once, and each run of 4^k pixels is a square."""
    pixels = np.asarray(threads.mortonPixel(np.arange(64 * 64)))
    assert len(np.unique(pixels, axis=0)) == 64 * 64
    for run in (4, 16, 64, 256):
        blocks = pixels.reshape(-1, run, 2)
        assert np.all(np.ptp(blocks, axis=1) == int(run**0.5) - 1)


def test_active_lanes_of_full_waves_and_of_the_last_one() -> None:
    active, size, lane = LANES.lanes(np.arange(64)).T
    np.testing.assert_array_equal(active, size)
    np.testing.assert_array_equal(lane, np.arange(64) % size)
    active, size, lane = LANES.lanes(np.arange(3)).T
    assert np.all(size >= 4)
    np.testing.assert_array_equal(active, 3)
    np.testing.assert_array_equal(lane, np.arange(3))


def test_squares_of_eight_lanes() -> None:
    if LANES.lanes(np.arange(64))[0][1] < 8:
        pytest.skip("waves are smaller than eight lanes here")
    rng = np.random.default_rng(48)
    values = rng.integers(0, 1000, (16, 8, 8)).astype(float)
    found = np.reshape(LANES.transposed(values.reshape(-1, 8)), (16, 8, 10))
    np.testing.assert_array_equal(found[..., :8], values.transpose(0, 2, 1))
    np.testing.assert_array_equal(found[..., 8], values.min(axis=1))
    np.testing.assert_array_equal(found[..., 9], np.tile(values.min(axis=1)[:, :4], 2))


def test_integers() -> None:
    rng = np.random.default_rng(43)
    whole = np.concatenate([rng.integers(-(2**22) + 1, 2**22, 60), [0, -1, 1, 2**22 - 1, 1 - 2**22]])
    np.testing.assert_array_equal(cpu_driver.integerByBits(whole.astype(float)), whole)
