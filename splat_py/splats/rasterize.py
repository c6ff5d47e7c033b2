"""Stage 4, splats → pixels (kernels/rasterize.slang): what it records, and its `autograd.Function`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.splats.data import COLOR_OFFSET, CONIC_OFFSET, MEAN_OFFSET, OPACITY_OFFSET, Settings, Splats
from splat_py.splats.project import ProjectedSplats
from splat_py.splats.tensors import as_tensor
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

    @classmethod
    def empty(cls, device: Device, cameras: int, height: int, width: int, channels: int) -> Image:
        """Arrays for images of this size.

        Raises:
            SplatError: a kernel could not index them.
        """
        device.memory.limits.check_images(cameras, height, width, channels)
        shape = (cameras, height, width)
        empty = device.memory.empty
        return cls(empty((*shape, channels)), empty((*shape, 1)), empty(shape), empty(shape, np.uint32))


@dataclass(frozen=True)
class Rasterization:
    """Splats with colours [C, N, D], in tiles, over backgrounds [C, D], and the image they make (kernels/rasterize.slang)."""

    splats: Splats
    colors: Array
    backgrounds: Array
    lists: TileLists
    grid: TileGrid
    image: Image
    packed: Array  # [C, N, packed_row(D)]
    device: Device
    # When a pixel takes no more: SceneStop or ImageStop (splat/splat2d.slang).
    stop: str = "SceneStop"

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
        stop: str = "SceneStop",
    ) -> Rasterization:
        """The parts put together, with the array that the kernels need besides."""
        row = -(-(COLOR_OFFSET + colors.shape[-1]) // 4) * 4
        packed = device.memory.empty((*splats.depths.shape, row))
        return cls(splats, colors, backgrounds, lists, grid, image, packed, device, stop)

    def record(self, recorder: Recorder) -> None:
        """Blend the splats into `image`."""
        recorder.stage("rasterize")
        self._dispatch(recorder, "packSplats", linear_groups(self.splats.count))
        image = {"renderColors": self.image.colors, "renderAlphas": self.image.alphas}
        for segment in range(self.lists.segments):
            self._dispatch_tiles(recorder, "rasterizeForward", segment, {}, image)

    def record_backward(
        self, recorder: Recorder, v_colors: Array, v_alphas: Array, v_splats: Array, settings: Settings
    ) -> None:
        """Gradients of the image → gradient rows of splats, [C, N, settings.row(D)], overwritten. `record` has run before."""
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
        if lists.segments > 1:
            buffers["undone"] = recorder.scratch((*self.image.final_T.shape, 2))
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
        if self.stop != "SceneStop":
            constants = {"Stop": self.stop, **constants}
        pixels = min(self.device.tuning.pixels_per_thread, self.grid.tile_size**2 // 8)
        uniforms = {"segment": 0, "segmentLength": 0, "isLast": 1}
        if self.lists.segments > 1:
            length = self.device.tuning.segment or 0
            is_last = segment == self.lists.segments - 1
            uniforms = {"segment": segment * length, "segmentLength": length, "isLast": int(is_last)}
            constants = {"SEGMENTED": True, **constants}
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
                "packedSplats": self.packed,
                "backgrounds": self.backgrounds,
                "tileOffsets": self.lists.offsets,
                "tileIds": self.lists.ids,
                "finalT": self.image.final_T,
                "nContrib": self.image.n_contrib,
            }
            | buffers,
            TILE=self.grid.tile_size,
            CHANNELS=self.colors.shape[-1],
            **(constants or {}),
        )


def rasterize_to_pixels(
    splats: ProjectedSplats,
    colors: Tensor,
    tiles: BinnedTiles,
    width: int,
    height: int,
    backgrounds: Tensor | None,
    settings: Settings,
    *,
    device: Device | None = None,
) -> tuple[Tensor, Tensor]:
    """Last stage: blend splats with colours [C, N, D] over backgrounds [C, D] → images [C, H, W, D], alphas [C, H, W, 1].

    Differentiable in means2d, conics, opacities, colours and backgrounds.
    """
    device = device or device_for(colors)
    frame = _Frame(splats, tiles, width, height, settings, device)
    images, alphas = [], []
    for first in range(0, max(colors.shape[-1], 1), MAX_CHANNELS):
        part = slice(first, first + MAX_CHANNELS)
        image, alpha = _Rasterize.apply(
            splats.means2d,
            splats.conics,
            splats.opacities,
            colors[..., part],
            None if backgrounds is None else backgrounds[..., part],
            frame,
        )
        images.append(image)
        alphas.append(alpha)
    return images[0] if len(images) == 1 else torch.cat(images, -1), alphas[0]


@dataclass(frozen=True)
class _Frame:
    """What is not differentiated of a rasterisation."""

    splats: ProjectedSplats
    tiles: BinnedTiles
    width: int
    height: int
    settings: Settings
    device: Device


class _Rasterize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        colors: Tensor,
        backgrounds: Tensor | None,
        frame: _Frame,
    ) -> tuple[Tensor, Tensor]:
        device, tiles = frame.device, frame.tiles
        cameras, _, channels = colors.shape
        if backgrounds is None:
            backgrounds = colors.new_zeros(cameras, channels)
        image = Image.empty(device, cameras, frame.height, frame.width, channels)
        work = Rasterization.of(
            device,
            frame.splats.arrays(device),
            device.memory.array(colors),
            device.memory.array(backgrounds),
            tiles.arrays,
            tiles.grid,
            image,
        )
        recorder = device.record()
        work.record(recorder)
        recorder.submit()
        ctx.state = (work, frame.settings, device)
        ctx.means2d = means2d
        return as_tensor(image.colors, colors), as_tensor(image.alphas, colors)

    @staticmethod
    def backward(ctx: Any, v_images: Tensor, v_alphas: Tensor) -> tuple[Tensor | None, ...]:
        work, settings, device = ctx.state
        channels = work.colors.shape[-1]
        rows = device.memory.empty((*work.splats.depths.shape, settings.row(channels)))
        v_colors, v_opacities = (device.memory.array(v.contiguous()) for v in (v_images, v_alphas))
        recorder = device.record()
        work.record_backward(recorder, v_colors, v_opacities, rows, settings)
        recorder.submit()
        v_rows = as_tensor(rows, v_images)
        mean, conic, opacity, color = MEAN_OFFSET, CONIC_OFFSET, OPACITY_OFFSET, COLOR_OFFSET
        if settings.absgrad:
            ctx.means2d.absgrad = v_rows[..., color + channels :]
        v_backgrounds = None
        if ctx.needs_input_grad[4]:
            final_T = as_tensor(work.image.final_T, v_images)[..., None]
            v_backgrounds = (v_images * final_T).sum((1, 2))
        return (
            v_rows[..., mean:conic],
            v_rows[..., conic:opacity],
            v_rows[..., opacity],
            v_rows[..., color : color + channels],
            v_backgrounds,
            None,
        )
