"""Gaussians kept in an order in which neighbours in space are neighbours in memory (kernels/spatial_order.slang)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from splat_py.gpu.kernels import linear_groups
from splat_py.gpu.sorting import RadixSort
from splat_py.gpu.sources import constant
from splat_py.splats.gaussian_rows import record_moved
from splat_py.splats.parameters import Parameters

_KEY_BITS = 3 * constant("kernels/spatial_order", "BITS")


def in_spatial_order(parameters: Parameters, bounds: NDArray[np.float64]) -> Parameters:
    """The same Gaussians by Morton codes of their means; statistics start anew. Nothing may be running that writes them.

    Args:
        bounds: [2, 3] two corners of the box, in world units, beyond which nothing is told apart.
    """
    device, count = parameters.device, parameters.count
    low, high = bounds
    cube = {"lowX": low[0], "lowY": low[1], "lowZ": low[2], "side": np.max(high - low)}
    recorder = device.record()
    keys, order = (recorder.scratch((count,), np.uint32) for _ in range(2))
    recorder.dispatch(
        "spatial_order",
        "mortonKeys",
        linear_groups(count),
        {"gaussians": count, **{name: float(v) for name, v in cube.items()}},
        {"means": parameters.arrays["means"], "keys": keys, "order": order},
    )
    all_of_them = device.memory.array(np.array([count], np.uint32))
    _, origins = RadixSort(device, count).record(recorder, keys, order, all_of_them, _KEY_BITS)
    ordered = record_moved(recorder, parameters, origins)
    recorder.submit()
    return ordered
