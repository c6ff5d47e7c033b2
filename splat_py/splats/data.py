"""What goes from stage to stage, on the device. N Gaussians, C cameras, M = C · N splats, D channels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device

# Floats of a splat's gradient row: mean2d 2, conic 3, opacity 1; colours and |mean2d| follow (kernels/rasterize.slang).
MEAN_OFFSET, CONIC_OFFSET, OPACITY_OFFSET, COLOR_OFFSET = 0, 2, 5, 6


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
        return COLOR_OFFSET + channels + (2 if self.absgrad else 0)

    def accumulation_constants(self) -> dict[str, str | bool]:
        """What kernels that add up gradients are specialised by."""
        # Where nothing is added atomically, how that would be done is not worth a kernel.
        native = self.native_atomics or self.per_isect
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
    """N Gaussians, activated or raw (`Settings.raw_params`); also the shape of their gradients."""

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
class StridedView:
    """Values that lie `stride` floats apart in an array, beginning at `offset`."""

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
