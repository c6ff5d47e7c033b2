"""Blobs → picture, and back, on CPU drivers (kernels/cpu/blob_lists.slang, blob_tiles.slang): every tile one wave's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.persistent_groups import persistent_groups
from splat_py.gpu.sorting import PrefixSum
from splat_py.gpu.sources import constant
from splat_py.image.derivatives import RendersAgain

_TILE, _RANGES, _ROW = (constant("kernels/cpu/blob_rows", name) for name in ("TILE", "RANGES", "BLOB_ROW"))
_RANGE_LANES = constant("kernels/cpu/blob_lists", "RANGE_LANES")
_V_ROW = constant("kernels/cpu/blob_blending", "V_ROW")
# What lists get beyond what was needed, so that blobs that grow rarely run out of capacity.
_HEADROOM = 1.5


class CpuTileRasterizer(RendersAgain):
    """Blobs are evaluated once and counted into tiles, and each tile is blended and differentiated in one go.

    Args:
        native_atomics: not needed.
    """

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        self._device, self._blobs, self._width, self._height = device, blobs, width, height
        self._grid = -(-width // _TILE), -(-height // _TILE), 1
        tiles = self._grid[0] * self._grid[1]
        self._groups = persistent_groups()
        # A queue more than there are workgroups (kernels/cpu/work_queue.slang).
        self._queues = self._groups + 1
        empty = device.memory.empty
        self._rows = empty((blobs, _ROW), by_address=True)
        # [queues, N, …], once gradients are asked for.
        self._v_rows: Array | None = None
        self._cells = empty((tiles * _RANGES,), np.uint32, by_address=True)
        self._offsets = PrefixSum(device, tiles * _RANGES)
        self._no_max_count = device.memory.full((1,), 0, np.uint32)
        self.reserve_isects(0)

    @property
    def isect_count(self) -> Array:
        """[1] uint32 on the device: intersections of blobs with tiles."""
        return self._offsets.total

    def reserve(self, parameters: Array) -> None:
        """See `Rasterizer`."""
        recorder = self._device.record()
        self._record_count(recorder, parameters)
        recorder.submit()
        needed = int(self.isect_count.numpy()[0])
        if needed > self.capacity or self.capacity == 0:
            self.reserve_isects(max(int(needed * _HEADROOM), 1))

    def reserve_isects(self, capacity: int) -> None:
        """Lists for so many intersections of blobs with tiles.

        Raises:
            SplatError: lists cannot hold so many.
        """
        # Nothing is dispatched for each of them.
        self._device.memory.limits.check_intersections(capacity, capacity)
        self.capacity = capacity
        self._ids = self._device.memory.full((capacity,), 0, np.uint32)

    def record_check(self, recorder: Recorder, status: Array, step: int) -> None:
        """See `Rasterizer`."""
        recorder.dispatch(
            "status",
            "checkCapacity",
            (1, 1, 1),
            {"capacity": self.capacity, "maxListLength": 1, "step": step},
            {"isectCount": self.isect_count, "maxTileCount": self._no_max_count, "status": status},
        )

    def record_lists(self, recorder: Recorder, parameters: Array) -> None:
        """See `Rasterizer`."""
        self._record_count(recorder, parameters)
        buffers = {
            "blobRows": self._rows,
            "cellCounts": self._cells,
            "cellOffsets": self._offsets.offsets,
            "tileIds": self._ids,
        }
        self._dispatch(recorder, "blob_lists", "listBlobs", (_RANGES // _RANGE_LANES, 1, 1), buffers)

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        """See `Rasterizer`."""
        self.record_lists(recorder, parameters)
        recorder.stage("render")
        self._dispatch(recorder, "blob_tiles", "renderTiles", self._grid, {**self._lists(), "image": image})

    def _record_derivatives(
        self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array, weight: float, linear: bool
    ) -> None:
        recorder.stage("derivatives")
        if self._v_rows is None:
            self._v_rows = self._device.memory.empty((self._queues, self._blobs, _V_ROW), by_address=True)
        recorder.clear(self._v_rows)
        queues = recorder.scratch((self._queues,), np.uint32)
        recorder.clear(queues)
        buffers = self._lists() | {"vPairs": self._v_rows, "targetPicture": target, "queues": queues}
        groups, constants = (self._groups, 1, 1), {"LINEAR": linear, "QUEUES": self._queues}
        self._dispatch(recorder, "blob_tiles", "differentiateTiles", groups, buffers, weight, **constants)
        recorder.stage("blob derivatives")
        buffers = {"parameters": parameters, "vRows": self._v_rows, "vRaw": v_parameters}
        groups = linear_groups(self._blobs)
        self._dispatch(recorder, "blob_tiles", "differentiateRows", groups, buffers, QUEUES=self._queues)

    def _record_count(self, recorder: Recorder, parameters: Array) -> None:
        recorder.stage("evaluate")
        buffers = {"parameters": parameters, "blobRows": self._rows}
        self._dispatch(recorder, "blob_lists", "evaluateRows", linear_groups(self._blobs), buffers)
        recorder.stage("lists")
        recorder.clear(self._cells)
        buffers = {"blobRows": self._rows, "cellCounts": self._cells}
        self._dispatch(recorder, "blob_lists", "countCells", (_RANGES // _RANGE_LANES, 1, 1), buffers)
        self._offsets.record(recorder, self._cells)

    def _lists(self) -> dict[str, Array]:
        return {"blobQuads": self._rows, "listOffsets": self._offsets.offsets, "tileIds": self._ids}

    def _dispatch(
        self,
        recorder: Recorder,
        module: str,
        entry: str,
        groups: tuple[int, int, int],
        buffers: Mapping[str, Array | None],
        weight: float = 1.0,
        **constants: int,
    ) -> None:
        uniforms = {"blobs": self._blobs, "width": self._width, "height": self._height, "weight": weight}
        recorder.dispatch(f"cpu/{module}", entry, groups, uniforms | {"capacity": self.capacity}, buffers, **constants)
