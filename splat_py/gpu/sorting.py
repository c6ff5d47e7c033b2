"""Prefix sum and stable radix sort on the device (kernels/prefix_sum.slang, kernels/radix_sort.slang)."""

from typing import NamedTuple

import numpy as np

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.gpu.sources import constant

# Values that a workgroup of the prefix sum adds up at once, and the most such blocks that one workgroup does alone.
_SCAN_BLOCK = constant("kernels/prefix_sum", "BLOCK")
_BLOCKS_ALONE = 4
_DIGIT_BITS = constant("kernels/radix_sort", "DIGIT_BITS")
# The most tiles of pairs that one workgroup sorts alone.
_TILES_ALONE = 2


class PrefixSum:
    """Running totals of `count` uints."""

    def __init__(self, device: Device, count: int) -> None:
        self.count = count
        # [count + 1] sums of all values before each, then the total; [1] the total again.
        self.offsets = device.memory.empty(count + 1, np.uint32)
        self.total = device.memory.empty(1, np.uint32)
        self._threads = device.tuning.sort_threads
        # The total needs a place too: one more block if the values fill theirs.
        self._blocks = count // _SCAN_BLOCK + 1
        self.block_sums = device.memory.empty(self._blocks, np.uint32)

    def record(self, recorder: Recorder, values: Array) -> None:
        """Sum `values`, [count] uint32, into `offsets` and `total`."""
        blocks = self._blocks
        several = ("sumBlocks", blocks), ("scanBlockSums", 1), ("scanBlocks", blocks)
        shape = {"THREADS": self._threads, "ITEMS": _SCAN_BLOCK // self._threads}
        for entry, groups in several if blocks > _BLOCKS_ALONE else (("scanAll", 1),):
            recorder.dispatch("prefix_sum", entry, (groups, 1, 1), values=values, sums=self, **shape)


class Pairs(NamedTuple):
    """Keys and values to sort, [capacity] uint32 each."""

    keys: Array
    values: Array


class RadixSort:
    """Stable sort of up to `capacity` (key, value) pairs of uint32 by the keys' lowest bits."""

    def __init__(self, device: Device, capacity: int) -> None:
        tuning = self._tuning = device.tuning
        self.capacity = capacity
        tiles = -(-capacity // (tuning.sort_threads * tuning.sort_items))
        self._blocks = 1 if tiles <= _TILES_ALONE else tuning.sort_blocks
        kept = tuning.sort_threads if tuning.sort_tile_bits == _DIGIT_BITS else 0
        self._histogram = device.memory.empty(self._blocks * (1 + kept) << _DIGIT_BITS, np.uint32)
        self._pairs = Pairs(device.memory.empty(capacity, np.uint32), device.memory.empty(capacity, np.uint32))

    def record(self, recorder: Recorder, keys: Array, values: Array, count: Array, bits: int) -> Pairs:
        """Sort by the keys' lowest `bits`; `count`, [1] uint32 on the device, is the number of pairs. Return either the given
        arrays, overwritten, or arrays that this object owns."""
        source, target = Pairs(keys, values), self._pairs
        digits = range(0, bits, _DIGIT_BITS)
        if self._blocks == 1:
            self._dispatch(recorder, "sortAlone", source, target, count, bits=bits)
            return target if len(digits) % 2 else source
        for shift in digits:
            for entry in ("countDigits", "scatter"):
                self._dispatch(recorder, entry, source, target, count, shift=shift)
            source, target = target, source
        return source

    def _dispatch(self, recorder: Recorder, entry: str, source: Pairs, target: Pairs, count: Array, **numbers: int) -> None:
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
            **numbers,
        )
