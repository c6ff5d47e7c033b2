"""Rasterisers that draw blobs into a picture, and differentiate it, by one of three methods with the same pixels.

    tiles     lists for all tiles by a radix sort, as for a scene (kernels/blobs.slang, tiles.slang, rasterize.slang)
    group     one kernel, in which each tile's workgroup tests every blob (kernels/image_group.slang)
    autodiff  every pixel blends every blob, and Slang differentiates the loop by itself (kernels/blobs.slang)

`group` needs no lists and few launches, `tiles` does no more work than necessary: "auto" chooses between them. Forward
derivatives are always by `tiles`. `autodiff` is for learning, and for checks of the others: its memory grows with the number of
blobs, 400 at most; every number of blobs is compiled anew, and every pixel adds its own gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from splat_py.base.arguments import background_of
from splat_py.base.errors import SplatError
from splat_py.base.fields import require_number, shown
from splat_py.gpu.accumulation import alert_not_deterministic
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import (
    Stage,
    Tangents,
    first_derivative,
    forward_graph_break,
    has_derivative,
    has_tangent,
    load_state,
    save_state,
)
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.gpu.tensors import as_tensor, is_shared
from splat_py.image.options import Method
from splat_py.render.images import Image, Rasterization
from splat_py.render.options import Options
from splat_py.render.splats import Splats
from splat_py.render.tiles import Binning, TileGrid

# Rows of raw floats (splat/blob2d.slang): centre 2, variances 2, anisotropy, colour 3, opacity.
FLOATS: int = constant("splat/blob2d", "BLOB_FLOATS")
_GROUP_WIDTH, _GROUP_HEIGHT = (constant("parallel/short_list", f"SHORT_LIST_{side}") for side in ("WIDTH", "HEIGHT"))
_AUTODIFF_SIDE = constant("kernels/blobs", "SIDE")
_AUTODIFF_BLOBS = 400
# Blobs × workgroups of GroupRasterizer up to which a GPU is faster with one kernel than with several; estimated.
_GROUP_LIMIT = 1_000_000


@dataclass(frozen=True)
class Blobs:
    """Blobs, and the size of their picture: `Blobs` in kernels/blobs.slang."""

    raw: Array  # [9, N]
    count: int
    width: int
    height: int


class Rasterizer:
    """Draws N blobs on pictures of one size.

    Call `reserve` before the first recording, and again if `record_lists` has noted that lists ran out; without lists in device
    memory they never do. Gradients add up by float atomics or by compare-and-swap; by default by what the device has.
    """

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        self.device, self._count, self._width, self._height = device, blobs, width, height
        self._native = device.native_float_atomics if native_atomics is None else native_atomics
        self._allocate()

    def _allocate(self) -> None:
        """Allocate the arrays that live as long as the rasteriser; SplatError if there are too many blobs for it."""

    def reserve(self, parameters: Array) -> None:
        """Wait for the device, and allocate the lists that these blobs [9, N] need."""

    def record_lists(self, recorder: Recorder, parameters: Array, status: Array | None = None, step: int = 0) -> None:
        """Record the lists that `record_gradients` reads, and note in `status` if lists of this step lack capacity
        (kernels/status.slang)."""

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        """Draw blobs [9, N] into a picture [H, W, 3]."""
        raise NotImplementedError

    def record_gradients(self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array) -> None:
        """Overwrite `v_parameters` [9, N] with the gradient of the mean squared error against `target` [H, W, 3]."""
        raise NotImplementedError

    def record_backward(self, recorder: Recorder, parameters: Array, v_image: Array, v_parameters: Array) -> None:
        """Overwrite `v_parameters` [9, N] with the gradient from ∂L/∂image [H, W, 3]; call `record_render` before."""
        raise NotImplementedError

    def _blobs(self, parameters: Array) -> Blobs:
        return Blobs(parameters, self._count, self._width, self._height)


class TileRasterizer(Rasterizer):
    """Evaluates blobs once and sorts them by tile."""

    def _allocate(self) -> None:
        device, blobs, width, height = self.device, self._count, self._width, self._height
        empty, full = device.memory.empty, device.memory.full
        tile = device.tuning.tile_size
        self._options = Options(tile, native_atomics=self._native, cpu_driver=device.tuning.cpu_driver, stop="ImageStop")
        self._grid = TileGrid(tile, -(-width // tile), -(-height // tile), 1)
        # No blob is culled.
        self._splats = replace(Splats.empty(device, 1, blobs), radii=full((1, blobs, 2), 1, np.int32))
        self._colors, self._backgrounds = empty((1, blobs, 3)), full((1, 3), 0)
        self._v_splats = empty((1, blobs, FLOATS))
        self._image = Image.empty(device, 1, height, width, 3)
        self._v_image, self._v_alphas = empty((1, height, width, 3)), full((1, height, width, 1), 0)
        self._binning = Binning(device, self._splats, self._grid, by_depth=False)
        # The one recorded last, for its backward pass.
        self._rasterization: Rasterization | None = None

    @property
    def picture(self) -> Array:
        """The picture [1, H, W, 3] that `record_gradients` has compared with the target."""
        return self._image.colors

    def reserve(self, parameters: Array) -> None:
        with self.device.recording() as recorder:
            self._record_evaluation(recorder, parameters, self._splats, self._colors)
            self._binning.record_count(recorder)
        needed = int(self._binning.isect_count.numpy()[0])
        if needed > self._binning.capacity or self._binning.capacity == 0:
            # Half as much again, so that growing blobs rarely exceed it.
            self.reserve_isects(max(int(needed * 1.5), 1))

    def reserve_isects(self, capacity: int) -> None:
        """Allocate lists for so many intersections of blobs with tiles."""
        self._binning.reserve(capacity)

    def record_lists(self, recorder: Recorder, parameters: Array, status: Array | None = None, step: int = 0) -> None:
        self._record_evaluation(recorder, parameters, self._splats, self._colors)
        self._binning.record_count(recorder)
        self._binning.record_lists(recorder)
        if status is not None:
            self._binning.record_capacity_check(recorder, status, step)

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        self.record_lists(recorder, parameters)
        self._rasterize_onto(image).record(recorder)

    def record_gradients(self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array) -> None:
        self._rasterize_onto(self._image.colors).record(recorder)
        recorder.stage("loss")
        recorder.dispatch(
            "blobs",
            "differentiateLoss",
            linear_groups(self._width * self._height),
            blobs=self._blobs(parameters),
            target=target,
            image=self._image.colors,
            v_image=self._v_image,
            weight=1 / (self._width * self._height),
        )
        self.record_backward(recorder, parameters, self._v_image, v_parameters)

    def record_backward(self, recorder: Recorder, parameters: Array, v_image: Array, v_parameters: Array) -> None:
        assert self._rasterization is not None
        self._rasterization.record_backward(recorder, v_image, self._v_alphas, self._v_splats)
        recorder.stage("blob derivatives")
        groups, blobs = linear_groups(self._count), self._blobs(parameters)
        recorder.dispatch("blobs", "differentiateBlobs", groups, blobs=blobs, v_splats=self._v_splats, v_raw=v_parameters)

    def record_tangents(self, recorder: Recorder, parameters: Array, d_parameters: Array, image: Array, d_image: Array) -> None:
        """Draw blobs [9, N] into a picture [H, W, 3], and their tangents in K directions [9, K · N] into the picture's,
        [K, H, W, 3]; call `record_lists` before."""
        scratch, directions = recorder.scratch, d_parameters.shape[1] // self._count
        opacities, conics = scratch((directions, self._count)), scratch((directions, self._count, 3))
        splats = Splats(scratch((directions, self._count, 2)), opacities, conics, opacities, self._splats.radii)
        colors, backgrounds = scratch((directions, self._count, 3)), recorder.zeros((directions, 3))
        tangents = replace(self._blobs(d_parameters), count=directions * self._count)
        self._record_evaluation(recorder, parameters, splats, colors, tangents)
        work = self._rasterize_onto(image)
        along = replace(work.image, colors=d_image, alphas=scratch((directions, *work.image.alphas.shape)))
        work.record_tangents(recorder, replace(work, splats=splats, colors=colors, backgrounds=backgrounds, image=along))

    def _rasterize_onto(self, image: Array) -> Rasterization:
        """Return what rasterises onto an image [H, W, 3], and keep it for the backward pass."""
        onto = replace(self._image, colors=image)
        parts = self._splats, self._colors, self._backgrounds, self._binning.lists(), onto
        self._rasterization = Rasterization(self.device, *parts, self._options)
        return self._rasterization

    def _record_evaluation(
        self, recorder: Recorder, parameters: Array, splats: Splats, colors: Array, tangents: Blobs | None = None
    ) -> None:
        """Write splats, or their tangents from those of blobs."""
        recorder.stage("evaluate")
        recorder.dispatch(
            "blobs",
            "evaluateBlobTangents" if tangents else "evaluateBlobs",
            linear_groups(splats.count),
            blobs=self._blobs(parameters),
            d_blobs=tangents,
            means2d=splats.means2d,
            conics=splats.conics,
            opacities=splats.opacities,
            colors=colors,
        )


class _SingleKernel(Rasterizer):
    """Draws blobs in one kernel and differentiates them in another, without lists in device memory."""

    # Module and entry points, and the pixels of a workgroup.
    _module: str
    _render: str
    _differentiate: str
    _group: tuple[int, int]

    def _allocate(self) -> None:
        self._grid = (-(-self._width // self._group[0]), -(-self._height // self._group[1]), 1)
        # Arrays that the kernels save for each pixel, and values of `extern` names.
        self._others: dict[str, Any] = {}

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        recorder.stage("render")
        recorder.dispatch(self._module, self._render, self._grid, blobs=self._blobs(parameters), image=image, **self._others)

    def record_gradients(self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array) -> None:
        self._record_derivatives(recorder, parameters, target, v_parameters, 1.0 / (self._width * self._height), False)

    def record_backward(self, recorder: Recorder, parameters: Array, v_image: Array, v_parameters: Array) -> None:
        self._record_derivatives(recorder, parameters, v_image, v_parameters, 1.0, True)

    def _record_derivatives(
        self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array, weight: float, linear: bool
    ) -> None:
        """Record the derivatives; `target` is a picture or, if `linear`, ∂L/∂image."""
        recorder.stage("derivatives")
        recorder.clear(v_parameters)
        recorder.dispatch(
            self._module,
            self._differentiate,
            self._grid,
            blobs=self._blobs(parameters),
            target=target,
            weight=weight,
            v_parameters=v_parameters,
            v_parameter_bits=v_parameters.as_uint32,
            NATIVE_ATOMICS=self._native,
            LINEAR=linear,
            **self._others,
        )


class GroupRasterizer(_SingleKernel):
    """Makes a short list for each tile, in a workgroup of 8×4 threads."""

    _module, _render, _differentiate = "image_group", "renderByGroup", "differentiateByGroup"
    _group = (_GROUP_WIDTH, _GROUP_HEIGHT)

    def _allocate(self) -> None:
        super()._allocate()
        empty, size = self.device.memory.empty, (self._height, self._width)
        self._others = {"final_T": empty(size), "n_contrib": empty(size, np.uint32)}


class AutodiffRasterizer(_SingleKernel):
    """Blends every blob in every pixel, 400 blobs at most; Slang differentiates the loop by itself."""

    _module, _render, _differentiate = "blobs", "renderByAutodiff", "differentiateByAutodiff"
    _group = (_AUTODIFF_SIDE, _AUTODIFF_SIDE)

    def _allocate(self) -> None:
        if self._count > _AUTODIFF_BLOBS:
            raise SplatError(f"autodiff accepts at most {_AUTODIFF_BLOBS} blobs, not {self._count}; use tiles or group")
        super()._allocate()
        self._others = {"BLOBS": self._count}


RASTERIZERS: dict[str, Callable[..., Rasterizer]] = {
    "tiles": TileRasterizer,
    "group": GroupRasterizer,
    "autodiff": AutodiffRasterizer,
}


def rasterizer_for(device: Device, blobs: int, width: int, height: int, method: Method = "auto") -> Rasterizer:
    """Return the rasteriser that `method` names, or the faster one of "tiles" and "group" for "auto". SplatError if there is no
    such method, there are too many blobs for it, or the picture is too large for the device."""
    device.memory.limits.check_images(1, height, width)
    if method == "auto":
        groups = -(-width // _GROUP_WIDTH) * -(-height // _GROUP_HEIGHT)
        method = "group" if not device.software and blobs * groups <= _GROUP_LIMIT else "tiles"
    if not isinstance(method, str) or method not in RASTERIZERS:
        raise SplatError(f"method is {shown(method)}; use auto, {', '.join(RASTERIZERS)}")
    return RASTERIZERS[method](device, blobs, width, height)


def draw(device: Device, parameters: Array, width: int, height: int) -> Array:
    """Draw raw blobs [9, N] on the device into a picture [height, width, 3]."""
    rasterizer = rasterizer_for(device, parameters.shape[1], width, height)
    rasterizer.reserve(parameters)
    image = device.memory.empty((height, width, 3))
    with device.recording() as recorder:
        rasterizer.record_render(recorder, parameters, image)
    return image


@forward_graph_break
def render(
    params: torch.Tensor,
    width: int,
    height: int,
    *,
    method: Method = "auto",
    background: torch.Tensor | ArrayLike = (0.0, 0.0, 0.0),
) -> torch.Tensor:
    """Draw blobs. Differentiable once, backward or forward (torch.func.jvp and jacfwd).

    Args:
        params: [9, N] float32 raw floats, any values: rows centre x, y; variance x, y; anisotropy; red, green, blue; opacity
            (squashed by splat/blob2d.slang). The index is the order of depth, 0 in front.
        width, height: size of the picture, any numbers of pixels.
        method: "tiles", "group", "auto" for the faster one of these, or "autodiff" for at most 400 blobs: see
            `splat_py.image.rasterizers`.
        background: rgb [3] from 0 to 1, behind the blobs; differentiable if it is a tensor. Any colour but black needs a second
            render, of the blobs' coverage.

    Returns:
        [height, width, 3] float32, 0 to 1, on the tensor's device.

    Raises:
        SplatError: the shape, type or size is wrong; or, in the backward pass, torch must be deterministic.
    """
    if not isinstance(params, torch.Tensor) or params.dtype != torch.float32:
        raise SplatError(f"params is {getattr(params, 'dtype', type(params).__name__)}; it must be a float32 tensor")
    check_shape(params.shape)
    size = check_size(width, height)
    background_of(background)
    behind = torch.as_tensor(background, dtype=torch.float32, device=params.device)
    picture, _ = _Render.apply(has_tangent(params), params, *size, method)
    # Inside a transformation torch wraps `behind` too, even where it has no derivative.
    if not has_derivative(background) and not behind.any():
        return picture
    # White blobs on black show their coverage; a raw colour of 100 is squashed to exactly 1.
    white = torch.cat([params[:5], torch.full_like(params[5:8], 100.0), params[8:]])
    coverage, _ = _Render.apply(has_tangent(white), white, *size, method)
    return picture + (1 - coverage) * behind


class _Render(Stage):
    @staticmethod
    def forward(pushed: bool, params: torch.Tensor, width: int, height: int, method: Method) -> tuple[torch.Tensor, Any]:
        device = device_for(params)
        rasterizer = rasterizer_for(device, params.shape[1], width, height, "tiles" if pushed else method)
        parameters, image = device.memory.array(params), device.memory.empty((height, width, 3))
        rasterizer.reserve(parameters)
        with device.recording() as recorder:
            if pushed and is_shared(image, params):
                # `jvp` follows, which draws, too.
                rasterizer.record_lists(recorder, parameters)
            else:
                rasterizer.record_render(recorder, parameters, image)
        return as_tensor(image, params), (rasterizer, parameters, image)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        save_state(ctx, output[1], inputs[1])

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor, None]:
        rasterizer, parameters, image = load_state(ctx)

        def push(directions: tuple[int, ...], given: list[Any]) -> tuple[torch.Tensor]:
            memory = parameters.memory
            d_parameters = memory.array(given[0].movedim(-2, 0).flatten(1))
            d_image = memory.empty((*directions, *image.shape))
            with rasterizer.device.recording() as recorder:
                rasterizer.record_tangents(recorder, parameters, d_parameters, image, d_image)
            return (as_tensor(d_image, given[0]),)

        return *Tangents.of(push, ctx.saved_tensors[1:], tangents[1:]), None

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v_image: torch.Tensor, _: None) -> tuple[torch.Tensor | None, ...]:
        alert_not_deterministic("image.render")
        rasterizer, parameters, _ = load_state(ctx)
        of_pixels, v_params = parameters.memory.array(v_image), parameters.memory.empty(parameters.shape)
        with rasterizer.device.recording() as recorder:
            rasterizer.record_backward(recorder, parameters, of_pixels, v_params)
        return None, as_tensor(v_params, v_image), None, None, None


def check_shape(shape: tuple[int, ...]) -> None:
    """Raise SplatError unless raw blobs of this shape are [9, N]."""
    if len(shape) != 2 or shape[0] != FLOATS or shape[1] == 0:
        raise SplatError(f"params has shape {list(shape)}; it must be [9, N] with at least one blob")


def check_size(width: int, height: int) -> tuple[int, int]:
    """Return both numbers as integers; SplatError unless they can be sides of a picture."""
    require_number(width=width, height=height)
    if not (1 <= width <= 65_535 and 1 <= height <= 65_535 and int(width) == width and int(height) == height):
        raise SplatError(f"the size is {width}×{height}; both sides must be from 1 to 65,535 whole pixels")
    return int(width), int(height)
