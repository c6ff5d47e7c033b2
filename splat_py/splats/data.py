"""What goes from stage to stage, on the device.

N Gaussians, of one or more scenes, and C cameras, as many of each scene. M splats, D channels. Dense, there is a splat for each
camera and Gaussian of its scene; packed, only for those that are visible (slang/kernels/splat_rows.slang).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import UserType
from splat_py.splats.cameras import UnscentedTransform

# Floats of an ellipse's gradient row: mean2d 2, conic 3, opacity 1; colours, extras, |mean2d| follow (kernels/rasterize.slang).
MEAN_OFFSET, CONIC_OFFSET, OPACITY_OFFSET, COLOR_OFFSET = 0, 2, 5, 6

# By `Settings.max_alpha`.
STOPS = {0.999: "SceneStop", 0.99: "SceneStop99"}


@dataclass(frozen=True)
class Settings:
    """What the kernels are specialised by, and what the projection is told."""

    tile_size: int
    # Gaussians come as an optimiser stores them: log-scales and opacity logits.
    raw_params: bool = False
    antialiased: bool = False
    absgrad: bool = False
    camera_gradient: bool = False
    # PerPixel, PerWave, PerGroup or PerIntersection (parallel/gradient_accumulation.slang).
    accumulation: str = "PerWave"
    # Or compare-and-swap, where a device cannot add to floats atomically.
    native_atomics: bool = True
    # A type that implements ICameraModel (splat/camera_model.slang).
    camera_model: str | UserType = "Pinhole"
    # Sigma points in the place of the Jacobian.
    unscented: UnscentedTransform | None = None
    # The name of a rolling shutter's type (splats/cameras.py); cameras then have two poses.
    shutter: str | None = None
    # How splats fade, and how many extra numbers each has for it (splat/falloff.slang).
    falloff: str | UserType = "GaussianFalloff"
    extras: int = 0
    # Where splats lie, and how many numbers say so in the place of a conic (splat/shape.slang).
    shape: str = "Ellipse"
    shape_floats: int = 3
    # No splat's α is larger: 0.999 or 0.99.
    max_alpha: float = 0.999
    # Added to the 2D covariance's diagonal, pixel².
    blur: float = 0.3
    near: float = 0.01
    far: float = 1e10
    # Splats that reach no further than this, in pixels, are culled.
    radius_clip: float = 0.0

    @property
    def per_isect(self) -> bool:
        """Whether gradients add up in an order that is the same from run to run."""
        return self.accumulation == "PerIntersection"

    def row(self, channels: int) -> int:
        """Floats of a splat's gradient row."""
        return MEAN_OFFSET + 2 + self.shape_floats + 1 + channels + self.extras + (2 if self.absgrad else 0)

    def splat_constants(self) -> dict[str, str | int | UserType]:
        """What the rasteriser is specialised by."""
        stop: dict[str, str | int | UserType] = {} if self.max_alpha == 0.999 else {"Stop": STOPS[self.max_alpha]}
        own: dict[str, str | int | UserType] = {}
        if isinstance(self.falloff, UserType) and self.falloff.through:
            own["Shape"] = self.falloff
        return stop | self.bounds_constants() | own

    def bounds_constants(self) -> dict[str, str | int | UserType]:
        """What kernels that find out where splats are visible are specialised by."""
        shape: dict[str, str | int | UserType] = {"Shape": self.shape, "SHAPE": self.shape_floats}
        return self.falloff_constants() | (shape if self.shape != "Ellipse" else {})

    def falloff_constants(self) -> dict[str, str | int | UserType]:
        """What kernels that evaluate splats, or their bounds, are specialised by."""
        falloff: dict[str, str | int | UserType] = {} if self.falloff == "GaussianFalloff" else {"Falloff": self.falloff}
        return falloff | ({"EXTRAS": self.extras} if self.extras else {})

    def accumulation_constants(self) -> dict[str, str | bool]:
        """What kernels that add up gradients are specialised by."""
        # Where nothing is added atomically, how that would be done is not worth a kernel.
        native = self.native_atomics or self.per_isect
        return {"Accumulation": self.accumulation} | ({} if native else {"NATIVE_ATOMICS": False})


