"""The stages of a render, forward beside backward, recorded on arrays of the device.

The torch functions (`rasterization.py`) and the training loop run these same stages: project → shade → bin → rasterise.
Shapes: N Gaussians, C cameras, M = C · N splats, D channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from splat_py.arrays import Array
from splat_py.device import Device
from splat_py.kernels import Recorder, linear_groups
from splat_py.sorting import PrefixSum, RadixSort

# Floats of a splat's gradient row: mean2d 2, conic 3, opacity 1; colours and |mean2d| follow (kernels/rasterize.slang).
MEAN_OFFSET, CONIC_OFFSET, OPACITY_OFFSET, COLOR_OFFSET = 0, 2, 5, 6
# Of tile lists, where a device blends them whole (kernels/status.slang).
ANY_LENGTH = 0xFFFFFFFF
# Floats of a camera's gradient row: [R|t] 12, fx, fy, cx, cy (kernels/cameras.slang).
CAMERA_ROW = 16


@dataclass(frozen=True)
class Settings:
    """What the kernels are specialised by, and what the projection is told."""

    tile_size: int
    # Gaussians come as an optimiser stores them: log-scales and opacity logits.
    stored: bool = False
    antialiased: bool = False
    absgrad: bool = False
    camera_gradient: bool = False
    # PerPixel, PerWave, PerGroup or PerPair (splat/gradient_accumulation.slang).
    accumulation: str = "PerWave"
    # Or compare-and-swap, where a device cannot add to floats atomically.
    native_atomics: bool = True
    # Added to the 2D covariance's diagonal, pixel².
    blur: float = 0.3
    near: float = 0.01
    far: float = 1e10
    # Splats that reach no further than this, in pixels, are culled.
    radius_clip: float = 0.0

    @property
    def per_pair(self) -> bool:
        """Whether gradients add up in an order that is the same from run to run."""
        return self.accumulation == "PerPair"

    def row(self, channels: int) -> int:
        """Floats of a splat's gradient row."""
        return COLOR_OFFSET + channels + (2 if self.absgrad else 0)

    def accumulation_constants(self) -> dict[str, str | bool]:
        """What kernels that add up gradients are specialised by."""
        # Where nothing is added atomically, how that would be done is not worth a kernel.
        native = self.native_atomics or self.per_pair
        return {"Accumulation": self.accumulation} | ({} if native else {"NATIVE_ATOMICS": False})


@dataclass(frozen=True)
class Cameras:
    """C pinhole cameras with images of one size."""

    viewmats: Array  # [C, 4, 4] world → camera
    Ks: Array  # [C, 3, 3]
    width: int
    height: int

    @property
    def count(self) -> int:
        """C."""
        return self.viewmats.shape[0]


@dataclass(frozen=True)
class GaussianArrays:
    """N Gaussians, activated or stored (`Settings.stored`); also the shape of their gradients."""

    means: Array  # [N, 3]
    quats: Array  # [N, 4]
    scales: Array  # [N, 3]
    opacities: Array  # [N]

    @property
    def count(self) -> int:
        """N."""
        return self.means.shape[0]


@dataclass(frozen=True)
class Splats:
    """Gaussians on the cameras' image planes."""

    means2d: Array  # [C, N, 2] pixels
    depths: Array  # [C, N] camera z
    conics: Array  # [C, N, 3]
    opacities: Array  # [C, N]
    radii: Array  # [C, N, 2] int32, pixels; 0 where culled

    @classmethod
    def empty(cls, device: Device, cameras: int, gaussians: int) -> Splats:
        """Arrays for `cameras` × `gaussians` splats."""
        empty = device.memory.empty
        shape = (cameras, gaussians)
        return cls(empty((*shape, 2)), empty(shape), empty((*shape, 3)), empty(shape), empty((*shape, 2), np.int32))

    @property
    def count(self) -> int:
        """M."""
        return self.depths.size


@dataclass(frozen=True)
class Rows:
    """Values that lie `stride` floats apart in an array, beginning at `offset`."""

    array: Array
    stride: int
    offset: int = 0


def project(recorder: Recorder, gaussians: GaussianArrays, cameras: Cameras, splats: Splats, settings: Settings) -> None:
    """Gaussians → splats (kernels/project.slang)."""
    recorder.stage("project")
    recorder.dispatch(
        "project",
        "projectForward",
        linear_groups(splats.count),
        _project_uniforms(gaussians, cameras, settings),
        _project_buffers(gaussians, cameras, splats),
        **_project_constants(settings),
    )


