"""Prefix sum and stable radix sort on the device (kernels/prefix_sum.slang, kernels/radix_sort.slang)."""

from typing import Any, NamedTuple

import numpy as np

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.gpu.sources import constant

# Values that a workgroup of the prefix sum adds up at once.
_SCAN_BLOCK = constant("kernels/prefix_sum", "BLOCK")
_DIGIT_BITS = constant("kernels/radix_sort", "DIGIT_BITS")


class PrefixSum:
    """Running totals of `count` uints."""

    def __init__(self, device: Device, count: int) -> None:
        self.count = count
        # [count + 1] sums of all values before each, then the total; [1] the total again.
        self.offsets = device.memory.empty(count + 1, np.uint32)
        self.total = device.memory.empty(1, np.uint32)
        self._tuning = device.tuning
        # The total needs a place too: one more block if the values fill theirs.
        self._blocks = count // _SCAN_BLOCK + 1
        self.block_sums = device.memory.empty(self._blocks, np.uint32)

    def record(self, recorder: Recorder, values: Array) -> None:
        """Sum `values`, [count] uint32, into `offsets` and `total`."""
        blocks = self._blocks
        several = ("sumBlocks", blocks), ("scanBlockSums", 1), ("scanBlocks", blocks)
        shape = {"THREADS": self._tuning.sort_threads, "ITEMS": _SCAN_BLOCK // self._tuning.sort_threads}
        for entry, groups in several if self.count > self._tuning.alone else (("scanAll", 1),):
            recorder.dispatch("prefix_sum", entry, (groups, 1, 1), values=values, sums=self, **shape)


class Pairs(NamedTuple):
    """Keys and values to sort, [capacity] uint32 each, or keys alone."""

    keys: Array
    values: Any  # None for keys alone


class RadixSort:
    """Stable sort of up to `capacity` (key, value) pairs of uint32, or of keys alone, by some of the keys' bits."""

    def __init__(self, device: Device, capacity: int, *, values: bool = True) -> None:
        tuning = self._tuning = device.tuning
        self.capacity = capacity
        self._blocks = 1 if capacity <= tuning.alone else tuning.sort_blocks
        kept = tuning.sort_threads if tuning.sort_tile_bits == _DIGIT_BITS else 0
        self._histogram = device.memory.empty(self._blocks * (1 + kept) << _DIGIT_BITS, np.uint32)
        empty = device.memory.empty
        self._pairs = Pairs(empty(capacity, np.uint32), empty(capacity, np.uint32) if values else None)

    def record(
        self, recorder: Recorder, pairs: Pairs, count: Array, bits: int, *, lowest: int = 0, given: Array | None = None
    ) -> tuple[Pairs, Pairs]:
        """Sort by `bits` of the keys from bit `lowest` on, above which all are 0; `count`, [1] uint32 on the device, is the
        number of pairs. Return the sorted arrays and those that are free again: `pairs`, overwritten, and ones that this
        object owns, or the reverse. The keys may be `given`, which are not overwritten; their values are their indices."""
        source, target = pairs, self._pairs
        digits = range(lowest, lowest + bits, _DIGIT_BITS)
        if self._blocks == 1:
            self._dispatch(recorder, "sortAlone", source, target, count, given, shift=lowest, bits=bits)
            return (target, source) if len(digits) % 2 else (source, target)
        for shift in digits:
            for entry in ("countDigits", "scatter"):
                self._dispatch(recorder, entry, source, target, count, given, shift=shift, is_first=int(shift == lowest))
            source, target = target, source
        return source, target

    def _dispatch(
        self, recorder: Recorder, entry: str, source: Pairs, target: Pairs, count: Array, given: Array | None, **numbers: int
    ) -> None:
        recorder.dispatch(
            "radix_sort",
            entry,
            (self._blocks, 1, 1),
            source=source,
            target=target,
            count=count,
            capacity=self.capacity,
            blocks=self._blocks,
            histogram=self._histogram,
            THREADS=self._tuning.sort_threads,
            ITEMS=self._tuning.sort_items,
            TILE_BITS=self._tuning.sort_tile_bits,
            given=given,
            VALUES=source.values is not None,
            **numbers,
            **({} if given is None else {"GIVEN": True}),
        )
