"""Prefix sums and sorts, which everything else needs."""

from __future__ import annotations

import numpy as np

from splat_py.gpu.device import Device, Operator
from splat_py.gpu.sorting import PrefixSum, RadixSort
from splat_py.selftest import inputs
from splat_py.selftest.cases.case import Arrays, Case


def cases() -> list[Case]:
    """Both."""
    return [
        Case("prefix sum", "prefix sum", _prefix_sum, allowed=0),
        Case("radix sort", "radix sort", _radix_sort, allowed=0, needs=(Operator.SPLAT_FORWARD,)),
    ]


def _prefix_sum(device: Device, stored: Arrays) -> Arrays:
    values = device.memory.array(inputs.bits(61, inputs.VALUES) >> np.uint32(16))
    total = PrefixSum(device, inputs.VALUES)
    recorder = device.record()
    total.record(recorder, values)
    recorder.submit()
    return {"offsets": total.offsets.numpy()[::16], "total": total.total.numpy()}


def _radix_sort(device: Device, stored: Arrays) -> Arrays:
    """Of 20-bit keys with repetitions, which keep their order."""
    array = device.memory.array
    keys, values = array(inputs.bits(62, inputs.KEYS) >> np.uint32(12)), array(np.arange(inputs.KEYS, dtype=np.uint32))
    sort = RadixSort(device, inputs.KEYS)
    recorder = device.record()
    _, order = sort.record(recorder, keys, values, array(np.array([inputs.KEYS], np.uint32)), bits=20)
    recorder.submit()
    return {"order": order.numpy()}