def project_backward(
    recorder: Recorder,
    gaussians: GaussianArrays,
    cameras: Cameras,
    splats: Splats,
    v_means2d: Rows,
    v_depths: Array,
    v_conics: Rows,
    v_opacities: Rows,
    v_gaussians: GaussianArrays,
    v_cameras: Array,
    settings: Settings,
) -> None:
    """Gradients of splats → gradients of Gaussians, overwritten, and of cameras, [C, CAMERA_ROW], added to."""
    recorder.stage("project backward")
    rows = _CameraRows(recorder, v_cameras, gaussians.count, settings)
    uniforms = _project_uniforms(gaussians, cameras, settings)
    for name, v in (("mean", v_means2d), ("conic", v_conics), ("opacity", v_opacities)):
        uniforms |= {f"{name}Stride": v.stride, f"{name}Offset": v.offset}
    recorder.dispatch(
        "project",
        "projectBackward",
        linear_groups(gaussians.count),
        uniforms,
        _project_buffers(gaussians, cameras, splats)
        | {
            "vMeans2d": v_means2d.array,
            "vDepths": v_depths,
            "vConics": v_conics.array,
            "vSplatOpacities": v_opacities.array,
            "vMeans": v_gaussians.means,
            "vQuats": v_gaussians.quats,
            "vScales": v_gaussians.scales,
            "vOpacities": v_gaussians.opacities,
            **rows.buffers,
        },
        CAMERA_GRADIENT=settings.camera_gradient,
        **(settings.accumulation_constants() if settings.camera_gradient else {}),
        **_project_constants(settings),
    )
    rows.record_sum(recorder)


class _CameraRows:
    """The gradients of cameras, [C, CAMERA_ROW], and where they add up (kernels/camera_rows.slang)."""

    def __init__(self, recorder: Recorder, v_cameras: Array, gaussians: int, settings: Settings) -> None:
        self.buffers = {"vCameras": v_cameras, "vCameraBits": v_cameras}
        self._parts: Array | None = None
        if settings.camera_gradient and settings.per_pair:
            workgroups = math.prod(linear_groups(gaussians))
            self._parts = recorder.scratch((v_cameras.shape[0], workgroups, CAMERA_ROW))
            recorder.clear(self._parts)
            self.buffers["vCameraParts"] = self._parts

    def record_sum(self, recorder: Recorder) -> None:
        """Add what the workgroups have left in rows of their own."""
        if self._parts is not None:
            recorder.dispatch(
                "row_sums",
                "sumGroups",
                linear_groups(self.buffers["vCameras"].size),
                {"count": self._parts.shape[0], "rows": math.prod(self._parts.shape[:2]), "rowsEach": self._parts.shape[1]},
                {"parts": self._parts, "sums": self.buffers["vCameras"]},
                ROW=CAMERA_ROW,
            )


def _project_uniforms(gaussians: GaussianArrays, cameras: Cameras, settings: Settings) -> dict[str, int | float]:
    return {
        "gaussians": gaussians.count,
        "cameras": cameras.count,
        "width": cameras.width,
        "height": cameras.height,
        "blur": settings.blur,
        "near": settings.near,
        "far": settings.far,
        "radiusClip": settings.radius_clip,
    }


def _project_buffers(gaussians: GaussianArrays, cameras: Cameras, splats: Splats) -> dict[str, Array]:
    return {
        "means": gaussians.means,
        "quats": gaussians.quats,
        "scales": gaussians.scales,
        "opacities": gaussians.opacities,
        "viewmats": cameras.viewmats,
        "Ks": cameras.Ks,
        "means2d": splats.means2d,
        "depths": splats.depths,
        "conics": splats.conics,
        "splatOpacities": splats.opacities,
        "radii": splats.radii,
    }


def _project_constants(settings: Settings) -> dict[str, bool]:
    return {"STORED": settings.stored, "ANTIALIASED": settings.antialiased}


def shade(recorder: Recorder, means: Array, sh: Array, cameras: Cameras, radii: Array, colors: Array, degree: int) -> None:
    """Spherical harmonics [N, K, 3] → colours [C, N, 3], zero where culled (kernels/shade.slang)."""
    recorder.stage("shade")
    recorder.dispatch(
        "shade",
        "shadeForward",
        linear_groups(cameras.count * means.shape[0]),
        _shade_uniforms(sh, cameras),
        _shade_buffers(means, sh, cameras, radii) | {"colors": colors},
        COEFFICIENTS=(degree + 1) ** 2,
    )


