"""Prefix sum and radix sort against NumPy, at sizes around the edges of blocks and in every tuning."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest

from splat_py.gpu.device import _GPU_TUNING, _SOFTWARE_TUNING, _VULKAN_TUNING, Device, Tuning, get_device
from splat_py.gpu.kernels import Recorder
from splat_py.gpu.sorting import Pairs, PrefixSum, RadixSort
from splat_py.gpu.sources import constant

Uints = npt.NDArray[np.uint32]

SCAN_BLOCK = constant("kernels/prefix_sum", "BLOCK")
TUNINGS = {"GPU": _GPU_TUNING, "Vulkan": _VULKAN_TUNING, "software": _SOFTWARE_TUNING}
# Tiles have 1,792, 896 and 4,096 pairs. One workgroup sorts 4,096 alone, or in software 32,768.
SIZES = [0, 1, 255, 256, 257, *(n + i for n in (896, 1792, 3584, 4096, 8192, 32768) for i in (-1, 0, 1)), 65537]


def check_prefix_sum(values: Uints) -> None:
    """Offsets and total are exact up to the largest number, at which sums stay: they never decrease, and never look small."""
    device = get_device()
    scan = PrefixSum(device, len(values))
    scan.offsets.write(np.full(len(values) + 1, 0xDEAD, np.uint32))
    with device.recording() as recorder:
        scan.record(recorder, device.memory.array(values))
    offsets, exact = scan.offsets.numpy(), np.concatenate([[0], np.cumsum(values, dtype=np.uint64)])
    np.testing.assert_array_equal(offsets, np.minimum(exact, 0xFFFF_FFFF))
    assert scan.total.numpy()[0] == offsets[-1]


@pytest.mark.parametrize(
    "size",
    [
        *(0, 1, 255, 256, 257, SCAN_BLOCK - 1, SCAN_BLOCK, SCAN_BLOCK + 1, 3 * SCAN_BLOCK, 1_000_000),
        # Numbers of blocks around the limit of one round of the middle pass.
        *(256 * SCAN_BLOCK - 1, 256 * SCAN_BLOCK, 256 * SCAN_BLOCK + 1, 513 * SCAN_BLOCK),
    ],
)
def test_prefix_sum(size: int) -> None:
    check_prefix_sum(np.random.default_rng(size).integers(0, 1000, size, dtype=np.uint32))


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(5000, np.uint32),
        np.where(np.arange(5000) == 4321, np.uint32(0xFFFF_FFFF), np.uint32(0)),
        # 2³² - 1 is the largest number, and a total of one more is reported as that, too.
        *(np.append(np.full(65535, 65536), last).astype(np.uint32) for last in (65535, 65536)),
    ],
    ids=["zeros", "one large value", "total of 32 bits", "one more"],
)
def test_prefix_sum_of_special_values(values: Uints) -> None:
    check_prefix_sum(values)


@pytest.mark.parametrize("size", [2, 9, 3000, 20_000, 1_000_000])
def test_totals_beyond_32_bits_stay_at_the_largest_number(size: int) -> None:
    """Sums within a thread, within a workgroup and between workgroups saturate."""
    rng = np.random.default_rng(size)
    for least in (0, 0xF000_0000):
        check_prefix_sum(rng.integers(least, 1 << 32, size, dtype=np.uint32))


def check(
    keys: Uints,
    tuning: Tuning,
    *,
    bits: int = 32,
    lowest: int = 0,
    capacity: int | None = None,
    behind: int = 0,
    values: bool = True,
) -> None:
    """The order is that of a stable sort by `bits` of the keys from bit `lowest` on, also with `given` keys.

    Args:
        capacity: pairs for which the sort has room, of which only the device knows the count; as many as keys by default.
        behind: the arrays have so many pairs more, which do not change, although they belong to the count.
        values: sort values with the keys.
    """
    device, capacity = get_device(), len(keys) if capacity is None else capacity
    # Zeros would come first if they took part.
    everything = np.pad(keys, (0, capacity + behind - len(keys)))
    keys_array = device.memory.array(everything)
    values_array = device.memory.array(np.arange(len(everything), dtype=np.uint32)) if values else None
    count = device.memory.array(np.array([len(keys) + behind], np.uint32))
    sort = RadixSort(cast(Device, SimpleNamespace(memory=device.memory, tuning=tuning)), capacity, values=values)
    with device.recording() as recorder:
        found, free = sort.record(recorder, Pairs(keys_array, values_array), count, bits, lowest=lowest)
    assert found.keys is not free.keys and keys_array in (found.keys, free.keys)
    places = np.argsort(keys >> np.uint32(lowest), kind="stable")
    if values:
        np.testing.assert_array_equal(found.values.numpy()[: len(keys)], places)
    np.testing.assert_array_equal(found.keys.numpy()[: len(keys)], keys[places])
    np.testing.assert_array_equal(keys_array.numpy()[capacity:], everything[capacity:])
    if values:
        given = device.memory.array(everything)
        scratch = Pairs(*(device.memory.empty(len(everything), np.uint32) for _ in range(2)))
        with device.recording() as recorder:
            found, _ = sort.record(recorder, scratch, count, bits, lowest=lowest, given=given)
        np.testing.assert_array_equal(found.values.numpy()[: len(keys)], places)
        np.testing.assert_array_equal(found.keys.numpy()[: len(keys)], keys[places])
        np.testing.assert_array_equal(given.numpy(), everything)


@pytest.fixture(params=TUNINGS.values(), ids=TUNINGS)
def tuning(request: pytest.FixtureRequest) -> Tuning:
    return cast(Tuning, request.param)


@pytest.mark.parametrize(
    ("count", "bits", "room"),
    [
        *((size, 32, size) for size in (*SIZES, 1_000_000)),
        # Numbers of bits that a digit does not divide. Higher bits must be zero, as in tile numbers.
        *((5000, bits, 5000) for bits in (1, 3, 4, 5, 8, 9, 12, 17, 31)),
        # Only the device knows the count.
        *((count, 32, 30_001) for count in (0, 1, 257, 8192, 20_000)),
    ],
)
def test_random_keys(count: int, bits: int, room: int, tuning: Tuning) -> None:
    check(np.random.default_rng(count).integers(0, 1 << bits, count, dtype=np.uint32), tuning, bits=bits, capacity=room)


@pytest.mark.parametrize("count", [1000, 20_000])
@pytest.mark.parametrize(("lowest", "bits"), [(0, 32), (15, 8), (21, 11)])
def test_keys_alone(count: int, lowest: int, bits: int, tuning: Tuning) -> None:
    """Lower bits are carried along and do not count."""
    keys = np.random.default_rng(count).integers(0, 1 << (lowest + bits), count, dtype=np.uint32)
    check(keys, tuning, bits=bits, lowest=lowest, values=False)


@pytest.mark.parametrize("kind", ["all equal", "two values", "largest", "descending", "sorted"])
def test_equal_and_ordered_keys(kind: str, tuning: Tuning) -> None:
    rng = np.random.default_rng(1)
    keys = {
        "all equal": np.full(20_000, 0x1234_5678),
        "two values": rng.choice([7, 0x7000_0000], 20_000),
        "largest": np.where(rng.random(20_000) < 0.5, 0xFFFF_FFFF, 0xFFFF_FFFE),
        "descending": np.arange(20_000, 0, -1),
        "sorted": np.arange(20_000),
    }[kind]
    check(keys.astype(np.uint32), tuning)


def test_more_pairs_than_room(tuning: Tuning) -> None:
    """A count beyond the capacity sorts the pairs that fit and touches nothing behind them."""
    check(np.random.default_rng(3).integers(0, 1 << 32, 5000, dtype=np.uint32), tuning, behind=3000)


def test_stable_in_several_workgroups_and_tiles(tuning: Tuning) -> None:
    """Few different keys, so nearly all pairs have equal ones in other tiles and in other workgroups' parts."""
    tuning = replace(tuning, sort_blocks=3)
    count = 3 * 3 * tuning.sort_threads * tuning.sort_items + 5
    check(np.random.default_rng(4).choice([0, 1, 255, 256, 0xFFFF_FFFF], count).astype(np.uint32), tuning)


@pytest.mark.parametrize(("count", "bits", "dispatches"), [(100_000, 32, 8), (100_000, 13, 4), (100_000, 8, 2), (1000, 32, 1)])
def test_two_dispatches_a_pass(count: int, bits: int, dispatches: int, tuning: Tuning) -> None:
    with patch.object(Recorder, "dispatch", autospec=True, side_effect=Recorder.dispatch) as dispatch:
        check(np.random.default_rng(5).integers(0, 1 << bits, count, dtype=np.uint32), tuning, bits=bits)
    # With their own keys, and with given ones.
    assert dispatch.call_count == 2 * dispatches
    assert all(call.args[3][0] <= tuning.sort_blocks for call in dispatch.call_args_list)
