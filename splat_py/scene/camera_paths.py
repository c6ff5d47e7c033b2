"""Paths that a camera can take through a captured scene: where photographs were taken, the right side up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.scene.camera import Camera, camera_extent, find_focus, find_subject, look_at_matrix, mean_up

Float64Array = NDArray[np.float64]

# What is nearer to the focus than this share of the cameras' distance belongs to the subject.
_SUBJECT = 0.6
# Turns of a spiral, and the share of the way to the subject that a dolly goes.
_TURNS, _APPROACH = 2, 0.4
# Cameras whose directions differ so much that their mean is shorter than this look all around.
_ALL_AROUND = 0.5


@dataclass(frozen=True)
class _Surroundings:
    """Cameras, seen from what they look at.

    Attributes:
        focus, up, east, north: a point and three directions at right angles to each other in the world, [3].
        radius: distance of a path from the vertical through the focus.
        heights: of the cameras above the focus, [C].
        middle, arc: the arc, radians, in which the cameras are; None if they are all around.
    """

    focus: Float64Array
    up: Float64Array
    east: Float64Array
    north: Float64Array
    radius: float
    heights: Float64Array
    middle: float
    arc: float | None

    @classmethod
    def of(cls, cameras: Sequence[Camera], points: Float64Array | None) -> _Surroundings:
        focus, _ = find_focus(cameras)
        up = mean_up(cameras)
        around = _covered_arc(cameras, focus, up)[1] is None
        subject = None if points is None or around else find_subject(cameras, points)
        focus = focus if subject is None else subject
        offsets = np.stack([camera.position for camera in cameras]) - focus
        heights = offsets @ up
        radii = np.linalg.norm(offsets - heights[:, None] * up, axis=1)
        # Straight above the focus "up" would be undefined in the picture.
        radius = max(float(np.quantile(radii, 0.75)), 0.05 * abs(float(heights.mean())), 1e-6)
        return cls(focus, up, *_ground(cameras, up), radius, heights, *_covered_arc(cameras, focus, up))

    def eyes(self, azimuths: Float64Array, heights: Float64Array, radius: float | None = None) -> Float64Array:
        """Positions [N, 3] around the focus."""
        across = np.cos(azimuths)[:, None] * self.east + np.sin(azimuths)[:, None] * self.north
        return self.focus + heights[:, None] * self.up + (self.radius if radius is None else radius) * across


def orbit(cameras: Sequence[Camera], n: int, points: ArrayLike | None = None) -> list[Camera]:
    """A closed path of `n` cameras for a turntable video of a captured scene.

    Cameras all around give a full circle around the point they look at (`find_focus`); its cameras aim a little above or below,
    so that what is there is in the middle. Otherwise the path stays where photographs were taken, since nothing is known
    behind it: an ellipse in (azimuth, height) over the covered arc, around `find_subject`. It is farther from the vertical
    through that point than three quarters of the cameras, whose pictures have all of it, and at their mean height. Where
    photographs show a room all around, from its middle, the path looks outwards as they do and turns around once. Size and
    intrinsics are those of the first camera; none has a lens.

    Args:
        points: [P, 3], such as the sparse points of a capture or the means of its Gaussians; without any, `find_focus` decides.

    Raises:
        SplatError: no camera, or no frame asked for.
    """
    world = _checked(cameras, n, points, "an orbit")
    phase = 2 * np.pi * np.arange(n) / n
    if looks_outwards(cameras):
        return _panorama(cameras, phase)
    around = _Surroundings.of(cameras, world)
    heights = around.heights
    if around.arc is None:
        azimuths, height = phase, np.full(n, heights.mean())
    else:
        # A single camera still sways a little, or there would be no video to look at.
        azimuths = around.middle + max(0.35 * around.arc, math.radians(5)) * np.sin(phase)
        height = heights.mean() + 0.5 * heights.std() * np.cos(phase)
    eyes = around.eyes(azimuths, height)
    target = around.focus
    if world is not None and around.arc is None:
        target = _centred(eyes, around.focus, around.up, world)
    return _aimed(cameras, eyes, target, around.up, "orbit")


def spiral(cameras: Sequence[Camera], n: int, points: ArrayLike | None = None) -> list[Camera]:
    """`n` cameras on two turns: around what cameras all around look at, from the height of the lowest to that of the highest;
    otherwise in front of it, in a plane across the mean viewing direction, as far as the photographs were apart (the path of
    Mildenhall et al. 2019, Local Light Field Fusion). Arguments and errors as of `orbit`."""
    world = _checked(cameras, n, points, "a spiral")
    if looks_outwards(cameras):
        return _panorama(cameras, 2 * np.pi * np.arange(n) / n)
    around = _Surroundings.of(cameras, world)
    share = np.arange(n) / max(n - 1, 1)
    phase = 2 * np.pi * _TURNS * share
    if around.arc is None:
        low, high = np.quantile(around.heights, (0.1, 0.9))
        eyes = around.eyes(phase, low + (high - low) * _eased(share))
        target = around.focus if world is None else _centred(eyes, around.focus, around.up, world)
        return _aimed(cameras, eyes, target, around.up, "spiral")
    positions = np.stack([camera.position for camera in cameras])
    middle = around.eyes(np.array([around.middle]), np.array([around.heights.mean()]))[0]
    forward = around.focus - middle
    distance = float(np.linalg.norm(forward))
    right, down = look_at_matrix(middle, around.focus, around.up)[:2, :3]
    spread = np.array([np.std((positions - middle) @ axis) for axis in (right, down)])
    # A single camera still sways a little.
    x, y = np.clip(spread, 0.02 * distance, 0.5 * distance)[:, None] * np.stack([np.cos(phase), np.sin(phase)])
    z = 0.1 * distance * np.sin(0.5 * phase)
    eyes = middle + x[:, None] * right + y[:, None] * down + z[:, None] * forward / distance
    return _aimed(cameras, eyes, around.focus, around.up, "spiral")


def dolly(cameras: Sequence[Camera], n: int, points: ArrayLike | None = None) -> list[Camera]:
    """`n` cameras on a straight line towards what the cameras look at, from where they were on average to two fifths of the
    way, without a jolt at either end. Arguments and errors as of `orbit`."""
    world = _checked(cameras, n, points, "a dolly")
    share = _APPROACH * _eased(np.arange(n) / max(n - 1, 1))
    if looks_outwards(cameras):
        first = cameras[0]
        start, ahead = first.position, (camera_extent(cameras) or 1.0) * first.forward
        return _aimed(cameras, start + share[:, None] * ahead, start + 2 * ahead, mean_up(cameras), "dolly")
    around = _Surroundings.of(cameras, world)
    start = around.eyes(np.array([around.middle]), np.array([around.heights.mean()]))[0]
    target = around.focus
    if world is not None and around.arc is None:
        target = _centred(start[None], target, around.up, world)
    return _aimed(cameras, start + share[:, None] * (target - start), target, around.up, "dolly")


PATHS: dict[str, Callable[..., list[Camera]]] = {"orbit": orbit, "spiral": spiral, "dolly": dolly}


def looks_outwards(cameras: Sequence[Camera]) -> bool:
    """Whether cameras look all around from about one place, as in a room, so that nothing is between them to go around."""
    forwards = np.stack([camera.forward for camera in cameras])
    if find_focus(cameras)[1] or np.linalg.norm(forwards.mean(0)) > _ALL_AROUND:
        return False
    offsets = np.stack([camera.position for camera in cameras])
    return float(((offsets - offsets.mean(0)) * forwards).sum(1).mean()) > -0.5 * camera_extent(cameras)


def _panorama(cameras: Sequence[Camera], azimuths: Float64Array) -> list[Camera]:
    """A turn at the cameras' mean place and tilt, half as far from it as they are."""
    up = mean_up(cameras)
    east, north = _ground(cameras, up)
    outwards = np.cos(azimuths)[:, None] * east + np.sin(azimuths)[:, None] * north
    positions = np.stack([camera.position for camera in cameras])
    tilt = float(np.clip(np.mean([camera.forward @ up for camera in cameras]), -0.5, 0.5))
    radius = 0.5 * float(np.median(np.linalg.norm(positions - positions.mean(0), axis=1)))
    eyes = positions.mean(0) + radius * outwards
    return _aimed(cameras, eyes, eyes + outwards + tilt * up, up, "orbit")