def shade_backward(
    recorder: Recorder,
    means: Array,
    sh: Array,
    cameras: Cameras,
    radii: Array,
    v_colors: Rows,
    v_means: Array,
    v_sh: Array,
    v_cameras: Array,
    degree: int,
    settings: Settings,
    add_to_means: bool,
) -> None:
    """Gradients of colours → those of coefficients and means, overwritten (or means added to), and of cameras, added to."""
    recorder.stage("shade backward")
    rows = _CameraRows(recorder, v_cameras, means.shape[0], settings)
    recorder.dispatch(
        "shade",
        "shadeBackward",
        linear_groups(means.shape[0]),
        _shade_uniforms(sh, cameras) | {"colorStride": v_colors.stride, "colorOffset": v_colors.offset},
        _shade_buffers(means, sh, cameras, radii) | {"vColors": v_colors.array, "vMeans": v_means, "vSh": v_sh, **rows.buffers},
        COEFFICIENTS=(degree + 1) ** 2,
        CAMERA_GRADIENT=settings.camera_gradient,
        ADD_TO_MEANS=add_to_means,
        **(settings.accumulation_constants() if settings.camera_gradient else {}),
    )
    rows.record_sum(recorder)


def _shade_uniforms(sh: Array, cameras: Cameras) -> dict[str, int | float]:
    return {"gaussians": sh.shape[0], "cameras": cameras.count, "stored": sh.shape[1]}


def _shade_buffers(means: Array, sh: Array, cameras: Cameras, radii: Array) -> dict[str, Array]:
    return {"means": means, "sh": sh, "viewmats": cameras.viewmats, "Ks": cameras.Ks, "radii": radii}


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

    `record_count` finds out how many (tile, splat) pairs there are; `reserve` makes room for them; `record_lists` writes the
    lists. A caller that has room from before may record both at once and look at `pair_count` later: if it exceeds
    `capacity`, the lists are not complete. The same holds for `record_longest` and segments.

    Args:
        keep_pairs: lists also tell which pair each element is, for gradients that add up pair by pair.
    """

    def __init__(self, device: Device, splats: Splats, grid: TileGrid, keep_pairs: bool = False) -> None:
        self.splats = splats
        self.grid = grid
        self._keep_pairs = keep_pairs
        # [1] uint32 on the device: splats of the longest list, where `record_longest` has run.
        self.longest = device.memory.array(np.zeros(1, np.uint32))
        self._device = device
        empty = device.memory.empty
        self._depth_keys = empty(splats.count, np.uint32)
        self._order = empty(splats.count, np.uint32)
        self._splat_count = device.memory.array(np.array([splats.count], np.uint32))
        self._depth_sort = RadixSort(device, splats.count)
        self._sorted_order = self._order
        self._tile_counts = empty(splats.count, np.uint32)
        self._pair_offsets = PrefixSum(device, splats.count)
        self._offsets = empty(grid.count + 1, np.uint32)
        self.reserve(0)

    @property
    def pair_count(self) -> Array:
        """[1] uint32 on the device: pairs in all."""
        return self._pair_offsets.total

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` pairs."""
        self.capacity = capacity
        self._pair_tiles = self._device.memory.empty(capacity, np.uint32)
        self._pair_ids = self._device.memory.empty(capacity, np.uint32)
        self._pair_splats = self._device.memory.empty(capacity if self._keep_pairs else 0, np.uint32)
        self._tile_sort = RadixSort(self._device, capacity)
        self._ids = self._pair_ids
        self._pairs: Array | None = None

    def record_count(self, recorder: Recorder) -> None:
        """Sort the splats by depth and count the tiles each one touches."""
        recorder.stage("sort depths")
        self._dispatch(recorder, "depthKeysOf", self.splats.count, order=self._order)
        _, self._sorted_order = self._depth_sort.record(recorder, self._depth_keys, self._order, self._splat_count, bits=32)
        recorder.stage("bin")
        self._dispatch(recorder, "countTiles", self.splats.count)
        self._pair_offsets.record(recorder, self._tile_counts)

    def record_lists(self, recorder: Recorder) -> None:
        """Write the lists."""
        constants = {"KEEP_PAIRS": True} if self._keep_pairs else {}
        recorder.stage("bin")
        self._dispatch(recorder, "emitPairs", self.splats.count, constants, pairSplats=self._pair_splats)
        recorder.stage("sort tiles")
        bits = max((self.grid.count - 1).bit_length(), 1)
        tiles, ids = self._tile_sort.record(recorder, self._pair_tiles, self._pair_ids, self.pair_count, bits)
        recorder.stage("bin")
        buffers = {"pairTiles": tiles}
        if self._keep_pairs:
            self._pairs, self._ids = ids, self._device.memory.empty(self.capacity, np.uint32)
            buffers |= {"pairIds": ids, "pairSplats": self._pair_splats, "tileIds": self._ids}
        else:
            self._ids = ids
        self._dispatch(recorder, "findTileOffsets", self.capacity + 1, constants, **buffers)

    def record_longest(self, recorder: Recorder) -> None:
        """Find out how long the longest list is."""
        recorder.clear(self.longest)
        self._dispatch(recorder, "findLongestList", self.grid.count, longest=self.longest)

    def lists(self, segments: int = 1) -> TileLists:
        """What `record_lists` writes, to be blended in so many segments."""
        return TileLists(self._offsets, self._ids, segments, self._pairs, self._sorted_order, self._pair_offsets.offsets)

    def _dispatch(
        self, recorder: Recorder, entry: str, threads: int, constants: dict[str, bool] | None = None, **others: Array
    ) -> None:
        splats, grid = self.splats, self.grid
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
                "depths": splats.depths,
                "radii": splats.radii,
                "depthKeys": self._depth_keys,
                "order": self._sorted_order,
                "tileCounts": self._tile_counts,
                "pairOffsets": self._pair_offsets.offsets,
                "pairCount": self.pair_count,
                "pairTiles": self._pair_tiles,
                "pairIds": self._pair_ids,
                "tileOffsets": self._offsets,
            }
            | others,
            TILE=grid.tile_size,
            **(constants or {}),
        )


