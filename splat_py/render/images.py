"""Images on the device, and the kernels that blend splats into them and differentiate it (kernels/rasterize.slang)."""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.render.cameras import SharedRows
from splat_py.render.options import Options
from splat_py.render.splats import Splats
from splat_py.render.tiles import TileLists

# Directions in which one pass differentiates forward: those of a pose.
MAX_DIRECTIONS = 6


@dataclass(frozen=True)
class Image:
    """The rasteriser's output for C cameras; the backward pass needs `final_T` and `n_contrib`, eight bytes per pixel."""

    colors: Array  # [C, H, W, D]
    alphas: Array  # [C, H, W, 1]
    final_T: Array  # [C, H, W]
    n_contrib: Array  # [C, H, W] uint32
    # [C, H, W] blended depth, also kept, if the last channel is the distortion of the one before it.
    saved: Array | None = None
    # [C, H, W] uint32, if requested: one past the median's position in its tile's list, 0 without a median.
    medians: Array | None = None
    # Channels that depend on the pixel's ray: a type that implements IHits (slang/splat/ray_gaussian.slang).
    hits: str | UserType = "NoHits"

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
        hits: str | UserType = "NoHits",
    ) -> "Image":
        """Allocate arrays for images of this size. SplatError if a kernel could not index them."""
        device.memory.limits.check_images(cameras, height, width, channels)
        shape = (cameras, height, width)
        empty = device.memory.empty
        saved, medians = empty(shape) if distortion else None, empty(shape, np.uint32) if median else None
        images = empty((*shape, channels)), empty((*shape, 1)), empty(shape), empty(shape, np.uint32)
        return cls(*images, saved, medians, hits)

    @property
    def width(self) -> int:
        """W, pixels."""
        return self.final_T.shape[2]

    @property
    def height(self) -> int:
        """H, pixels."""
        return self.final_T.shape[1]

    @property
    def median(self) -> bool:
        """True if medians are requested."""
        return self.medians is not None

    @property
    def blending(self) -> str:
        """The blending type (slang/splat/blending.slang)."""
        return "OverBlending" if self.saved is None else "DistortionBlending"


@dataclass(frozen=True)
class ListSegment:
    """The part of each tile's list that a dispatch blends: all of it, unless lists are `segmented`."""

    first: int = 0
    length: int = 0
    is_last: int = 1
    segmented: bool = False


