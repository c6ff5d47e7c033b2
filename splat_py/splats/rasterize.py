"""Stage 4, splats → pixels (kernels/rasterize.slang): what it records, and its `autograd.Function`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import first_derivative, keep, kept, opaque
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.splats.data import CONIC_OFFSET, MEAN_OFFSET, Settings, Splats
from splat_py.splats.project import ProjectedSplats
from splat_py.splats.tensors import as_tensor, check_tensors
from splat_py.splats.tiles import BinnedTiles, TileGrid, TileLists

# Channels blended in one pass; more are blended in several over the same tile lists.
MAX_CHANNELS = 32


@dataclass(frozen=True)
class Image:
    """What the rasteriser writes for C cameras; the last two are kept for its backward pass: eight bytes a pixel."""

    colors: Array  # [C, H, W, D]
    alphas: Array  # [C, H, W, 1]
    final_T: Array  # [C, H, W]
    n_contrib: Array  # [C, H, W] uint32
    # Where the last channel is the distortion of the one before it: [C, H, W] the blended depth, also kept.
    depth: Array | None = None
    # Where asked for: [C, H, W] uint32, place behind the median in its tile's list, 0 where there is none.
    medians: Array | None = None

    @classmethod
    def empty(
        cls,
        device: Device,
        cameras: int,
        height: int,
        width: int,
        channels: int,
        distortion: bool = False,
        median: bool = False,
    ) -> Image:
        """Arrays for images of this size.

        Raises:
            SplatError: a kernel could not index them.
        """
        device.memory.limits.check_images(cameras, height, width, channels)
        shape = (cameras, height, width)
        empty = device.memory.empty
        depth, medians = empty(shape) if distortion else None, empty(shape, np.uint32) if median else None
        return cls(empty((*shape, channels)), empty((*shape, 1)), empty(shape), empty(shape, np.uint32), depth, medians)

    def constants(self) -> dict[str, str | bool]:
        """What kernels that write, or read, these arrays are specialised by."""
        blending: dict[str, str | bool] = {} if self.depth is None else {"Blending": "DistortionBlending"}
        return blending | ({} if self.medians is None else {"MEDIAN": True})


@dataclass(frozen=True)
class Rasterization:
    """Splats with colours [M, D], in tiles, over backgrounds [C, D], and the image they make (kernels/rasterize.slang)."""

    splats: Splats
    colors: Array
    backgrounds: Array
    lists: TileLists
    grid: TileGrid
    image: Image
    rows: Array  # [M, its floats padded to whole float4s] all numbers of a splat, which `packSplats` writes
    device: Device
    # What a splat is, and when a pixel takes no more: values of `extern` names.
    constants: Mapping[str, str | int | UserType]

    @classmethod
    def of(
        cls,
        device: Device,
        splats: Splats,
        colors: Array,
        backgrounds: Array,
        lists: TileLists,
        grid: TileGrid,
        image: Image,
        **constants: str | int | UserType,
    ) -> Rasterization:
        """The parts put together, with the array that the kernels need besides.

        Args:
            constants: `Settings.splat_constants`, or others (kernels/rasterize.slang).
        """
        extras = 0 if splats.extras is None else splats.extras.shape[-1]
        row = -(-(CONIC_OFFSET + splats.conics.shape[-1] + 1 + colors.shape[-1] + extras) // 4) * 4
        rows = device.memory.empty((splats.count, row))
        return cls(splats, colors, backgrounds, lists, grid, image, rows, device, constants)

    def record(self, recorder: Recorder) -> None:
        """Blend the splats into `image`."""
        self.record_pack(recorder)
        image = {"renderColors": self.image.colors, "renderAlphas": self.image.alphas}
        for segment in range(self.lists.segments):
            self._dispatch_tiles(recorder, "rasterizeForward", segment, {}, image)

    def record_pack(self, recorder: Recorder) -> None:
        """Put what there is of a splat side by side."""
        recorder.stage("rasterize")
        self._dispatch(recorder, "packSplats", linear_groups(self.splats.count))

    def record_backward(
        self, recorder: Recorder, v_colors: Array, v_alphas: Array, v_splats: Array, settings: Settings
    ) -> None:
        """Gradients of the image → gradient rows of splats, [M, settings.row(D)], overwritten. `record` has run before."""
        recorder.stage("rasterize backward")
        lists = self.lists
        row = v_splats.shape[-1]
        buffers: dict[str, Array | None] = {"vRenderColors": v_colors, "vRenderAlphas": v_alphas}
        buffers |= {"vSplats": v_splats, "vSplatBits": v_splats.bits}
        buffers |= dict.fromkeys(("renderColors", "tileIsects", "vIsects", "undone"))
        if settings.per_isect:
            assert lists.isects is not None
            v_isects = recorder.scratch((lists.isects.size, row))
            recorder.clear(v_isects)
            buffers |= {"tileIsects": lists.isects, "vIsects": v_isects}
        else:
            recorder.clear(v_splats)
        buffers["undoneDepth"] = None
        if lists.segments > 1:
            buffers["undone"] = recorder.scratch((*self.image.final_T.shape, 2))
            if self.image.depth is not None:
                buffers["undoneDepth"] = recorder.scratch((*self.image.final_T.shape, 2))
        constants = {"ABSGRAD": settings.absgrad, **settings.accumulation_constants()}
        for segment in reversed(range(lists.segments)):
            self._dispatch_tiles(recorder, "rasterizeBackward", segment, constants, buffers)
        if settings.per_isect:
            assert lists.order is not None and lists.isect_offsets is not None
            recorder.dispatch(
                "row_sums",
                "sumIsects",
                linear_groups(v_splats.size),
                {"count": self.splats.count, "rows": v_isects.shape[0]},
                {"parts": v_isects, "order": lists.order, "isectOffsets": lists.isect_offsets, "sums": v_splats},
                ROW=row,
            )

    def _dispatch_tiles(
        self,
        recorder: Recorder,
        entry: str,
        segment: int,
        constants: dict[str, bool | str],
        buffers: Mapping[str, Array | None],
    ) -> None:
        """One segment of every tile's list."""
        groups = self.grid.columns, self.grid.rows, self.grid.cameras
        most = _most_pixels(self.colors.shape[-1] + self.splats.conics.shape[-1] - 3)
        pixels = min(self.device.tuning.pixels_per_thread, self.grid.tile_size**2 // 8, most)
        uniforms = {"segment": 0, "segmentLength": 0, "isLast": 1}
        if self.lists.segments > 1:
            length = self.device.tuning.segment or 0
            is_last = segment == self.lists.segments - 1
            uniforms = {"segment": segment * length, "segmentLength": length, "isLast": int(is_last)}
            constants = {"SEGMENTED": True, **constants}
        switches = {"BATCHED": self.device.tuning.batched, "READS_LANES": self.device.tuning.reads_lanes}
        constants = {name: True for name, on in switches.items() if on} | self.image.constants() | constants
        self._dispatch(recorder, entry, groups, uniforms, {"PIXELS": pixels, **constants}, **buffers)

    def _dispatch(
        self,
        recorder: Recorder,
        entry: str,
        groups: tuple[int, int, int],
        uniforms: dict[str, int] | None = None,
        constants: dict[str, Any] | None = None,
        **buffers: Array | None,
    ) -> None:
        _, height, width = self.image.final_T.shape
        recorder.dispatch(
            "rasterize",
            entry,
            groups,
            {
                "splats": self.splats.count,
                "width": width,
                "height": height,
                "columns": self.grid.columns,
                "rows": self.grid.rows,
                "capacity": self.lists.ids.size,
                **(uniforms or {}),
            },
            {
                "means2d": self.splats.means2d,
                "conics": self.splats.conics,
                "opacities": self.splats.opacities,
                "colors": self.colors,
                "extras": self.splats.extras,
                "packedSplats": self.rows,
                "backgrounds": self.backgrounds,
                "tileOffsets": self.lists.offsets,
                "tileIds": self.lists.ids,
                "finalT": self.image.final_T,
                "nContrib": self.image.n_contrib,
                "finalDepth": self.image.depth,
                "medians": self.image.medians,
            }
            | buffers,
            TILE=self.grid.tile_size,
            CHANNELS=self.colors.shape[-1],
            **self.constants,
            **(constants or {}),
        )


def _most_pixels(channels: int) -> int:
    """Of a thread. Their code is unrolled for each pixel and channel, and compiling it may take longer than running it.

    Numbers that a splat has more than an ellipse count as channels.
    """
    return 8 if channels <= 4 else 4 if channels <= 8 else 2


@opaque
def rasterize_to_pixels(
    splats: ProjectedSplats,
    colors: Tensor,
    tiles: BinnedTiles,
    width: int,
    height: int,
    backgrounds: Tensor | None,
    settings: Settings,
    *,
    device: Device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Last stage: blend splats over backgrounds → images [C, H, W, D], alphas [C, H, W, 1]. C are the cameras of all scenes.

    Differentiable in means2d, conics, opacities, colours and backgrounds.

    Args:
        colors: [..., C, N, D], or of packed splats [M, D].
        backgrounds: [..., C, D], black if None.
    """
    rendered = rasterize(splats, colors, tiles, width, height, backgrounds, settings, device=device)
    return rendered.colors, rendered.alphas


@opaque
def rasterize(
    splats: ProjectedSplats,
    colors: Tensor,
    tiles: BinnedTiles,
    width: int,
    height: int,
    backgrounds: Tensor | None,
    settings: Settings,
    *,
    distortion: bool = False,
    median: bool = False,
    device: Device | str | None = None,
) -> RenderedImages:
    """As `rasterize_to_pixels`, with what more there is to tell of the pixels.

    Args:
        distortion: what is rendered in the last channel, whatever the colours are there, is distortion of the one before it,
            whose background is to be 0 (`DistortionBlending` in slang/splat/blending.slang).
        median: find out which splat is the last that more than half the light comes to.
    """
    inputs = {"means2d": splats.means2d, "conics": splats.conics, "opacities": splats.opacities}
    check_tensors(inputs | {"colors": colors, "backgrounds": backgrounds})
    device = device_for(colors, device)
    if settings.absgrad:
        splats.means2d.absgrad = torch.zeros_like(splats.means2d)  # type: ignore[attr-defined]
    images = []
    channels = colors.shape[-1]
    # Depth and distortion are in one pass, the last.
    length = MAX_CHANNELS - 1 if distortion and channels % MAX_CHANNELS == 1 else MAX_CHANNELS
    for first in range(0, max(channels, 1), length):
        part = slice(first, first + length)
        is_last = first + length >= channels
        frame = _Frame(splats, tiles, width, height, settings, device, distortion and is_last, median and is_last)
        images.append(
            _Rasterize.apply(
                splats.means2d,
                splats.conics,
                splats.opacities,
                colors[..., part],
                None if backgrounds is None else backgrounds[..., part],
                splats.extras,
                frame,
            )
        )
    parts, alphas, arrays = zip(*images, strict=True)
    return RenderedImages(parts[0] if len(parts) == 1 else torch.cat(parts, -1), alphas[0], arrays[-1])


@dataclass(frozen=True)
class RenderedImages:
    """C images, and what more was written with their last channels."""

    colors: Tensor  # [C, H, W, D]
    alphas: Tensor  # [C, H, W, 1]
    arrays: Image


@dataclass(frozen=True)
class _Frame:
    """What is not differentiated of a rasterisation."""

    splats: ProjectedSplats
    tiles: BinnedTiles
    width: int
    height: int
    settings: Settings
    device: Device
    distortion: bool = False
    median: bool = False


class _Rasterize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        colors: Tensor,
        backgrounds: Tensor | None,
        extras: Tensor | None,
        frame: _Frame,
    ) -> tuple[Tensor, Tensor, Image]:
        device, tiles = frame.device, frame.tiles
        size = tiles.grid.cameras, frame.height, frame.width, colors.shape[-1]
        image = Image.empty(device, *size, frame.distortion, frame.median)
        work = _work(frame, colors, backgrounds, image)
        recorder = device.record()
        work.record(recorder)
        recorder.submit()
        keep(ctx, (work, frame.settings), means2d, conics, opacities, colors, backgrounds, extras, tiles.offsets, tiles.ids)
        # Its gradient's absolute values go there.
        ctx.means2d = means2d if frame.settings.absgrad else None
        return as_tensor(image.colors, colors), as_tensor(image.alphas, colors), image

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v_images: Tensor, v_alphas: Tensor, _: None) -> tuple[Tensor | None, ...]:
        work, settings = kept(ctx)
        of_backgrounds = ctx.needs_input_grad[4]
        v = _gradients(work, settings, v_images, v_alphas, ctx.saved_tensors[3].shape, of_backgrounds)
        if settings.absgrad:
            ctx.means2d.absgrad = v.absgrad
        v_backgrounds = None if v.backgrounds is None else v.backgrounds.reshape(ctx.saved_tensors[5].shape)
        return v.means2d, v.conics, v.opacities, v.colors, v_backgrounds, v.extras, None


class RasterizationGradients(NamedTuple):
    """Of the tensors that `rasterize_to_pixels` was given."""

    means2d: Tensor
    conics: Tensor
    opacities: Tensor
    colors: Tensor
    backgrounds: Tensor | None  # [C, D], C of all scenes
    absgrad: Tensor | None  # Σ |∂L/∂mean2d|, with `Settings.absgrad`
    extras: Tensor | None = None


@opaque
def rasterize_backward(
    splats: ProjectedSplats,
    colors: Tensor,
    tiles: BinnedTiles,
    width: int,
    height: int,
    backgrounds: Tensor | None,
    settings: Settings,
    rendered: RenderedImages,
    v_images: Tensor,
    v_alphas: Tensor | None = None,
    *,
    device: Device | str | None = None,
) -> RasterizationGradients:
    """The gradients of `rasterize` without autograd: what it was given and returned, and the gradients of that.

    Raises:
        SplatError: there are more channels than one pass blends.
    """
    if colors.shape[-1] > MAX_CHANNELS:
        raise SplatError(f"colors has {colors.shape[-1]} channels; give at most {MAX_CHANNELS} at a time")
    device = device_for(colors, device)
    work = _work(_Frame(splats, tiles, width, height, settings, device), colors, backgrounds, rendered.arrays)
    recorder = device.record()
    work.record_pack(recorder)
    recorder.submit()
    v_alphas = torch.zeros_like(rendered.alphas) if v_alphas is None else v_alphas
    return _gradients(work, settings, v_images, v_alphas, splats.opacities.shape, of_backgrounds=True)


def _work(frame: _Frame, colors: Tensor, backgrounds: Tensor | None, image: Image) -> Rasterization:
    array, cameras, channels = frame.device.memory.array, frame.tiles.grid.cameras, colors.shape[-1]
    behind = colors.new_zeros(cameras, channels) if backgrounds is None else backgrounds.reshape(cameras, channels)
    return Rasterization.of(
        frame.device,
        frame.splats.arrays(frame.device),
        array(colors.detach().contiguous()),
        array(behind.detach().contiguous()),
        frame.tiles.arrays,
        frame.tiles.grid,
        image,
        **frame.settings.splat_constants(),
    )


def _gradients(
    work: Rasterization,
    settings: Settings,
    v_images: Tensor,
    v_alphas: Tensor,
    splats: torch.Size,
    of_backgrounds: bool,
) -> RasterizationGradients:
    """Of splats of this shape; of backgrounds only if asked for."""
    memory, channels = work.device.memory, work.colors.shape[-1]
    rows = memory.empty((work.splats.count, settings.row(channels)))
    v_colors, v_opacities = (memory.array(v.contiguous()) for v in (v_images, v_alphas))
    recorder = work.device.record()
    work.record_backward(recorder, v_colors, v_opacities, rows, settings)
    recorder.submit()
    v_rows = as_tensor(rows, v_images).unflatten(0, splats)
    mean, conic, opacity = MEAN_OFFSET, CONIC_OFFSET, CONIC_OFFSET + settings.shape_floats
    color = opacity + 1
    extras = color + channels + settings.extras
    v_backgrounds = None
    if of_backgrounds:
        v_backgrounds = (v_images * as_tensor(work.image.final_T, v_images)[..., None]).sum((1, 2))
    return RasterizationGradients(
        v_rows[..., mean:conic],
        v_rows[..., conic:opacity],
        v_rows[..., opacity],
        v_rows[..., color : color + channels],
        v_backgrounds,
        v_rows[..., extras:] if settings.absgrad else None,
        v_rows[..., color + channels : extras] if settings.extras else None,
    )