@dataclass(frozen=True)
class TileLists:
    """Splats by tile: those of tile t are ids[offsets[t]] … ids[offsets[t + 1] - 1], front to back."""

    offsets: Array  # [tiles + 1] uint32
    ids: Array  # [pairs] uint32, indices into C · N
    # Parts that lists are blended in, a dispatch each: `segments_for`.
    segments: int = 1
    # For gradients that add up pair by pair: [pairs] the pair that each element of `ids` is; [C · N] splats by depth and
    # [C · N + 1] where the pairs of each begin.
    pairs: Array | None = None
    order: Array | None = None
    pair_offsets: Array | None = None


def segments_for(device: Device, longest: int) -> int:
    """Segments that lists of at most so many splats are blended in on a device (`Tuning.segment`)."""
    segment = device.tuning.segment
    return 1 if segment is None else max(-(-longest // segment), 1)


@dataclass(frozen=True)
class Image:
    """What the rasteriser writes for C cameras; the last two are kept for its backward pass: eight bytes a pixel."""

    colors: Array  # [C, H, W, D]
    alphas: Array  # [C, H, W, 1]
    final_T: Array  # [C, H, W]
    n_contrib: Array  # [C, H, W] uint32

    @classmethod
    def empty(cls, device: Device, cameras: int, height: int, width: int, channels: int) -> Image:
        """Arrays for images of this size."""
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
    ) -> Rasterization:
        """The parts put together, with room for what the kernels need besides."""
        row = -(-(COLOR_OFFSET + colors.shape[-1]) // 4) * 4
        packed = device.memory.empty((*splats.depths.shape, row))
        return cls(splats, colors, backgrounds, lists, grid, image, packed, device)

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
        buffers = {"vRenderColors": v_colors, "vRenderAlphas": v_alphas, "vSplats": v_splats, "vSplatBits": v_splats}
        if settings.per_pair:
            assert lists.pairs is not None
            v_pairs = recorder.scratch((lists.pairs.size, row))
            recorder.clear(v_pairs)
            buffers |= {"tilePairs": lists.pairs, "vPairs": v_pairs}
        else:
            recorder.clear(v_splats)
        if lists.segments > 1:
            buffers["undone"] = recorder.scratch((*self.image.final_T.shape, 2))
        constants = {"ABSGRAD": settings.absgrad, **settings.accumulation_constants()}
        for segment in reversed(range(lists.segments)):
            self._dispatch_tiles(recorder, "rasterizeBackward", segment, constants, buffers)
        if settings.per_pair:
            assert lists.order is not None and lists.pair_offsets is not None
            recorder.dispatch(
                "row_sums",
                "sumPairs",
                linear_groups(v_splats.size),
                {"count": self.splats.count, "rows": v_pairs.shape[0]},
                {"parts": v_pairs, "order": lists.order, "pairOffsets": lists.pair_offsets, "sums": v_splats},
                ROW=row,
            )

    def _dispatch_tiles(
        self,
        recorder: Recorder,
        entry: str,
        segment: int,
        constants: dict[str, bool | str],
        buffers: dict[str, Array],
    ) -> None:
        """One segment of every tile's list."""
        groups = self.grid.columns, self.grid.rows, self.grid.cameras
        pixels = min(self.device.tuning.pixels_per_thread, self.grid.tile_size**2 // 8)
        uniforms = {}
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
        **buffers: Array,
    ) -> None:
        _, height, width, channels = self.image.colors.shape
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
            CHANNELS=channels,
            **(constants or {}),
        )
