"""Stage 3, splats → every tile's list of them, front to back (kernels/tiles.slang). Not differentiable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import opaque
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.gpu.sorting import PrefixSum, RadixSort
from splat_py.splats.data import Cameras, Splats, id_buffers, id_constants
from splat_py.splats.project import ProjectedSplats
from splat_py.splats.tensors import as_tensor

# Of tile lists, where a device blends them whole (kernels/status.slang).
ANY_LENGTH = 0xFFFFFFFF


@dataclass(frozen=True)
class TileGrid:
    """Square tiles over the images of C cameras, row by row, camera by camera."""

    tile_size: int
    columns: int
    rows: int
    cameras: int

    @classmethod
    def over(cls, cameras: Cameras, tile_size: int) -> TileGrid:
        """The tiles that cover the cameras' images."""
        return cls(tile_size, -(-cameras.width // tile_size), -(-cameras.height // tile_size), cameras.count)

    @property
    def count(self) -> int:
        """Tiles of all cameras."""
        return self.columns * self.rows * self.cameras


class Binning:
    """Every tile's list of splats, front to back (kernels/tiles.slang).

    `record_count` finds out how many intersections of splats with tiles there are; `reserve` allocates arrays for them;
    `record_lists` writes the lists. A caller that has reserved enough before may record both at once and read `isect_count`
    later: if it exceeds `capacity`, the lists are not complete. The same holds for `record_max_tile_count` and segments.

    Args:
        keep_isects: lists also tell which intersection each element is, for gradients that have a row each.
        by_depth: sort by depth; otherwise a splat's index is its depth.
        bounds: `Settings.bounds_constants`.
    """

    def __init__(
        self,
        device: Device,
        splats: Splats,
        grid: TileGrid,
        keep_isects: bool = False,
        by_depth: bool = True,
        bounds: Mapping[str, str | int | UserType] | None = None,
    ) -> None:
        self.splats = splats
        self.grid = grid
        self._keep_isects, self._by_depth, self._bounds = keep_isects, by_depth, bounds or {}
        # [1] uint32 on the device: splats of the largest list, where `record_max_tile_count` has run.
        self.max_tile_count = device.memory.full((1,), 0, np.uint32)
        self._device = device
        empty = device.memory.empty
        self._depth_keys = empty(splats.count, np.uint32)
        self._order = device.memory.arange(splats.count)
        self._splat_count = device.memory.full((1,), splats.count, np.uint32)
        self._depth_sort = RadixSort(device, splats.count)
        self._sorted_order = self._order
        self._tile_counts = empty(splats.count, np.uint32)
        self._isect_offsets = PrefixSum(device, splats.count)
        self._offsets = empty(grid.count + 1, np.uint32)
        self.reserve(0)

    @property
    def isect_count(self) -> Array:
        """[1] uint32 on the device: intersections in all, 2³² - 1 if there are more."""
        return self._isect_offsets.total

    def reserve(self, capacity: int) -> None:
        """Allocate arrays for `capacity` intersections.

        Raises:
            SplatError: lists cannot hold so many.
        """
        tuning = self._device.tuning
        self._device.memory.limits.check_intersections(capacity, tuning.sort_threads * tuning.sort_items)
        self.capacity = capacity
        self._isect_tiles = self._device.memory.empty(capacity, np.uint32)
        self._isect_ids = self._device.memory.empty(capacity, np.uint32)
        self._isect_splats = self._device.memory.empty(capacity if self._keep_isects else 0, np.uint32)
        self._tile_sort = RadixSort(self._device, capacity)
        self._ids = self._isect_ids
        self._list_isects: Array | None = None

    def record_count(self, recorder: Recorder) -> None:
        """Sort the splats by depth and count the tiles each one touches."""
        if self._by_depth:
            recorder.stage("sort depths")
            self._dispatch(recorder, "depthKeysOf", self.splats.count, order=self._order)
            _, self._sorted_order = self._depth_sort.record(recorder, self._depth_keys, self._order, self._splat_count, bits=32)
        recorder.stage("bin")
        self._dispatch(recorder, "countTiles", self.splats.count)
        self._isect_offsets.record(recorder, self._tile_counts)

    def record_lists(self, recorder: Recorder) -> None:
        """Write the lists."""
        constants = {"KEEP_ISECTS": True} if self._keep_isects else {}
        recorder.stage("bin")
        self._dispatch(recorder, "emitIsects", self.splats.count, constants, isectSplats=self._isect_splats)
        recorder.stage("sort tiles")
        # One more than there are tiles: intersections without a tile.
        bits = self.grid.count.bit_length()
        tiles, ids = self._tile_sort.record(recorder, self._isect_tiles, self._isect_ids, self.isect_count, bits)
        recorder.stage("bin")
        buffers: dict[str, Array | None] = {"isectTiles": tiles, "isectSplats": None, "tileIds": None}
        if self._keep_isects:
            self._list_isects, self._ids = ids, self._device.memory.empty(self.capacity, np.uint32)
            buffers |= {"isectIds": ids, "isectSplats": self._isect_splats, "tileIds": self._ids}
        else:
            self._ids = ids
        self._dispatch(recorder, "findTileOffsets", self.capacity + 1, constants, **buffers)

    def record_max_tile_count(self, recorder: Recorder) -> None:
        """Find out how many splats the largest list has."""
        recorder.clear(self.max_tile_count)
        buffers = {"tileOffsets": self._offsets, "maxTileCount": self.max_tile_count}
        tiles = self.grid.count
        recorder.dispatch("tiles", "findMaxTileCount", linear_groups(tiles), {"tiles": tiles}, buffers)

    def record_capacity_check(self, recorder: Recorder, status: Array, step: int, max_list_length: int = ANY_LENGTH) -> None:
        """Write an `Overflow` to `status` if the lists exceed their capacity, or one of them `max_list_length`."""
        recorder.dispatch(
            "status",
            "checkCapacity",
            (1, 1, 1),
            {"capacity": self.capacity, "maxListLength": max_list_length, "step": step},
            {"isectCount": self.isect_count, "maxTileCount": self.max_tile_count, "status": status},
        )

    def lists(self, segments: int = 1) -> TileLists:
        """What `record_lists` writes, to be blended in so many segments."""
        return TileLists(self._offsets, self._ids, segments, self._list_isects, self._sorted_order, self._isect_offsets.offsets)

    def _dispatch(
        self, recorder: Recorder, entry: str, threads: int, constants: dict[str, bool] | None = None, **others: Array | None
    ) -> None:
        splats, grid = self.splats, self.grid
        # The others do not ask where splats are.
        bounds = self._bounds if entry in ("countTiles", "emitIsects") else {}
        recorder.dispatch(
            "tiles",
            entry,
            linear_groups(threads),
            {
                "splats": splats.count,
                "gaussians": splats.count // max(grid.cameras, 1),
                "columns": grid.columns,
                "rows": grid.rows,
                "tiles": grid.count,
                "capacity": self.capacity,
            },
            {
                "means2d": splats.means2d,
                "conics": splats.conics,
                "opacities": splats.opacities,
                "extras": splats.extras,
                "depths": splats.depths,
                "radii": splats.radii,
                "depthKeys": self._depth_keys,
                "order": self._sorted_order,
                "tileCounts": self._tile_counts,
                "isectOffsets": self._isect_offsets.offsets,
                "isectCount": self.isect_count,
                "isectTiles": self._isect_tiles,
                "isectIds": self._isect_ids,
                "tileOffsets": self._offsets,
                **id_buffers(splats.packed),
            }
            | others,
            TILE=grid.tile_size,
            **id_constants(splats.packed),
            **bounds,
            **(constants or {}),
        )


@dataclass(frozen=True)
class TileLists:
    """Splats by tile: those of tile t are ids[offsets[t]] … ids[offsets[t + 1] - 1], front to back."""

    offsets: Array  # [tiles + 1] uint32
    ids: Array  # [isects] uint32, indices of splats
    # Parts that lists are blended in, a dispatch each: `segments_for`.
    segments: int = 1
    # For gradients with a row an intersection: [isects] that of each element of `ids`; [M] splats by depth and
    # [M + 1] where the intersections of each begin.
    isects: Array | None = None
    order: Array | None = None
    isect_offsets: Array | None = None


def segments_for(device: Device, max_tile_count: int) -> int:
    """Segments that lists of at most so many splats are blended in on a device (`Tuning.segment`)."""
    segment = device.tuning.segment
    return 1 if segment is None else max(-(-max_tile_count // segment), 1)


@dataclass(frozen=True)
class BinnedTiles:
    """Every tile's splats, front to back: those of tile t are ids[offsets[t]:offsets[t + 1]]."""

    offsets: Tensor  # [C · rows · columns + 1] int32
    ids: Tensor  # [isects] int32, indices of splats
    grid: TileGrid
    arrays: TileLists


@opaque
def bin_tiles(
    splats: ProjectedSplats,
    width: int,
    height: int,
    tile_size: int,
    *,
    keep_isects: bool = False,
    bounds: Mapping[str, str | int | UserType] | None = None,
    device: Device | str | None = None,
) -> BinnedTiles:
    """Every tile's list of the splats that any of its pixels can see (α ≥ 1/255), front to back. Not differentiable.

    Args:
        keep_isects: for gradients with a row an intersection (`Settings.accumulation` is "PerIntersection").
        bounds: `Settings.bounds_constants`, of splats that are no Gaussians on the image.

    Raises:
        SplatError: there are more intersections than lists can hold.
    """
    device = device_for(splats.means2d, device)
    arrays = splats.arrays(device)
    grid = TileGrid(tile_size, int(-(-width // tile_size)), int(-(-height // tile_size)), splats.cameras)
    binning = Binning(device, arrays, grid, keep_isects, bounds=bounds)
    recorder = device.record()
    binning.record_count(recorder)
    recorder.submit()
    binning.reserve(int(binning.isect_count.numpy()[0]))
    recorder = device.record()
    binning.record_lists(recorder)
    # No list is longer than there are Gaussians: most often nobody has to ask.
    max_tile_count = splats.depths.shape[-1]
    asks = segments_for(device, max_tile_count) > 1
    if asks:
        binning.record_max_tile_count(recorder)
    recorder.submit()
    if asks:
        max_tile_count = int(binning.max_tile_count.numpy()[0])
    lists = binning.lists(segments_for(device, max_tile_count))
    # torch knows few operations on uint32; no index here comes near 2³¹.
    offsets, ids = (as_tensor(a, splats.depths).view(torch.int32) for a in (lists.offsets, lists.ids))
    return BinnedTiles(offsets, ids, grid, lists)