@dataclass(frozen=True)
class Rasterization:
    """Splats with colours [M, D], in tile lists, backgrounds [C, D], and the resulting image (kernels/rasterize.slang)."""

    device: Device
    splats: Splats
    colors: Array
    backgrounds: Array
    lists: TileLists
    image: Image
    options: Options

    @cached_property
    def packed_splats(self) -> Array:
        """[M, floats padded to whole float4s] each splat in full, written by `packSplats`; tangents: [M, directions, ·]."""
        floats = 2 + self.options.shape_floats + 1 + self.colors.shape[-1] + self.options.extras
        return self.device.memory.empty((self.splats.count, -(-floats // 4) * 4))

    def record(self, recorder: Recorder) -> None:
        """Blend the splats into `image`."""
        self.record_pack(recorder)
        for segment in self._segments():
            self._dispatch(recorder, "rasterizeForward", segment=segment)

    def record_pack(self, recorder: Recorder) -> None:
        """Copy all numbers of each splat side by side into `packed_splats`."""
        recorder.stage("rasterize")
        self._pack(recorder, 1)

    def record_tangents(self, recorder: Recorder, tangents: "Rasterization") -> None:
        """Blend the splats into `image`; and their tangents, of colours and backgrounds too, all [directions, ...], into the
        colours and alphas of `tangents.image`."""
        recorder.stage("rasterize tangents")
        directions = tangents.image.alphas.size // self.image.alphas.size
        self._pack(recorder, 1)
        tangents._pack(recorder, directions)
        together = min(directions, MAX_DIRECTIONS)
        for first, segment in product(range(0, directions, together), self._segments()):
            self._dispatch(
                recorder,
                "rasterizeTangents",
                segment=segment,
                packed_tangents=tangents.packed_splats,
                d_backgrounds=tangents.backgrounds,
                d_rays=tangents.splats.rays,
                d_colors=tangents.image.colors,
                d_alphas=tangents.image.alphas,
                directions=directions,
                # The last pass may repeat some directions.
                first_direction=min(first, directions - together),
                DIRECTIONS=together,
                RAY_GRADIENT=tangents.splats.rays is not None,
            )

    def record_backward(
        self, recorder: Recorder, v_colors: Array, v_alphas: Array, v_splats: Array, v_rays: Array | None = None
    ) -> None:
        """Turn gradients of the image into those of splats, rows [M, `gradient_row_length`], and of rays [C, H, W, 6] if given.
        They are overwritten. Call it after `record`."""
        recorder.stage("rasterize backward")
        lists, pixels = self.lists, self.image.final_T.shape
        parts, undone, undone_saved = None, None, None
        if self.options.per_isect:
            parts = recorder.scratch((lists.capacity, v_splats.shape[-1]))
        recorder.clear(v_splats if parts is None else parts)
        if v_rays is not None:
            recorder.clear(v_rays)
        if lists.segments > 1:
            undone = recorder.scratch((*pixels, 2))
            undone_saved = None if self.image.saved is None else recorder.scratch((*pixels, 2))
        for segment in reversed(self._segments()):
            self._dispatch(
                recorder,
                "rasterizeBackward",
                segment=segment,
                v_colors=v_colors,
                v_alphas=v_alphas,
                v_splats=SharedRows(v_splats, parts),
                undone=undone,
                undone_saved=undone_saved,
                v_rays=v_rays,
                **({} if v_rays is None else {"RAY_GRADIENT": True}),
            )
        if parts is not None:
            recorder.dispatch(
                "row_sums",
                "sumIsects",
                linear_groups(v_splats.size),
                count=self.splats.count,
                rows=parts.shape[0],
                parts=parts,
                order=lists.order,
                isect_offsets=lists.isect_offsets,
                sums=v_splats,
                ROW=v_splats.shape[-1],
            )

    def _pack(self, recorder: Recorder, directions: int) -> None:
        recorder.dispatch(
            "splat_rows",
            "packSplats",
            linear_groups(self.splats.count),
            splats=self.splats,
            colors=self.colors,
            packed_splats=self.packed_splats,
            directions=directions,
            options=self.options,
            CHANNELS=self.colors.shape[-1],
        )

    def _segments(self) -> list[ListSegment]:
        """The segments that lists are blended in, front to back."""
        count, length = self.lists.segments, self.device.tuning.segment or 0
        if count == 1:
            return [ListSegment()]
        return [ListSegment(i * length, length, int(i == count - 1), True) for i in range(count)]

    def _dispatch(self, recorder: Recorder, entry: str, **arguments: Any) -> None:
        tuning, channels, grid = self.device.tuning, self.colors.shape[-1], self.lists.grid
        # Code is unrolled over a thread's pixels, channels and directions; with more pixels, compiling it takes too long.
        unrolled = channels + self.options.shape_floats - 3
        # A CPU driver's wave evaluates all pixels of its lanes. Sums of the backward pass are more exact over neighbours.
        blocks = {"BLOCK": 8} if tuning.cpu_driver and entry != "rasterizeBackward" else {}
        few = 9 if arguments.get("DIRECTIONS", 1) > 1 else 8
        most = 8 if unrolled <= few else 4 if unrolled <= 16 else 2
        recorder.dispatch(
            "rasterize",
            entry,
            (grid.columns, grid.rows, grid.cameras),
            backgrounds=self.backgrounds,
            lists=self.lists,
            image=self.image,
            options=self.options,
            packed_splats=self.packed_splats,
            rays=self.splats.rays,
            CHANNELS=channels,
            PIXELS=min(tuning.pixels_per_thread, self.lists.tile_size**2 // 8, most),
            **blocks | arguments,
        )