def _checked(cameras: Sequence[Camera], n: int, points: ArrayLike | None, what: str) -> Float64Array | None:
    if not cameras or n < 1:
        raise SplatError(f"{what} needs a camera and a frame, not {len(cameras)} cameras and {n} frames")
    return None if points is None else np.asarray(points, dtype=np.float64)


def _aimed(
    cameras: Sequence[Camera], eyes: Float64Array, targets: Float64Array, up: Float64Array, name: str
) -> list[Camera]:
    """Cameras at `eyes` [N, 3] that look at `targets` [3] or [N, 3], with the first camera's size and intrinsics."""
    first = cameras[0]
    pairs = enumerate(zip(eyes, np.broadcast_to(targets, eyes.shape), strict=True))
    return [
        Camera(look_at_matrix(eye, target, up), first.K, first.width, first.height, f"{name}_{i:04d}")
        for i, (eye, target) in pairs
    ]


def _eased(share: Float64Array) -> Float64Array:
    """0 to 1 with no speed at either end."""
    return share * share * (3 - 2 * share)


def _ground(cameras: Sequence[Camera], up: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Two unit directions [3] that span the ground plane."""
    east = cameras[0].viewmat[0, :3] - (cameras[0].viewmat[0, :3] @ up) * up
    if np.linalg.norm(east) < 1e-6:
        east = np.cross(up, np.eye(3)[np.abs(up).argmin()])
    east /= np.linalg.norm(east)
    return east, np.cross(up, east)


def _covered_arc(cameras: Sequence[Camera], focus: Float64Array, up: Float64Array) -> tuple[float, float | None]:
    """The middle and the length, radians, of the arc around `focus` in which the cameras are; None if they are all around."""
    east, north = _ground(cameras, up)
    offsets = np.stack([camera.position for camera in cameras]) - focus
    azimuths = np.sort(np.arctan2(offsets @ north, offsets @ east))
    gaps = np.diff(azimuths, append=azimuths[0] + 2 * np.pi)
    widest = int(gaps.argmax())
    if gaps[widest] < np.pi / 2:
        return 0.0, None
    arc = 2 * np.pi - float(gaps[widest])
    return float(azimuths[(widest + 1) % len(azimuths)]) + arc / 2, arc


def _centred(eyes: Float64Array, focus: Float64Array, up: Float64Array, points: Float64Array) -> Float64Array:
    """The point [3] above or below `focus` at which cameras must aim for what is near it to be in the middle of their pictures.

    From above, the near side of a table takes more of the picture than the far side. For paths all around: otherwise a wall
    behind the subject would count as much.
    """
    distance = float(np.linalg.norm(eyes - focus, axis=1).mean())
    near = points[np.linalg.norm(points - focus, axis=1) < _SUBJECT * distance]
    target = focus
    for _ in range(3 if len(near) else 0):
        middles = []
        for eye in eyes[:: max(1, len(eyes) // 8)]:
            viewmat = look_at_matrix(eye, target, up)
            _, y, depth = viewmat[:3, :3] @ near.T + viewmat[:3, 3:]
            middles.append(np.quantile(y / depth, (0.02, 0.98)).mean())
        target = target - float(np.mean(middles)) * distance * up
    return target
