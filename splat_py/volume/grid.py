"""Voxel grids as radiance fields: `render`, the user's field, the device's field, and its optimiser."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.base.files import Layout
from splat_py.fit.run_folder import require_layout
from splat_py.fit.steps import Adam
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import forward_graph_break
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.gpu.tensors import check_tensors
from splat_py.scene.camera import Camera
from splat_py.volume.config import MOST_VOXELS, VolumeConfig
from splat_py.volume.device_field import Box, DeviceField, GridSize, March, features_of, is_halves, voxels_per_unit
from splat_py.volume.field import Field, check_finite_tensors
from splat_py.volume.optimiser import FieldOptimiser, State, check_memory

_BRICK = constant("splat/voxel_grid", "BRICK")
COEFFICIENTS = (1, 4, 9)
# A camera is in a wall if less than this share of the light comes through one voxel.
_WALL = 0.01


@forward_graph_break
def render(
    density: Tensor | Field,
    sh: Tensor | None,
    rays_o: Tensor,
    rays_d: Tensor,
    box: Any = None,
    *,
    background: Tensor | None = None,
    steps_per_unit: float | None = None,
    jitter: bool = False,
    seed: int = 0,
    skip_empty: bool = True,
    contracted: bool = False,
    device: Device | str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Render a radiance field along rays, by emission and absorption (Vicini et al. 2021, Path Replay Backpropagation).

    A ray's chord through the box is cut into N = ⌈length · steps_per_unit⌉ equal steps δ, sampled in their middles or, with
    `jitter`, at random places in them. With α_i = 1 - exp(-σ_i δ), T_i = Π_{j<i} (1 - α_j) and w_i = T_i α_i, the results are
    Σ w_i c_i + T_N background, T_N and Σ w_i t_i. Density and coefficients are interpolated trilinearly between the centres of
    voxels, and stay constant from the outermost centres to the faces of the box; then σ = max(0, density) and
    c = max(0, Σ_k Y_k(d) sh_k + ½). A ray stops where T falls to 1e-6: the rest of the light sees the background, and the
    gradient is that of the shorter sum.

    Differentiable in density, sh, background, rays_o and rays_d, through all three results, backward or forward, in memory that
    does not depend on N: only the results are saved, and a derivative marches again. Derivatives by rays are those of the sums
    above: samples move with the ray and with the places where it enters and leaves the box, and δ changes. Piecewise constant
    quantities are held: N, the random places in steps, the empty bricks, and the place where a ray stops. Trilinear
    interpolation has a kink where a sample passes a plane of voxel centres.

    Args:
        density: [X, Y, Z] per world unit; voxel (i, j, k) has its centre at
            low + (i + ½, j + ½, k + ½) / (X, Y, Z) · (high - low). float32, or float16 like sh: then the device stores halves
            and computes with float32, and gradients become float16 when they are complete. Or another field,
            sampled as its `march` describes: then sh is None and box is the field's.
        sh: [X, Y, Z, K, 3], K = 1, 4 or 9 coefficients for degree 0, 1 or 2, as for Gaussians.
        rays_o: [..., 3] origins in the world, which may lie in the box.
        rays_d: [..., 3] directions of any length above 0.
        box: [2, 3] lower and upper corner in the world.
        background: [3] rgb; black by default.
        steps_per_unit: samples per world unit; by default one per voxel, along the axis where voxels are smallest.
        jitter: sample at random places; the same `seed` gives the same ones.
        skip_empty: skip bricks of 8³ voxels without a positive density, which changes neither result nor gradient.
        contracted: continue to infinity, through space that is contracted around the box (Barron et al. 2022, Mip-NeRF 360).
            With m = max |x|, x from the middle in half sides, a point stays if m ≤ 1, and else moves to (2 - 1/m) x/m; voxels
            divide a box twice as large. Steps δ are equal in distances from the ray's point closest to the middle, contracted
            likewise beyond half the longest side; densities are per such distance.

    Returns:
        Colours [..., 3], transmittances [...] and depths [...] (from the ray's origin, in world units, weighted by w).

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value; or, in the backward pass, torch must be
            deterministic and the device adds up gradients atomically.
    """
    how: dict[str, Any] = {"steps_per_unit": steps_per_unit, "jitter": jitter, "seed": seed, "skip_empty": skip_empty}
    if isinstance(density, Field):
        if sh is not None or box is not None or contracted:
            raise SplatError(
                "sh, box and contracted belong to a grid of voxels; give sh=None and neither of the others with another field"
            )
        return density.march(rays_o, rays_d, background=background, device=device, **how)
    field = RadianceField(density, cast(Tensor, sh), box, np.zeros(3, np.float32), contracted)
    return field.march(rays_o, rays_d, background=background, device=device, **how)


