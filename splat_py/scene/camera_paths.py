"""Camera paths through a captured scene: near the photographs' positions and upright, or through the keyframes of a JSON
file."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import CubicHermiteSpline, PchipInterpolator
from scipy.spatial.transform import Rotation, RotationSpline

from splat_py.base.arguments import as_integer, as_numpy, instances
from splat_py.base.errors import SplatError
from splat_py.base.fields import check_fields, dataclass_of
from splat_py.base.files import is_file, parse_json, refusing, regular, write_json
from splat_py.scene.camera import (
    MOST_DISTANCE,
    Camera,
    best_covered,
    camera_extent,
    find_focus,
    find_subject,
    look_at_matrix,
    mean_up,
    subject_sphere,
)
from splat_py.scene.dataset import depths_of_points
from splat_py.scene.similarity import quaternion_of

Float64Array = NDArray[np.float64]

# Limits of a keyframe file.
_VERSION, _MOST_BYTES, _MOST_KEYFRAMES = 1, 1 << 20, 1000
# The longest path and the shortest time between keyframes, seconds; a camera's speed divides by the latter.
_MOST_SECONDS, _LEAST_SECONDS = 3600.0, 1e-3
_FIELDS_OF_VIEW, _SIDES = (1.0, 170.0), (2, 8192)
# `circled_subject`: cameras and points, about so many, and the longer sides of pictures in pixels.
_VIEWS, _SHOWN, _SMALL = 24, 50_000, 48


@dataclass(frozen=True)
class _Surroundings:
    """The arrangement of cameras around the point that they look at."""

    focus: Float64Array  # that point, [3] in the world; up, east and north are perpendicular unit vectors [3]
    up: Float64Array
    east: Float64Array
    north: Float64Array
    radius: float  # distance of a path from the vertical through the focus
    heights: Float64Array  # heights of the cameras above the focus, [C]
    middle: float  # azimuth of the middle of the cameras' arc, radians
    arc: float | None  # length of the arc, radians; None if cameras are all around

    @classmethod
    def of(cls, cameras: Sequence[Camera], points: Float64Array | None) -> Self:
        focus, _ = find_focus(cameras)
        up = mean_up(cameras)
        around = covered_arc(cameras, focus, up)[1] is None
        subject = None if points is None or around else find_subject(cameras, points)
        focus = focus if subject is None else subject
        offsets = np.stack([camera.position for camera in cameras]) - focus
        heights = offsets @ up
        radii = np.linalg.norm(offsets - heights[:, None] * up, axis=1)
        # A camera straight above the focus would have no "up" in its picture.
        radius = max(float(np.quantile(radii, 0.75)), 0.05 * abs(float(heights.mean())), 1e-6)
        return cls(focus, up, *_ground(cameras, up), radius, heights, *covered_arc(cameras, focus, up))

    def eyes(self, azimuths: Float64Array, heights: Float64Array) -> Float64Array:
        across = np.cos(azimuths)[:, None] * self.east + np.sin(azimuths)[:, None] * self.north
        return self.focus + heights[:, None] * self.up + self.radius * across

    @property
    def middle_eye(self) -> Float64Array:
        """The position [3] in the middle of the arc, at the cameras' mean height."""
        return self.eyes(np.array([self.middle]), np.array([self.heights.mean()]))[0]

    def target(self, eyes: Float64Array, points: Float64Array | None) -> Float64Array:
        """The point [3] that cameras at `eyes` [N, 3] aim at. It is the focus, or with cameras all around, a point above or
        below it that centres the points near the focus in the pictures: seen from above, the near side of a table fills more
        of the picture than the far side. On other paths a wall behind the subject would distort this, so it is not done."""
        target = self.focus
        if points is None or self.arc is not None:
            return target
        distance = float(np.linalg.norm(eyes - self.focus, axis=1).mean())
        near = points[np.linalg.norm(points - self.focus, axis=1) < 0.6 * distance]
        for _ in range(3 if len(near) else 0):
            middles = []
            for eye in eyes[:: max(1, len(eyes) // 8)]:
                viewmat = look_at_matrix(eye, target, self.up)
                _, y, depth = viewmat[:3, :3] @ near.T + viewmat[:3, 3:]
                middles.append(np.quantile(y / depth, (0.02, 0.98)).mean())
            target = target - float(np.mean(middles)) * distance * self.up
        return target


def orbit(cameras: Sequence[Camera], n: int, points: ArrayLike | None = None) -> list[Camera]:
    """A closed path of `n` cameras for a turntable video of a captured scene.

    If cameras are all around, the path is a full circle around the point they look at (`find_focus`), which begins beside the
    camera that sees most (`best_covered`); its cameras aim a little above or below that point to centre the subject. Otherwise
    the path stays near the photographs, since the scene behind is unknown: an ellipse in (azimuth, height) over the covered arc
    around `find_subject`, at the cameras' mean height. Its distance from the vertical through the subject exceeds that of three
    quarters of the cameras, to show the whole subject. If photographs look outwards from the middle of a room, the path turns
    around there once. All cameras have the size and intrinsics of the first, without lens distortion. SplatError if
    `cameras` is empty or `n` is below 1.

    `points` [P, 3] are for example a capture's sparse points or its Gaussians' means; without them, `find_focus` decides.
    """
    cameras, world = _checked(cameras, n, points, "an orbit")
    phase = 2 * np.pi * np.arange(n) / n
    if looks_outwards(cameras):
        return _panorama(cameras, phase)
    around = _Surroundings.of(cameras, world)
    heights = around.heights
    if around.arc is None:
        first = best_covered(cameras, around.focus[None] if world is None else world).position - around.focus
        azimuths, height = phase + math.atan2(first @ around.north, first @ around.east), np.full(n, heights.mean())
    else:
        # Sway a little around a single camera; otherwise the video would stand still.
        azimuths = around.middle + max(0.35 * around.arc, math.radians(5)) * np.sin(phase)
        height = heights.mean() + 0.5 * heights.std() * np.cos(phase)
    eyes = around.eyes(azimuths, height)
    return _aimed(cameras, eyes, around.target(eyes, world), around.up, "orbit")


def spiral(cameras: Sequence[Camera], n: int, points: ArrayLike | None = None) -> list[Camera]:
    """A path of `n` cameras with two turns. If cameras are all around, it circles the point they look at and rises from the
    lowest to the highest camera. Otherwise it spirals in front of the subject, across the mean viewing direction, as wide as
    the photographs' spread (Mildenhall et al. 2019, Local Light Field Fusion). Arguments and errors as in `orbit`."""
    cameras, world = _checked(cameras, n, points, "a spiral")
    if looks_outwards(cameras):
        return _panorama(cameras, 2 * np.pi * np.arange(n) / n)
    around = _Surroundings.of(cameras, world)
    share = np.arange(n) / max(n - 1, 1)
    phase = 2 * np.pi * 2 * share
    if around.arc is None:
        low, high = np.quantile(around.heights, (0.1, 0.9))
        eyes = around.eyes(phase, low + (high - low) * _eased(share))
        return _aimed(cameras, eyes, around.target(eyes, world), around.up, "spiral")
    positions = np.stack([camera.position for camera in cameras])
    middle = around.middle_eye
    forward = around.focus - middle
    distance = float(np.linalg.norm(forward))
    right, down = look_at_matrix(middle, around.focus, around.up)[:2, :3]
    spread = np.array([np.std((positions - middle) @ axis) for axis in (right, down)])
    # Sway a little around a single camera.
    x, y = np.clip(spread, 0.02 * distance, 0.5 * distance)[:, None] * np.stack([np.cos(phase), np.sin(phase)])
    z = 0.1 * distance * np.sin(0.5 * phase)
    eyes = middle + x[:, None] * right + y[:, None] * down + z[:, None] * forward / distance
    return _aimed(cameras, eyes, around.focus, around.up, "spiral")


def dolly(cameras: Sequence[Camera], n: int, points: ArrayLike | None = None) -> list[Camera]:
    """A path of `n` cameras on a straight line from the cameras' mean position towards the subject, two fifths of the way,
    with no speed at either end. Arguments and errors as in `orbit`."""
    cameras, world = _checked(cameras, n, points, "a dolly")
    share = 0.4 * _eased(np.arange(n) / max(n - 1, 1))
    if looks_outwards(cameras):
        first = cameras[0]
        start, ahead = first.position, (camera_extent(cameras) or 1.0) * first.forward
        return _aimed(cameras, start + share[:, None] * ahead, start + 2 * ahead, mean_up(cameras), "dolly")
    around = _Surroundings.of(cameras, world)
    start = around.middle_eye
    target = around.target(start[None], world)
    return _aimed(cameras, start + share[:, None] * (target - start), target, around.up, "dolly")


PATHS: dict[str, Callable[..., list[Camera]]] = {"orbit": orbit, "spiral": spiral, "dolly": dolly}


def looks_outwards(cameras: Sequence[Camera]) -> bool:
    """True if cameras look outwards from about one place, as in a room: there is no subject between them to circle."""
    forwards = np.stack([camera.forward for camera in cameras])
    # The mean of directions all around is short.
    if find_focus(cameras)[1] or np.linalg.norm(forwards.mean(0)) > 0.5:
        return False
    offsets = np.stack([camera.position for camera in cameras])
    return float(((offsets - offsets.mean(0)) * forwards).sum(1).mean()) > -0.5 * camera_extent(cameras)


def circled_subject(cameras: Sequence[Camera], points: ArrayLike) -> tuple[Float64Array, float] | None:
    """The subject's sphere (`subject_sphere`) if the cameras are all around it and it hides what is behind, else None: from
    around a room one looks across it, at its walls.

    `points` [P, 3] lie on surfaces. Most of those in the middle of pictures, nearest to the camera, have to be in the sphere.
    """
    focus, common = find_focus(cameras)
    lenses = {camera.model for camera in cameras} <= {None, "pinhole", "fisheye"}
    if not common or not lenses or covered_arc(cameras, focus, mean_up(cameras))[1] is not None:
        return None
    world = np.asarray(points, dtype=np.float64)
    world = world[:: max(1, len(world) // _SHOWN)]
    center, radius = subject_sphere(cameras)
    held = np.linalg.norm(world - center, axis=1) <= radius
    shares = []
    for camera in cameras[:: max(1, len(cameras) // _VIEWS)]:
        small = replace(camera, distortion=None, model=None).scaled(_SMALL / max(camera.width, camera.height))
        third = np.s_[small.height // 3 : -(small.height // 3), small.width // 3 : -(small.width // 3)]
        inside, outside = (depths_of_points(small, world[which])[third] for which in (held, ~held))
        nearest = (inside > 0) & ((outside == 0) | (inside < outside))
        shares.extend(nearest[(inside > 0) | (outside > 0)])
    return (center, radius) if shares and np.mean(shares) > 0.5 else None


def _panorama(cameras: Sequence[Camera], azimuths: Float64Array) -> list[Camera]:
    """A full turn around the cameras' mean position with their mean tilt, at half their distance from it."""
    up = mean_up(cameras)
    east, north = _ground(cameras, up)
    outwards = np.cos(azimuths)[:, None] * east + np.sin(azimuths)[:, None] * north
    positions = np.stack([camera.position for camera in cameras])
    tilt = float(np.clip(np.mean([camera.forward @ up for camera in cameras]), -0.5, 0.5))
    radius = 0.5 * float(np.median(np.linalg.norm(positions - positions.mean(0), axis=1)))
    eyes = positions.mean(0) + radius * outwards
    return _aimed(cameras, eyes, eyes + outwards + tilt * up, up, "orbit")


def _checked(
    cameras: Sequence[Camera], n: int, points: ArrayLike | None, what: str
) -> tuple[list[Camera], Float64Array | None]:
    listed = instances(Camera, "cameras", cameras)
    if not listed:
        raise SplatError(f"{what} needs a camera, but cameras is empty")
    as_integer("n", n, 1)
    world = None if points is None else as_numpy("points", points, np.float64)
    if world is not None and (world.ndim != 2 or world.shape[1] != 3):
        raise SplatError(f"points has shape {list(world.shape)}; expected [P, 3]")
    return listed, world


def _aimed(cameras: Sequence[Camera], eyes: Float64Array, targets: Float64Array, up: Float64Array, name: str) -> list[Camera]:
    """Cameras at `eyes` [N, 3] that look at `targets` [3] or [N, 3], with the first camera's size and intrinsics."""
    first = cameras[0]
    pairs = zip(eyes, np.broadcast_to(targets, eyes.shape), strict=True)
    poses = enumerate(look_at_matrix(eye, target, up) for eye, target in pairs)
    return [Camera(pose, first.K, first.width, first.height, f"{name}_{i:04d}") for i, pose in poses]


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


def covered_arc(cameras: Sequence[Camera], focus: Float64Array, up: Float64Array) -> tuple[float, float | None]:
    """The middle and the length, radians, of the cameras' arc around `focus`; the length is None if they are all around."""
    east, north = _ground(cameras, up)
    offsets = np.stack([camera.position for camera in cameras]) - focus
    azimuths = np.sort(np.arctan2(offsets @ north, offsets @ east))
    gaps = np.diff(azimuths, append=azimuths[0] + 2 * np.pi)
    widest = int(gaps.argmax())
    if gaps[widest] < np.pi / 2:
        return 0.0, None
    arc = 2 * np.pi - float(gaps[widest])
    return float(azimuths[(widest + 1) % len(azimuths)]) + arc / 2, arc


@dataclass(frozen=True)
class Keyframe:
    time: float  # seconds from the beginning of the path, up to an hour
    position: tuple[float, float, float]  # in the world, the dataset's units
    # (w, x, y, z), camera → world, OpenCV axes: +x right, +y down, +z forward; any length above zero.
    quaternion: tuple[float, float, float, float]
    fov: float  # vertical field of view, degrees

    @classmethod
    def of_camera(cls, camera: Camera, time: float) -> Self:
        fov = math.degrees(2 * math.atan(0.5 * camera.height / camera.K[1, 1]))
        x, y, z = map(float, camera.position)
        return cls(time, (x, y, z), quaternion_of(camera.viewmat[:3, :3].T), fov)


@dataclass(frozen=True)
class KeyframePath:
    """Two or more keyframes in order of time, and the width and height of the pictures in pixels."""

    keyframes: tuple[Keyframe, ...]
    size: tuple[int, int]

    def __post_init__(self) -> None:
        if not 2 <= len(self.keyframes) <= _MOST_KEYFRAMES:
            raise SplatError(f"a path needs 2 to {_MOST_KEYFRAMES} keyframes, not {len(self.keyframes)}")
        if not all(_SIDES[0] <= side <= _SIDES[1] for side in self.size):
            raise SplatError(f"size is {list(self.size)}; sides must be {_SIDES[0]} to {_SIDES[1]} pixels")
        for i, keyframe in enumerate(self.keyframes):
            try:
                check_fields(keyframe, {"time": (0, _MOST_SECONDS), "fov": _FIELDS_OF_VIEW})
                if max(map(abs, keyframe.position)) > MOST_DISTANCE:
                    raise SplatError(f"its position is beyond {MOST_DISTANCE:g}")
                if not 1e-6 <= math.hypot(*keyframe.quaternion) <= 1e6:
                    raise SplatError("its quaternion is not a rotation")
            except SplatError as error:
                raise SplatError(f"keyframe {i}: {error}") from error
        gaps = np.diff([keyframe.time for keyframe in self.keyframes])
        if not (gaps >= _LEAST_SECONDS).all():
            raise SplatError(f"the time of keyframe {int(gaps.argmin()) + 1} is not after that before it; put them in order")

    @property
    def seconds(self) -> float:
        return self.keyframes[-1].time - self.keyframes[0].time

    @property
    def frames(self) -> int:
        """The number of frames of a video of the path at 30 frames a second."""
        return round(30 * self.seconds) + 1

    def cameras(self, n: int) -> list[Camera]:
        """`n` cameras at equal time steps from the first keyframe to the last; a single camera is at the first. Positions
        follow the Catmull-Rom spline (Barry and Goldman 1988), whose velocity is continuous and which does not swing out.
        Orientations follow a spline with continuous angular acceleration, fields of view a monotone spline."""
        times = np.array([keyframe.time for keyframe in self.keyframes])
        positions = np.array([keyframe.position for keyframe in self.keyframes])
        quaternions = np.array([keyframe.quaternion for keyframe in self.keyframes])
        at = np.linspace(times[0], times[-1], n)
        # Velocities of the parabola through each keyframe and its neighbours; the first and the last part are parabolas.
        velocities = np.gradient(positions, times, axis=0, edge_order=2 if len(times) > 2 else 1)
        eyes = CubicHermiteSpline(times, positions, velocities)(at)
        turns = RotationSpline(times, Rotation.from_quat(np.roll(quaternions, -1, axis=1)))(at).as_matrix()
        fovs = np.clip(PchipInterpolator(times, [keyframe.fov for keyframe in self.keyframes])(at), *_FIELDS_OF_VIEW)
        cameras = enumerate(zip(eyes, turns, fovs, strict=True))
        return [Camera.posed(eye, turn, fov, *self.size, f"path_{i:04d}") for i, (eye, turn, fov) in cameras]

    def save(self, path: Path) -> None:
        keyframes = [vars(keyframe) for keyframe in self.keyframes]
        write_json(path, {"version": _VERSION, "size": self.size, "keyframes": keyframes})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check a file that `save` or another program wrote."""
        if not is_file(path):
            raise SplatError(f"{path} does not exist or is a folder; name a keyframe file saved in splat view")
        kinds = OSError, ValueError, KeyError, TypeError, OverflowError
        with refusing(f"{path} is not a camera path or is damaged", "save one in splat view", *kinds):
            with regular(path).open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
            content = parse_json(data.decode("utf-8"))
            if content["version"] != _VERSION:
                raise ValueError("its version is not supported")
            rows = content["keyframes"]
            if not isinstance(rows, list) or len(rows) > _MOST_KEYFRAMES:
                raise ValueError(f"its keyframes are not a list of at most {_MOST_KEYFRAMES}")
            width, height = content["size"]
            if type(width) is not int or type(height) is not int:
                raise TypeError("its size is not two whole numbers")
            names = [field.name for field in fields(Keyframe)]
            return cls(tuple(dataclass_of(Keyframe, {name: row[name] for name in names}) for row in rows), (width, height))
