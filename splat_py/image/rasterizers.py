"""Blobs → picture, and back: ways to find the blobs that a pixel may see, with the same pixels.

    TileRasterizer    lists for all tiles by a radix sort, as for a scene: the kernels of blobs.slang and rasterize.slang; in
                      software CpuTileRasterizer, by a counting sort
    GroupRasterizer   one kernel, in which each tile's workgroup tests every blob (kernels/image_group.slang); in software
                      CpuGroupRasterizer, for larger tiles
    SimpleRasterizer  every pixel blends every blob (kernels/image_simple.slang)

The second needs no lists and no launches, the first no more work than there is: `rasterizer_for` chooses. The third is what the
others are measured against; `AutodiffRasterizer`, to learn from, is the same with the loop differentiated by Slang alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from splat_py.errors import SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.image.cpu_group import CpuGroupRasterizer
from splat_py.image.cpu_tiles import CpuTileRasterizer
from splat_py.image.derivatives import WithoutLists
from splat_py.image.method import Method
from splat_py.splats.data import Settings, Splats
from splat_py.splats.rasterize import Image, Rasterization
from splat_py.splats.tiles import Binning, TileGrid

# Rows of raw floats (splat/blob2d.slang): centre 2, variances 2, anisotropy, colour 3, opacity.
FLOATS: int = constant("splat/blob2d", "BLOB_FLOATS")
_GROUP_WIDTH, _GROUP_HEIGHT = (constant("parallel/short_list", f"SHORT_LIST_{side}") for side in ("WIDTH", "HEIGHT"))
_SIMPLE_BLOCKS = tuple(constant("kernels/image_simple", f"BLOCKS_{side}") for side in ("WIDE", "HIGH"))
_BLOCK_WIDTH, _BLOCK_HEIGHT = (constant("splat/block_blending", f"BLOCK_{side}") for side in ("WIDTH", "HEIGHT"))
_SIMPLE_BLOBS = constant("kernels/image_simple", "MOST_BLOBS")
_AUTODIFF_SIDE = constant("kernels/image_autodiff", "SIDE")
# What tile lists get beyond what was needed, so that blobs that grow rarely run out of capacity.
_HEADROOM = 1.5
# Blobs × workgroups of GroupRasterizer up to which one kernel is faster than several. In software, measured, it takes half of
# their processor time up to here, and more blobs or pixels are worth several cores; on a GPU, where launches cost more than
# tests, estimated.
_GROUP_LIMIT_SOFTWARE, _GROUP_LIMIT_GPU = 30_000, 1_000_000


class Rasterizer(Protocol):
    """Draws N blobs on pictures of one size.

    `reserve` has to be called before the first recording, and again when a step that `record_check` watches has run out.
    """

    def reserve(self, parameters: Array) -> None:
        """Wait for the device, and allocate the lists that these blobs [9, N] need."""

    def record_check(self, recorder: Recorder, status: Array, step: int) -> None:
        """Note in `status` if the lists of this recording lack capacity (kernels/status.slang)."""

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        """Blobs [9, N] → picture [H, W, 3]."""

    def record_lists(self, recorder: Recorder, parameters: Array) -> None:
        """What comes before `record_check` and `record_gradients`."""

    def record_gradients(self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array) -> None:
        """Overwrite `v_parameters` [9, N] with the gradient of the mean squared error against `target` [H, W, 3]."""

    def record_backward(self, recorder: Recorder, parameters: Array, v_image: Array, v_parameters: Array) -> None:
        """Overwrite `v_parameters` [9, N] with the gradient from ∂L/∂image [H, W, 3]. `record_render` has run before."""


def rasterizer_for(device: Device, blobs: int, width: int, height: int, method: Method = "auto") -> Rasterizer:
    """The one that `method` names, or the faster one of "tiles" and "group".

    Raises:
        SplatError: the method means nothing, there are too many blobs for it, or the picture is too large for the device.
    """
    device.memory.limits.check_images(1, height, width)
    if method == "auto":
        groups = -(-width // _GROUP_WIDTH) * -(-height // _GROUP_HEIGHT)
        limit = _GROUP_LIMIT_SOFTWARE if device.software else _GROUP_LIMIT_GPU
        method = "group" if blobs * groups <= limit else "tiles"
    kinds: dict[str, Callable[..., Rasterizer]] = {
        "tiles": CpuTileRasterizer if device.software else TileRasterizer,
        "group": CpuGroupRasterizer if device.software else GroupRasterizer,
        "simple": SimpleRasterizer,
    }
    if method not in kinds:
        raise SplatError(f"method is {method!r}; use auto, {', '.join(kinds)}")
    return kinds[method](device, blobs, width, height)


class TileRasterizer:
    """Blobs are evaluated once and sorted by tile.

    Args:
        native_atomics: whether gradients add up by float atomics or by compare-and-swap; by default what the device has.
    """

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        native = device.native_float_atomics if native_atomics is None else native_atomics
        self._device, self._blobs, self._width, self._height = device, blobs, width, height
        empty, full = device.memory.empty, device.memory.full
        tile = device.tuning.tile_size
        self._settings = Settings(tile, native_atomics=native)
        self._grid = TileGrid(tile, -(-width // tile), -(-height // tile), 1)
        # Nothing culls a blob.
        self._splats = replace(Splats.empty(device, 1, blobs), radii=full((1, blobs, 2), 1, np.int32))
        self._colors, self._backgrounds = empty((1, blobs, 3)), full((1, 3), 0)
        self._v_splats = empty((1, blobs, FLOATS))
        self._image = Image.empty(device, 1, height, width, 3)
        self._v_image, self._v_alphas = empty((1, height, width, 3)), full((1, height, width, 1), 0)
        self._binning = Binning(device, self._splats, self._grid, by_depth=False)
        # The last one that was recorded, for its backward pass.
        self._rasterization: Rasterization | None = None

    @property
    def picture(self) -> Array:
        """[1, H, W, 3] what `record_gradients` has compared with the target."""
        return self._image.colors

    @property
    def isect_count(self) -> Array:
        """[1] uint32 on the device: intersections of blobs with tiles."""
        return self._binning.isect_count

    def reserve(self, parameters: Array) -> None:
        """See `Rasterizer`."""
        recorder = self._device.record()
        self._record_evaluation(recorder, parameters)
        self._binning.record_count(recorder)
        recorder.submit()
        needed = int(self._binning.isect_count.numpy()[0])
        if needed > self._binning.capacity or self._binning.capacity == 0:
            self.reserve_isects(max(int(needed * _HEADROOM), 1))

    def reserve_isects(self, capacity: int) -> None:
        """Lists for so many intersections of blobs with tiles."""
        self._binning.reserve(capacity)

    def record_check(self, recorder: Recorder, status: Array, step: int) -> None:
        """See `Rasterizer`."""
        self._binning.record_capacity_check(recorder, status, step)

    def record_lists(self, recorder: Recorder, parameters: Array) -> None:
        """See `Rasterizer`."""
        self._record_evaluation(recorder, parameters)
        self._binning.record_count(recorder)
        self._binning.record_lists(recorder)

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        """See `Rasterizer`."""
        self.record_lists(recorder, parameters)
        self._record_rasterization(recorder, image)

    def record_gradients(self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array) -> None:
        """See `Rasterizer`."""
        self._record_rasterization(recorder, self._image.colors)
        recorder.stage("loss")
        buffers = {"target": target, "image": self._image.colors, "vImage": self._v_image}
        self._dispatch(recorder, "differentiateLoss", self._width * self._height, buffers)
        self.record_backward(recorder, parameters, self._v_image, v_parameters)

    def record_backward(self, recorder: Recorder, parameters: Array, v_image: Array, v_parameters: Array) -> None:
        """See `Rasterizer`."""
        assert self._rasterization is not None
        self._rasterization.record_backward(recorder, v_image, self._v_alphas, self._v_splats, self._settings)
        recorder.stage("blob derivatives")
        buffers = {"parameters": parameters, "vBlobs": self._v_splats, "vRaw": v_parameters}
        self._dispatch(recorder, "differentiateBlobs", self._blobs, buffers)

    def _record_rasterization(self, recorder: Recorder, image: Array) -> None:
        """Onto an image [H, W, 3]."""
        onto = replace(self._image, colors=image)
        parts = self._splats, self._colors, self._backgrounds, self._binning.lists(), self._grid, onto
        self._rasterization = Rasterization.of(self._device, *parts, Stop="ImageStop")
        self._rasterization.record(recorder)

    def _record_evaluation(self, recorder: Recorder, parameters: Array) -> None:
        recorder.stage("evaluate")
        splats = self._splats
        buffers = {
            "parameters": parameters,
            "means2d": splats.means2d,
            "conics": splats.conics,
            "opacities": splats.opacities,
            "colors": self._colors,
        }
        self._dispatch(recorder, "evaluateBlobs", self._blobs, buffers)

    def _dispatch(self, recorder: Recorder, entry: str, threads: int, buffers: dict[str, Array]) -> None:
        uniforms = _uniforms(self._blobs, self._width, self._height, 1 / (self._width * self._height))
        recorder.dispatch("blobs", entry, linear_groups(threads), uniforms, buffers)


class _SingleKernel(WithoutLists):
    """Blobs to picture and back in a kernel each, without lists in device memory. Arguments as for `TileRasterizer`."""

    # Module and entry points, and the pixels of a workgroup.
    _module: str
    _render: str
    _differentiate: str
    _group: tuple[int, int]

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        self._blobs, self._width, self._height = blobs, width, height
        self._native = device.native_float_atomics if native_atomics is None else native_atomics
        self._grid = (-(-width // self._group[0]), -(-height // self._group[1]), 1)
        self._saved: dict[str, Array] = {}
        self._constants: dict[str, int] = {}

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        """See `Rasterizer`."""
        recorder.stage("render")
        buffers = {"parameters": parameters, "image": image, **self._saved}
        uniforms = _uniforms(self._blobs, self._width, self._height, 1.0)
        recorder.dispatch(self._module, self._render, self._grid, uniforms, buffers, **self._constants)

    def _record_derivatives(
        self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array, weight: float, linear: bool
    ) -> None:
        recorder.stage("derivatives")
        recorder.clear(v_parameters)
        buffers = {
            "parameters": parameters,
            "target": target,
            "vParameters": v_parameters,
            "vParameterBits": v_parameters.bits,
            **self._saved,
        }
        recorder.dispatch(
            self._module,
            self._differentiate,
            self._grid,
            _uniforms(self._blobs, self._width, self._height, weight),
            buffers,
            NATIVE_ATOMICS=self._native,
            LINEAR=linear,
            **self._constants,
        )


class GroupRasterizer(_SingleKernel):
    """A workgroup of 8×4 threads a tile makes its own short-list. Arguments as for `TileRasterizer`."""

    _module, _render, _differentiate = "image_group", "renderByGroup", "differentiateByGroup"
    _group = (_GROUP_WIDTH, _GROUP_HEIGHT)

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        super().__init__(device, blobs, width, height, native_atomics)
        empty = device.memory.empty
        self._saved = {"finalT": empty((height, width)), "nContrib": empty((height, width), np.uint32)}


class SimpleRasterizer(_SingleKernel):
    """Every pixel blends every blob. Arguments as for `TileRasterizer`.

    Raises:
        SplatError: there are more than 256 blobs.
    """

    _module, _render, _differentiate = "image_simple", "renderSimply", "differentiateSimply"
    _group = (_SIMPLE_BLOCKS[0] * _BLOCK_WIDTH, _SIMPLE_BLOCKS[1] * _BLOCK_HEIGHT)

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        _check_few(blobs)
        super().__init__(device, blobs, width, height, native_atomics)


class AutodiffRasterizer(_SingleKernel):
    """Every pixel blends every blob, and Slang differentiates the loop by itself. Arguments as for `TileRasterizer`.

    To learn from, and to check the others against: its memory grows with the number of blobs, each number of them is compiled
    anew, and every pixel adds its gradient by itself.

    Raises:
        SplatError: there are more than 256 blobs.
    """

    _module, _render, _differentiate = "image_autodiff", "renderByAutodiff", "differentiateByAutodiff"
    _group = (_AUTODIFF_SIDE, _AUTODIFF_SIDE)

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        _check_few(blobs)
        super().__init__(device, blobs, width, height, native_atomics)
        self._constants = {"BLOBS": blobs}


def _check_few(blobs: int) -> None:
    if blobs > _SIMPLE_BLOBS:
        raise SplatError(f"the simple rasteriser takes at most {_SIMPLE_BLOBS} blobs, not {blobs}; use tiles or group")


def _uniforms(blobs: int, width: int, height: int, weight: float) -> dict[str, int | float]:
    return {"blobs": blobs, "width": width, "height": height, "weight": weight}