class Volume(DeviceField):
    """A grid [X, Y, Z, row_floats(K)] on the device, in the order of `to_voxel_order`, with its occupancy."""

    kind = "DenseGrid"

    def __init__(self, device: Device, grid: Array) -> None:
        size = GridSize(*grid.shape[:3])
        row = grid.shape[3] * (2 if is_halves(grid) else 1)
        super().__init__(device, grid, (*size, row), size, row // 4)
        self._bricks = math.prod(side // _BRICK + 1 for side in size)
        self._occupancy = device.memory.empty(self._bricks, np.uint32)

    def record_occupancy(self, recorder: Recorder, march: March) -> None:
        """Record which bricks are not empty; called after every change of the grid."""
        recorder.stage("occupancy")
        recorder.dispatch(
            "volume_fit",
            "markOccupied",
            linear_groups(self._bricks),
            size=self.size,
            mark_all=int(not march.skip_empty),
            occupancy=self._occupancy,
            **features_of("grid", self.parameters),
            QUADS=self.quads,
            HALVES=is_halves(self.parameters),
        )

    def record_total_variation(self, recorder: Recorder, gradients: Array, variation: float, density_scale: float) -> None:
        """Add the gradient of `variation` times the sum of differences of voxels; densities count times `density_scale`."""
        recorder.stage("total variation")
        recorder.dispatch(
            "volume_fit",
            "addTotalVariation",
            linear_groups(self.parameters.size // 4),
            grid=self.parameters,
            gradients=gradients,
            size=self.size,
            variation=variation,
            density_scale=density_scale,
            QUADS=self.quads,
        )

    def _constants(self, march: March) -> dict[str, Any]:
        halves = is_halves(self.parameters)
        coefficients = {1: 1, 4: 4, 8: 9}[self.quads]
        return {"K": coefficients, "SKIP_EMPTY": march.skip_empty, "CONTRACTED": march.contracted, "HALVES": halves}

    def _memory(self) -> dict[str, Array | None]:
        return {**features_of("grid", self.parameters), "occupancy": self._occupancy}


@dataclass(frozen=True, eq=False)
class RadianceField(Field):
    """Voxels of density and view-dependent colour in a box; `splat_py.volume.render` defines how they are rendered.

    Attributes:
        density: [X, Y, Z] float32 or float16 on the CPU, per world unit; below 0 counts as 0.
        sh: [X, Y, Z, K, 3] of the same dtype, K = 1, 4 or 9.
        box: [2, 3] lower and upper corner in the world.
        background: [3] rgb behind the box.
        contracted: True if the field continues beyond the box, in contracted space; see `splat_py.volume.render`.

    Raises:
        SplatError: shapes do not fit, numbers are not finite, or the box has no volume.
    """

    _kind = "radiance field"
    _names = _features = ("density", "sh")

    density: Tensor
    sh: Tensor
    box: NDArray[np.float64]
    background: NDArray[np.float32]
    contracted: bool = False

    def __post_init__(self) -> None:
        check_grid(self.density, self.sh)
        super().__post_init__()

    @property
    def sh_degree(self) -> int:
        """Degree of the spherical harmonics: 0, 1 or 2."""
        return int(self.sh.shape[3] ** 0.5) - 1

    @property
    def steps_per_unit(self) -> float:
        """Default number of samples per world unit: one per voxel."""
        return voxels_per_unit(Box.of(self.box), tuple(self.density.shape), self.contracted)

    def _march(self, steps_per_unit: float | None, *how: Any) -> March:
        return replace(super()._march(steps_per_unit, *how), contracted=self.contracted)

    def _parameters(self) -> list[Tensor]:
        return [pack(self.density, self.sh)]

    def _on_device(self, device: Device, grid: Array) -> Volume:
        return Volume(device, grid)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {"contracted": np.ones(1, np.float32)} if self.contracted else {}

    @classmethod
    def _of_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        halves = all(arrays[name].dtype == np.float16 for name in ("density", "sh"))
        dtype = np.float16 if halves else np.float32
        density, sh = (torch.from_numpy(np.asarray(arrays[name], dtype)) for name in ("density", "sh"))
        return cls(density, sh, arrays["box"], arrays["background"], "contracted" in arrays)

    @staticmethod
    def _check_layout(header: dict[str, Any], layout: Layout) -> None:
        _, sizes = layout["sh"]
        x, y, z, k, _ = sizes
        if k not in (1, 4, 9) or not 1 <= min(x, y, z) <= max(x, y, z) <= MOST_VOXELS:
            raise ValueError(f"sh has shape {list(sizes)}; it must be [X, Y, Z, K, 3], K = 1, 4 or 9")
        shapes = {"density": (x, y, z), "sh": (x, y, z, k, 3), "box": (2, 3), "background": (3,)}
        if "contracted" in layout:
            shapes["contracted"] = (1,)
        for name, (kind, _) in layout.items():
            if kind not in ("F16", "F32", "F64"):
                raise ValueError(f"{name} is {kind}; it must be floating-point")
        require_layout(layout, shapes, {name: kind for name, (kind, _) in layout.items()})

    def _warn_of(self, camera: Camera) -> None:
        low, high = self.box
        if self.contracted:
            low, high = low - (high - low) / 2, high + (high - low) / 2
        size = np.array(self.density.shape)
        inside = (camera.position >= low) & (camera.position <= high)
        if not inside.all():
            return
        voxel = np.clip(((camera.position - low) / (high - low) * size).astype(int), 0, size - 1)
        density = float(self.density[tuple(voxel)])
        if np.exp(-max(density, 0.0) * ((high - low) / size).min()) < _WALL:
            place = ", ".join(f"{x:.3g}" for x in camera.position)
            warnings.warn(
                f"the camera at ({place}) stands inside a wall, where the density is {density:.3g}; move it into the open",
                stacklevel=3,
            )


def check_grid(density: Tensor, sh: Tensor) -> None:
    """Raise SplatError unless these are the density and the coefficients of one grid."""
    tensors = {"density": density, "sh": sh}
    check_tensors(tensors, halves=tensors, needed=tensors)
    if density.dim() != 3 or not all(1 <= n <= MOST_VOXELS for n in density.shape):
        raise SplatError(f"density has shape {list(density.shape)}; expected [X, Y, Z], each from 1 to {MOST_VOXELS}")
    if sh.dim() != 5 or sh.shape[:3] != density.shape or sh.shape[3] not in COEFFICIENTS or sh.shape[4] != 3:
        expected = ", ".join(map(str, density.shape))
        raise SplatError(f"sh has shape {list(sh.shape)}; expected [{expected}, K, 3] with K = 1, 4 or 9")
    if density.dtype != sh.dtype:
        raise SplatError(f"density has dtype {density.dtype} and sh {sh.dtype}; convert both to one")
    check_finite_tensors(tensors)


def row_floats(coefficients: int) -> int:
    """Return the floats of a voxel on the device: density, then K × rgb, padded to a power of two."""
    return {1: 4, 4: 16, 9: 32}[coefficients]


def _sides(grid: Tensor) -> tuple[int, int, int]:
    x, y, z = (2 - n % 2 for n in grid.shape[:3])
    return x, y, z


def to_voxel_order(grid: Tensor) -> Tensor:
    """Return [X, Y, Z, row] with rows in the kernels' order (`VoxelLayout` in slang/splat/voxel_grid.slang)."""
    (x, y, z), (a, b, c) = grid.shape[:3], _sides(grid)
    return grid.reshape(x // a, a, y // b, b, z // c, c, -1).permute(0, 2, 4, 1, 3, 5, 6).reshape(grid.shape)


def from_voxel_order(grid: Tensor) -> Tensor:
    """Undo `to_voxel_order`."""
    (x, y, z), (a, b, c) = grid.shape[:3], _sides(grid)
    return grid.reshape(x // a, y // b, z // c, a, b, c, -1).permute(0, 3, 1, 4, 2, 5, 6).reshape(grid.shape)


def pack(density: Tensor, sh: Tensor) -> Tensor:
    """Pack a grid into [X, Y, Z, row_floats(K)], in the order of `to_voxel_order`."""
    coefficients = sh.shape[3]
    padding = density.new_zeros(*density.shape, row_floats(coefficients) - 1 - 3 * coefficients)
    return to_voxel_order(torch.cat([density[..., None], sh.flatten(3), padding], dim=-1))


def check_stages(device: Device, sizes: Iterable[tuple[int, ...]], coefficients: int) -> None:
    """Raise SplatError unless the device can hold grids of these sizes, which a fit has one after another."""
    for size in sizes:
        floats = row_floats(coefficients)
        device.memory.limits.check_grid(size, floats)
        advice = "; use lower --resolutions or a lower --sh-degree"
        check_memory(device, math.prod(size) * floats, f"a grid of {'×'.join(map(str, size))} voxels", advice)


class GridOptimiser(FieldOptimiser):
    """Voxels in a fit; each stage resamples them to its resolution. Densities below 0 count as 0."""

    # An epsilon larger than for Gaussians keeps coefficients still that no photograph constrains.
    ADAM = Adam(epsilon=1e-8)
    # Densities learn faster than constant colours, view dependence slower; all rates fall during each stage.
    DENSITY_RATE, REST_RATE = 5.0, 0.25
    LAST_RATE = 0.3
    # A fit starts as a thin grey fog of this optical depth along the longest side: empty space would have no gradient.
    FIRST_DENSITY = 1.0

    def _begin(self, resumed: State | None, kind: Any) -> None:
        self._coefficients = (self.config.sh_degree + 1) ** 2
        check_stages(self.device, map(self.size_at, range(len(self.config.resolutions))), self._coefficients)
        if resumed:
            self._upload_grid(resumed["grid"], resumed["m"], resumed["v"])
        else:
            grid = np.zeros((*self.size, row_floats(self._coefficients)), np.float32)
            grid[..., 0] = self.FIRST_DENSITY / self.box.sides.max()
            self._upload_grid(grid)

    @staticmethod
    def layout(config: VolumeConfig, step: int, layout: Layout) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        _, (x, y, z, row) = layout["grid"]
        if row != row_floats((config.sh_degree + 1) ** 2):
            raise ValueError("it was written by another version of splat_py")
        # The first step of a stage enlarges the grid.
        voxels = config.resolutions[max(step - 1, 0) // config.steps_per_resolution]
        if max(x, y, z) != voxels or min(x, y, z) < 1:
            raise ValueError(f"the grid has {x}×{y}×{z} voxels, not {voxels} along its longest side")
        return dict.fromkeys(("grid", "m", "v"), (x, y, z, row)), {}

    def begin_stage(self, stage: int) -> None:
        """Resample the voxels to the stage's resolution; Adam restarts."""
        grid = from_voxel_order(self.volume.parameters.tensor().cpu()).movedim(-1, 0)[None]
        # The same field, sampled at the new voxels' centres.
        resized = torch.nn.functional.interpolate(grid, self.size_at(stage), mode="trilinear", align_corners=False)
        self._upload_grid(np.ascontiguousarray(resized[0].movedim(0, -1).numpy()))

    def record(self, recorder: Recorder, step: int) -> None:
        """Record total variation, if its weight is above 0, and Adam."""
        config, age = self.config, step % self.config.steps_per_resolution
        rate = config.rate * self.LAST_RATE ** (age / max(config.steps_per_resolution - 1, 1))
        side = float(self.box.sides.max())
        if config.total_variation > 0:
            self.volume.record_total_variation(recorder, self.gradients, config.total_variation / math.prod(self.size), side)
        self._record_adam(recorder, age, rate * self.DENSITY_RATE / side, rate, rate * self.REST_RATE)

    def field(self, background: NDArray[np.float32]) -> RadianceField:
        grid = from_voxel_order(self.volume.parameters.tensor().cpu())
        k = self._coefficients
        sh = grid[..., 1 : 1 + 3 * k].reshape(*grid.shape[:3], k, 3).contiguous()
        return RadianceField(grid[..., 0].contiguous(), sh, self.box.numpy(), background, self.config.contract)

    def state(self) -> State:
        """Return grid, m, v: [X, Y, Z, row]."""
        arrays = {"grid": self.volume.parameters, "m": self.m, "v": self.v}
        return {name: np.array(from_voxel_order(array.tensor().cpu()).numpy()) for name, array in arrays.items()}

    def parts(self, state: State) -> dict[str, NDArray]:
        grid = state["grid"]
        return {"the density": grid[..., :1], "the colour": grid[..., 1:], "m": state["m"], "v": state["v"]}

    def _upload_grid(self, *arrays: NDArray) -> None:
        """Upload the grid and Adam's moments, [X, Y, Z, row]."""
        self.size = arrays[0].shape[:3]
        self._upload(Volume, *(to_voxel_order(torch.from_numpy(array)).numpy() for array in arrays))
