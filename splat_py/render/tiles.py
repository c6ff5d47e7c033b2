"""Stage 3, splats → every tile's list of them, front to back (kernels/tiles.slang). Not differentiable."""

from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import Untransformed, forward_graph_break
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sorting import Pairs, PrefixSum, RadixSort
from splat_py.gpu.tensors import as_tensor
from splat_py.render.cameras import Cameras
from splat_py.render.options import Options
from splat_py.render.splats import ProjectedSplats, Recent, Splats

# No limit on a list's length, for devices that blend lists whole (kernels/status.slang).
ANY_LENGTH = 0xFFFFFFFF


@dataclass(frozen=True)
class TileGrid:
    """Square tiles over the images of C cameras, row by row, camera by camera."""

    tile_size: int
    columns: int
    rows: int
    cameras: int

    @classmethod
    def over(cls, cameras: Cameras, tile_size: int) -> "TileGrid":
        """The tiles that cover the cameras' images."""
        return cls(tile_size, -(-cameras.width // tile_size), -(-cameras.height // tile_size), cameras.count)

    @property
    def count(self) -> int:
        """Tiles of all cameras."""
        return self.columns * self.rows * self.cameras


class Binning:
    """Every tile's list of splats, front to back (kernels/tiles.slang).

    `record_count` counts the intersections of splats with tiles; `reserve` allocates arrays for them; `record_lists` writes the
    lists. A caller that has already reserved enough may record both at once and read `isect_count` later: if it exceeds
    `capacity`, the lists are incomplete. The same holds for `record_max_tile_count` and segments.

    Args:
        by_depth: sort splats by depth; if False, by index.
        options: decide where splats are visible, and if lists also hold each element's intersection (`Options.per_isect`).
        capacity: intersections to `reserve` arrays for.
    """

    def __init__(
        self,
        device: Device,
        splats: Splats,
        grid: TileGrid,
        options: Options | None = None,
        *,
        by_depth: bool = True,
        capacity: int = 0,
    ) -> None:
        self.splats = splats
        self.grid = grid
        self._options = options or Options(grid.tile_size)
        self._by_depth = by_depth
        # [1] uint32 on the device: splats in the largest list, after `record_max_tile_count`.
        self.max_tile_count = device.memory.full((1,), 0, np.uint32)
        self._device = device
        empty = device.memory.empty
        order = empty(splats.count, np.uint32) if by_depth else device.memory.arange(splats.count)
        self._pairs = Pairs(empty(splats.count, np.uint32), order)
        self._splat_count = device.memory.full((1,), splats.count, np.uint32)
        self._depth_sort = RadixSort(device, splats.count)
        self._sorted_order = order
        self._tile_counts = empty(splats.count, np.uint32)
        self._isect_offsets = PrefixSum(device, splats.count)
        self._offsets = empty(grid.count + 1, np.uint32)
        self.reserve(capacity)

    @property
    def isect_count(self) -> Array:
        """The number of intersections, [1] uint32 on the device; 2³² - 1 if there are more."""
        return self._isect_offsets.total

    def reserve(self, capacity: int) -> None:
        """Allocate arrays for `capacity` intersections. SplatError if lists cannot hold so many."""
        self._device.memory.limits.check_intersections(capacity)
        self.capacity = capacity
        empty = self._device.memory.empty
        per_isect, splats = self._options.per_isect, self.splats.count
        one_word = not per_isect and in_one_word(splats, self.grid.count)
        tiles = empty(capacity, np.uint32)
        ids = None if one_word else empty(capacity, np.uint32)
        of_isects = empty(capacity, np.uint32) if per_isect else None
        self._isects = Isects(tiles, ids, capacity, bits_of_splats(splats) if one_word else 0, of_isects)
        self._tile_sort = RadixSort(self._device, capacity, values=not one_word)
        self._ids = tiles if ids is None else ids
        self._list_isects: Array | None = None

    def record_count(self, recorder: Recorder) -> None:
        """Sort the splats by depth and count the tiles each one touches."""
        if self._by_depth:
            recorder.stage("sort depths")
            # A positive float's bits sort like the number.
            depths = self.splats.depths.as_uint32
            sorted_pairs, _ = self._depth_sort.record(recorder, self._pairs, self._splat_count, bits=32, given=depths)
            self._sorted_order = sorted_pairs.values
        recorder.stage("bin")
        counts = self._tile_counts
        self._dispatch(recorder, "countTiles", self.splats.count, order=self._sorted_order, tile_counts=counts)
        self._isect_offsets.record(recorder, counts)

    def record_lists(self, recorder: Recorder) -> None:
        """Write the lists."""
        recorder.stage("bin")
        before = {"order": self._sorted_order, "isect_offsets": self._isect_offsets.offsets}
        self._dispatch(recorder, "emitIsects", self.splats.count, isects=self._isects, **before)
        recorder.stage("sort tiles")
        # Intersections without a tile have the number one past the last.
        bits, pairs = self.grid.count.bit_length(), Pairs(self._isects.tiles, self._isects.ids)
        lowest = self._isects.splat_bits
        (tiles, ids), free = self._tile_sort.record(recorder, pairs, self.isect_count, bits, lowest=lowest)
        recorder.stage("bin")
        per_isect = self._options.per_isect
        self._list_isects = ids if per_isect else None
        lists = free.keys if ids is None or per_isect else None
        self._ids = ids if lists is None else lists
        isects = replace(self._isects, tiles=tiles, ids=ids)
        counted: dict[str, Any] = {"isect_count": self.isect_count, "tile_offsets": self._offsets, "tile_ids": lists}
        self._dispatch(recorder, "findTileOffsets", self.capacity + 1, isects=isects, **counted)

    def record_max_tile_count(self, recorder: Recorder) -> None:
        """Count the splats in the largest list."""
        recorder.clear(self.max_tile_count)
        counted: dict[str, Any] = {"tile_offsets": self._offsets, "max_tile_count": self.max_tile_count}
        recorder.dispatch("tiles", "findMaxTileCount", linear_groups(self.grid.count), grid=self.grid, **counted)

    def record_capacity_check(self, recorder: Recorder, status: Array, step: int, max_list_length: int = ANY_LENGTH) -> None:
        """Write an `Overflow` to `status` if the lists exceed their capacity, or one list `max_list_length`."""
        recorder.dispatch(
            "status",
            "checkCapacity",
            (1, 1, 1),
            capacity=self.capacity,
            max_list_length=max_list_length,
            step=step,
            isect_count=self.isect_count,
            max_tile_count=self.max_tile_count,
            status=status,
        )

    def lists(self, segments: int = 1) -> "TileLists":
        """The lists that `record_lists` writes, to be blended in `segments` segments."""
        rows = self._list_isects, self._sorted_order, self._isect_offsets.offsets
        return TileLists(self._offsets, self._ids, self.grid, segments, *rows)

    def _dispatch(self, recorder: Recorder, entry: str, threads: int, **arguments: Any) -> None:
        splats = self.splats
        recorder.dispatch(
            "tiles",
            entry,
            linear_groups(threads),
            splats=splats,
            ids=splats.ids,
            grid=self.grid,
            options=self._options,
            **arguments,
        )


def bits_of_splats(count: int) -> int:
    """Return the bits of the largest of `count` indices."""
    return (count - 1).bit_length()


def in_one_word(splats: int, tiles: int) -> bool:
    """Return True if 32 bits hold an intersection's tile and splat."""
    return bits_of_splats(splats) + tiles.bit_length() <= 32


@dataclass(frozen=True)
class Isects:
    """Intersections of splats with tiles, in the order of emission or sorted by tile."""

    tiles: Array  # [capacity] uint32; without `ids`, the lowest `splat_bits` are the splat's
    ids: Array | None  # [capacity] uint32 splats, or with `Options.per_isect` intersections
    capacity: int
    splat_bits: int
    splats: Array | None  # [capacity] uint32 splats, in the order of emission

    @property
    def one_word(self) -> bool:
        return self.ids is None


@dataclass(frozen=True)
class TileLists:
    """Splats by tile: the splats of tile t are ids[offsets[t]] … ids[offsets[t + 1] - 1], front to back."""

    offsets: Array  # [tiles + 1] uint32
    ids: Array  # [isects] uint32, indices of splats
    grid: TileGrid
    # Segments that lists are blended in, one dispatch each (`segments_for`).
    segments: int = 1
    # Order of gradients with a row per intersection: [isects] the intersection of each element of `ids`; [M] splats by depth,
    # and [M + 1] the first intersection of each.
    isects: Array | None = None
    order: Array | None = None
    isect_offsets: Array | None = None

    # Numbers that kernels read: elements of all lists, pixels along a tile's side, tiles along an image's x and y, images.
    capacity = property(attrgetter("ids.size"))
    tile_size = property(attrgetter("grid.tile_size"))
    columns = property(attrgetter("grid.columns"))
    rows = property(attrgetter("grid.rows"))
    cameras = property(attrgetter("grid.cameras"))


def segments_for(device: Device, max_tile_count: int) -> int:
    """The number of segments in which a device blends lists of at most `max_tile_count` splats (`Tuning.segment`)."""
    segment = device.tuning.segment
    return 1 if segment is None else max(-(-max_tile_count // segment), 1)


@dataclass(frozen=True)
class BinnedTiles:
    """Every tile's splats, front to back: the splats of tile t are ids[offsets[t]:offsets[t + 1]]."""

    offsets: Tensor  # [C · rows · columns + 1] int32
    all_ids: Tensor  # [capacity] int32, indices of splats; undefined after those of the lists
    arrays: TileLists
    isect_count: Array | None = None  # [1] uint32 on the device, by default the capacity

    @property
    def grid(self) -> TileGrid:
        return self.arrays.grid

    @cached_property
    def count(self) -> int:
        """Elements that the lists need."""
        return len(self.all_ids) if self.isect_count is None else int(self.isect_count.numpy()[0])

    def complete(self) -> bool:
        """Return True if the lists have room for all elements, and remember their number for `bin_tiles(…, expect=True)`."""
        assert self.arrays.order is not None
        sizes = self.arrays.order.size, self.grid.count
        # Views differ, so the largest number counts for a while.
        _expected[sizes] = max(self.count, _expected.get(sizes, 0) * 15 // 16)
        return self.count <= len(self.all_ids)

    @property
    def ids(self) -> Tensor:
        """Indices of splats, [isects] int32."""
        return self.all_ids[: self.count]


# Numbers of intersections by the numbers of splats and tiles; and the largest to be expected. More are counted before their
# lists are made, which costs little then and wastes no room.
_expected: Recent[int] = Recent()
_MOST_EXPECTED = 1 << 22


@forward_graph_break
def bin_tiles(
    splats: ProjectedSplats,
    width: int,
    height: int,
    options: Options,
    *,
    expect: bool = False,
    device: Device | str | None = None,
) -> BinnedTiles:
    """List the splats that any pixel of each tile can see (α ≥ 1/255), front to back. Not differentiable.

    Args:
        expect: make room for a quarter more elements than recent lists of as many splats and tiles had, if there were any,
            instead of waiting for the number. The lists may then be incomplete (`BinnedTiles.complete`).

    Raises:
        SplatError: there are more intersections than lists can hold.
    """
    device = device_for(splats.means2d, device)
    return cast(BinnedTiles, Untransformed.apply(_lists_of, splats, width, height, options, expect, device))


def _lists_of(splats: ProjectedSplats, width: int, height: int, options: Options, expect: bool, device: Device) -> BinnedTiles:
    arrays = splats.arrays(device)
    tile = options.tile_size
    grid = TileGrid(tile, int(-(-width // tile)), int(-(-height // tile)), splats.cameras)
    recent = _expected.get((arrays.count, grid.count), _MOST_EXPECTED)
    guesses = expect and recent < _MOST_EXPECTED
    binning = Binning(device, arrays, grid, options, capacity=recent + recent // 4 if guesses else 0)
    with device.recording() as recorder:
        binning.record_count(recorder)
    if not guesses:
        binning.reserve(int(binning.isect_count.numpy()[0]))
    # The number of splats bounds the length of every list; most often one segment is enough for it.
    segments = segments_for(device, splats.depths.shape[-1])
    with device.recording() as recorder:
        binning.record_lists(recorder)
        if segments > 1:
            binning.record_max_tile_count(recorder)
    if segments > 1:
        segments = segments_for(device, int(binning.max_tile_count.numpy()[0]))
    lists = binning.lists(segments)
    # torch has few operations on uint32; no index here comes near 2³¹.
    offsets, ids = (as_tensor(a, splats.depths).view(torch.int32) for a in (lists.offsets, lists.ids))
    return BinnedTiles(offsets, ids, lists, binning.isect_count)
