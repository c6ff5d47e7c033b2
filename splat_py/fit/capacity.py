"""Whether the tile lists of a step had the capacity that they needed (kernels/status.slang).

A status is [3] uint32 on the device, all 0 while every list fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from splat_py.gpu.arrays import Array
from splat_py.gpu.kernels import Recorder
from splat_py.splats.tiles import ANY_LENGTH, Binning


@dataclass(frozen=True)
class Overflow:
    """The first step whose lists did not fit, and what they needed."""

    step: int
    isect_count: int
    max_tile_count: int

    @classmethod
    def read(cls, status: Array) -> Overflow | None:
        """What a status says; None if every list fitted."""
        isect_count, step, max_tile_count = (int(x) for x in status.numpy())
        return cls(step, isect_count, max_tile_count) if isect_count else None


def record_check(recorder: Recorder, status: Array, binning: Binning, step: int, max_list_length: int = ANY_LENGTH) -> None:
    """Note in `status` if the lists exceed `binning.capacity`, or one of them `max_list_length`."""
    recorder.dispatch(
        "status",
        "checkCapacity",
        (1, 1, 1),
        {"capacity": binning.capacity, "maxListLength": max_list_length, "step": step},
        {"isectCount": binning.isect_count, "maxTileCount": binning.max_tile_count, "status": status},
    )