@dataclass(frozen=True)
class Cameras:
    """C cameras with images of one size."""

    viewmats: Array  # [C, 4, 4] world → camera, or with a rolling shutter [C, 2, 4, 4]: at its first and at its last row
    Ks: Array  # [C, 3, 3]
    width: int
    height: int
    # Of which each has the same number of cameras, and of Gaussians.
    scenes: int = 1
    lenses: Array | None = None  # [C, LENS] radial 6, tangential 2, thin prism 4

    @property
    def count(self) -> int:
        """C."""
        return self.viewmats.shape[0]


@dataclass(frozen=True)
class GaussianArrays:
    """N Gaussians, activated or raw (`Settings.raw_params`); also the shape of their gradients.

    With `covars`, quaternions and scales are empty.
    """

    means: Array  # [N, 3]
    quats: Array  # [N, 4]
    scales: Array  # [N, 3]
    opacities: Array  # [N]
    covars: Array | None = None  # [N, 6] xx, xy, xz, yy, yz, zz
    extras: Array | None = None  # [N, Settings.extras]

    @property
    def count(self) -> int:
        """N."""
        return self.opacities.size

    def map(self, function: Callable[[Array], Array]) -> GaussianArrays:
        """The same of each array."""
        means, quats, scales, opacities = (function(a) for a in (self.means, self.quats, self.scales, self.opacities))
        covars, extras = (None if a is None else function(a) for a in (self.covars, self.extras))
        return GaussianArrays(means, quats, scales, opacities, covars, extras)


@dataclass(frozen=True)
class PackedIds:
    """Whose the splats are, where only visible ones have a row: camera by camera, Gaussians ascending."""

    images: Array  # [M] uint32, cameras
    gaussians: Array  # [M] uint32
    offsets: Array  # [C + 1] uint32, where the rows of each camera begin

    @classmethod
    def empty(cls, device: Device, splats: int, cameras: int) -> PackedIds:
        """Arrays for so many."""
        empty = device.memory.empty
        return cls(empty(splats, np.uint32), empty(splats, np.uint32), empty(cameras + 1, np.uint32))


@dataclass(frozen=True)
class Splats:
    """Gaussians on the cameras' image planes. Shapes are of a dense one; M takes the place of C, N where it is packed."""

    means2d: Array  # [C, N, 2] pixels
    depths: Array  # [C, N] camera z, or the distance
    conics: Array  # [C, N, 3], or `Settings.shape_floats` of what else a splat is
    opacities: Array  # [C, N]
    radii: Array  # [C, N, 2] int32, pixels; 0 where culled
    packed: PackedIds | None = None
    extras: Array | None = None  # [C, N, Settings.extras]

    @classmethod
    def empty(cls, device: Device, *shape: int, packed: PackedIds | None = None) -> Splats:
        """Arrays for that many splats, cameras × Gaussians or packed."""
        empty = device.memory.empty
        return cls(empty((*shape, 2)), empty(shape), empty((*shape, 3)), empty(shape), empty((*shape, 2), np.int32), packed)

    @property
    def count(self) -> int:
        """M."""
        return self.depths.size


def id_buffers(packed: PackedIds | None) -> dict[str, Array | None]:
    """What kernels/splat_rows.slang reads."""
    if packed is None:
        return dict.fromkeys(("imageIds", "gaussianIds", "imageOffsets"))
    return {"imageIds": packed.images, "gaussianIds": packed.gaussians, "imageOffsets": packed.offsets}


def id_constants(packed: PackedIds | None) -> dict[str, bool]:
    """What it is specialised by."""
    return {"PACKED": True} if packed else {}


@dataclass(frozen=True)
class StridedView:
    """Values that lie `stride` floats apart in an array, beginning at `offset`; if `stride` is 0, all of it in order."""

    array: Array
    stride: int
    offset: int = 0


@dataclass(frozen=True)
class SplatGradients:
    """∂L/∂splats [C, N], as the rasteriser's backward pass leaves them."""

    means2d: StridedView
    conics: StridedView
    opacities: StridedView
    depths: Array

    @classmethod
    def of_rows(cls, rows: Array, v_depths: Array) -> SplatGradients:
        """The parts of gradient rows [C, N, Settings.row(D)]."""
        offsets = MEAN_OFFSET, CONIC_OFFSET, OPACITY_OFFSET
        means2d, conics, opacities = (StridedView(rows, rows.shape[-1], offset) for offset in offsets)
        return cls(means2d, conics, opacities, v_depths)
