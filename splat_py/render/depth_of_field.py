"""Depth of field: what a lens of some size blurs, as the mean of what many points on it see."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from splat_py.scene.camera import Camera

# Points on the lens.
_POINTS = 32
# The middle of a picture, as a share of its sides, and how large pictures of depths are for it, in pixels.
_MIDDLE, _SMALL = 0.2, 96
# Frames over which a video's focus follows what comes into its middle, as a standard deviation.
_FOLLOWING = 8.0


def through_lens(
    draw: Callable[[Camera], NDArray[np.float32]], camera: Camera, aperture: float, focus: float
) -> NDArray[np.float32]:
    """A picture [H, W, 3] from 0 to 1 that is sharp at depth `focus` only, of a lens of diameter `aperture`, world units.

    The mean is one of light and not of sRGB's values (IEC 61966-2-1), which are about its square roots: bright points out of
    focus stay bright discs, as photographs have them. With an aperture of 0 it is `draw(camera)`.
    """
    if aperture == 0:
        return draw(camera)
    light = sum(_linear(draw(each)) for each in lens_cameras(camera, aperture, focus)) / _POINTS
    return _encoded(np.asarray(light))


def lens_cameras(camera: Camera, aperture: float, focus: float) -> list[Camera]:
    """Cameras at points on a lens of diameter `aperture` around a camera, all pinholes, in whose pictures what is at depth
    `focus` is at the same place. The points lie on Vogel's spiral (1979), at equal areas."""
    cameras = []
    for i in range(_POINTS):
        radius, angle = 0.5 * aperture * math.sqrt((i + 0.5) / _POINTS), i * math.pi * (3 - math.sqrt(5))
        x, y = radius * math.cos(angle), radius * math.sin(angle)
        viewmat, K = camera.viewmat.copy(), camera.K.copy()
        viewmat[:2, 3] -= x, y
        K[:2, 2] += K[0, 0] * x / focus, K[1, 1] * y / focus
        cameras.append(replace(camera, viewmat=viewmat, K=K, distortion=None))
    return cameras


def focuses(depths: Callable[[Camera], NDArray[np.float32]], cameras: Iterable[Camera], default: float) -> NDArray[np.float64]:
    """For each of a path's cameras [N] the median depth in the middle of its picture, followed smoothly; `default` where there
    is nothing."""
    from scipy.ndimage import gaussian_filter1d

    found = [_median(depths(camera.scaled(min(1.0, _SMALL / max(camera.width, camera.height))))) for camera in cameras]
    known = np.array([math.nan if depth is None else depth for depth in found])
    present = np.isfinite(known)
    if not present.any():
        return np.full(len(known), default)
    at = np.arange(len(known))
    following = min(_FOLLOWING, len(known) / 30)
    return np.exp(gaussian_filter1d(np.log(np.interp(at, at[present], known[present])), following, mode="nearest"))


def _median(depths: NDArray[np.float32]) -> float | None:
    height, width = depths.shape
    rows, columns = (slice(int(side * (0.5 - _MIDDLE / 2)), math.ceil(side * (0.5 + _MIDDLE / 2))) for side in (height, width))
    middle = depths[rows, columns]
    return float(np.median(middle[middle > 0])) if (middle > 0).any() else None


def _linear(encoded: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4).astype(np.float32)


def _encoded(light: NDArray[np.float32]) -> NDArray[np.float32]:
    safe = np.maximum(light, 1e-8)
    return np.where(light <= 0.0031308, light * 12.92, 1.055 * safe ** (1 / 2.4) - 0.055).astype(np.float32)
