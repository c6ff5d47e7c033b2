"""Blobs → picture, and back: two ways to find the blobs that a tile's pixels may see, with the same pixels.

    GroupRasterizer  one kernel, in which each tile's workgroup looks at every blob (kernels/image_group.slang)
    TileRasterizer   lists for all tiles by a radix sort, as for a scene (kernels/image_tiles.slang)

The first needs no lists and no launches, the second no more work than there is: `rasterizer_for` chooses.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.splats.data import Splats
from splat_py.splats.tiles import ANY_LENGTH, Binning, TileGrid

# Rows of raw floats (splat/blob2d.slang): centre 2, variances 2, anisotropy, colour 3, opacity.
FLOATS = 9
# As in parallel/short_list.slang.
_GROUP_WIDTH, _GROUP_HEIGHT = 8, 4
# Floats of a blob as the pixels see it, and of its packed form (kernels/image_tiles.slang).
_ROW, _PACKED = 9, 12
# What tile lists get beyond what was needed, so that blobs that grow rarely run out of room.
_HEADROOM = 1.5
# Blobs × workgroups up to which every workgroup may look at every blob. In software, measured, sorting wins from 2,000 on; on
# a GPU, where launches cost more than tests, estimated.
_GROUP_LIMIT_SOFTWARE, _GROUP_LIMIT_GPU = 1_000, 1_000_000


class Rasterizer(Protocol):
    """Draws N blobs on pictures of one size.

    `reserve` has to be called before the first recording, and again when a step that `record_check` watches has run out.
    """

    def reserve(self, parameters: Array) -> None:
        """Wait for the device, and get room for the lists that these blobs [9, N] need."""

    def record_check(self, recorder: Recorder, status: Array, step: int) -> None:
        """Note in `status` if the lists of this recording lack room (kernels/status.slang)."""

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        """Blobs [9, N] → picture [H, W, 3]."""

    def record_lists(self, recorder: Recorder, parameters: Array) -> None:
        """What comes before `record_check` and `record_gradients`."""

    def record_gradients(
        self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array, linear: bool = False
    ) -> None:
        """Overwrite `v_parameters` [9, N] with the gradient of the mean squared error against `target` [H, W, 3]; or if
        `linear`, from `target` = ∂L/∂image."""


def rasterizer_for(device: Device, blobs: int, width: int, height: int) -> Rasterizer:
    """The faster one."""
    groups = -(-width // _GROUP_WIDTH) * -(-height // _GROUP_HEIGHT)
    limit = _GROUP_LIMIT_SOFTWARE if device.software else _GROUP_LIMIT_GPU
    kind = GroupRasterizer if blobs * groups <= limit else TileRasterizer
    return kind(device, blobs, width, height)


class GroupRasterizer:
    """A workgroup of 8×4 threads a tile makes its own short-list.

    Args:
        native_atomics: whether gradients add up by float atomics or by compare-and-swap; by default what the device has.
    """

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        self._blobs, self._width, self._height = blobs, width, height
        self._native = device.native_float_atomics if native_atomics is None else native_atomics
        self._grid = (-(-width // _GROUP_WIDTH), -(-height // _GROUP_HEIGHT), 1)
        self._pixels = _pixel_arrays(device, width, height)

    def reserve(self, parameters: Array) -> None:
        """Nothing: lists are group-shared and come in as many parts as they need."""

    def record_check(self, recorder: Recorder, status: Array, step: int) -> None:
        """Nothing can lack room."""

    def record_lists(self, recorder: Recorder, parameters: Array) -> None:
        """Nothing: the kernel makes them."""

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        """See `Rasterizer`."""
        recorder.stage("render")
        recorder.dispatch(
            "image_group",
            "renderByGroup",
            self._grid,
            self._uniforms(1.0),
            self._pixels | {"parameters": parameters, "image": image},
        )

    def record_gradients(
        self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array, linear: bool = False
    ) -> None:
        """See `Rasterizer`."""
        recorder.stage("derivatives")
        recorder.clear(v_parameters)
        recorder.dispatch(
            "image_group",
            "differentiateByGroup",
            self._grid,
            self._uniforms(1.0 if linear else 1.0 / (self._width * self._height)),
            self._pixels
            | {
                "parameters": parameters,
                "target": target,
                "vParameters": v_parameters,
                "vParameterBits": v_parameters.bits,
            },
            NATIVE_ATOMICS=self._native,
            LINEAR=linear,
        )

    def _uniforms(self, weight: float) -> dict[str, int | float]:
        columns, rows, _ = self._grid
        return _uniforms(self._blobs, self._width, self._height, columns, rows, weight)


class TileRasterizer:
    """Blobs are evaluated once and sorted by tile. Arguments as for `GroupRasterizer`."""

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        tuning = device.tuning
        self._blobs, self._width, self._height = blobs, width, height
        self._native = device.native_float_atomics if native_atomics is None else native_atomics
        self._device = device
        tile = tuning.tile_size
        self._grid = TileGrid(tile, -(-width // tile), -(-height // tile), 1)
        self._specialisation = {"TILE": tile, "PIXELS": min(tuning.pixels_per_thread, tile**2 // 8)}
        self._splats = Splats.empty(device, 1, blobs)
        # Every blob is in front of the camera, so to say.
        self._splats.radii.write(np.ones(self._splats.radii.shape, np.int32))
        self._packed = device.memory.empty((blobs, _PACKED))
        self._v_blobs = device.memory.empty((blobs, _ROW))
        self._binning = _IndexOrderBinning(device, self._splats, self._grid)
        self._pixels = _pixel_arrays(device, width, height)

    def reserve(self, parameters: Array) -> None:
        """See `Rasterizer`."""
        recorder = self._device.record()
        self._record_evaluation(recorder, parameters)
        self._binning.record_count(recorder)
        recorder.submit()
        needed = int(self._binning.isect_count.numpy()[0])
        if needed > self._binning.capacity or self._binning.capacity == 0:
            self._binning.reserve(max(int(needed * _HEADROOM), 1))

    def record_check(self, recorder: Recorder, status: Array, step: int) -> None:
        """See `Rasterizer`."""
        recorder.dispatch(
            "status",
            "checkCapacity",
            (1, 1, 1),
            {"capacity": self._binning.capacity, "maxListLength": ANY_LENGTH, "step": step},
            {"isectCount": self._binning.isect_count, "maxTileCount": self._binning.max_tile_count, "status": status},
        )

    def record_lists(self, recorder: Recorder, parameters: Array) -> None:
        """See `Rasterizer`."""
        self._record_evaluation(recorder, parameters)
        self._binning.record_count(recorder)
        self._binning.record_lists(recorder)

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        """See `Rasterizer`."""
        self.record_lists(recorder, parameters)
        recorder.stage("render")
        self._dispatch_tiles(recorder, "renderByTiles", 1.0, parameters=parameters, image=image)

    def record_gradients(
        self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array, linear: bool = False
    ) -> None:
        """See `Rasterizer`."""
        recorder.stage("derivatives")
        recorder.clear(self._v_blobs)
        self._dispatch_tiles(
            recorder,
            "differentiateByTiles",
            1.0 if linear else 1.0 / (self._width * self._height),
            {"NATIVE_ATOMICS": self._native, "LINEAR": linear},
            parameters=parameters,
            target=target,
            vBlobs=self._v_blobs,
            vBlobBits=self._v_blobs.bits,
        )
        recorder.stage("blob derivatives")
        recorder.dispatch(
            "image_tiles",
            "differentiateBlobs",
            linear_groups(self._blobs),
            self._uniforms(1.0),
            {"parameters": parameters, "vBlobValues": self._v_blobs, "vParameterValues": v_parameters},
        )

    def _record_evaluation(self, recorder: Recorder, parameters: Array) -> None:
        recorder.stage("evaluate")
        recorder.dispatch(
            "image_tiles",
            "evaluateBlobs",
            linear_groups(self._blobs),
            self._uniforms(1.0),
            {
                "parameters": parameters,
                "means2d": self._splats.means2d,
                "conics": self._splats.conics,
                "opacities": self._splats.opacities,
                "packedBlobs": self._packed,
            },
        )

    def _dispatch_tiles(
        self,
        recorder: Recorder,
        entry: str,
        weight: float,
        constants: dict[str, Any] | None = None,
        **buffers: Array,
    ) -> None:
        tiles = self._binning.lists()
        lists = {"packedBlobs": self._packed, "tileOffsets": tiles.offsets, "tileIds": tiles.ids}
        recorder.dispatch(
            "image_tiles",
            entry,
            (self._grid.columns, self._grid.rows, 1),
            self._uniforms(weight),
            self._pixels | lists | buffers,
            **self._specialisation,
            **(constants or {}),
        )

    def _uniforms(self, weight: float) -> dict[str, int | float]:
        return _uniforms(self._blobs, self._width, self._height, self._grid.columns, self._grid.rows, weight)


class _IndexOrderBinning(Binning):
    """Tile lists of splats that need no sorting by depth: their index is their depth."""

    def __init__(self, device: Device, splats: Splats, grid: TileGrid) -> None:
        super().__init__(device, splats, grid)
        self._order.write(np.arange(splats.count, dtype=np.uint32))

    def record_count(self, recorder: Recorder) -> None:
        """Count the tiles that each splat touches."""
        recorder.stage("bin")
        self._dispatch(recorder, "countTiles", self.splats.count)
        self._isect_offsets.record(recorder, self._tile_counts)


def _pixel_arrays(device: Device, width: int, height: int) -> dict[str, Array]:
    """What a pixel keeps for the walk back: eight bytes."""
    empty = device.memory.empty
    return {"finalT": empty((height, width)), "nContrib": empty((height, width), np.uint32)}


def _uniforms(blobs: int, width: int, height: int, columns: int, rows: int, weight: float) -> dict[str, int | float]:
    return {
        "blobs": blobs,
        "width": width,
        "height": height,
        "columns": columns,
        "rows": rows,
        "weight": weight,
    }
