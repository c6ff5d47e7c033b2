"""Camera paths through keyframes: a JSON file of poses at times, and the smooth path between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import parse_json, reason, write_json
from splat_py.scene.camera import MOST_DISTANCE, Camera

VERSION = 1
_MOST_BYTES = 1 << 20
_MOST_KEYFRAMES = 1000
# Seconds: of a path, and between keyframes, since a camera's speed is a distance divided by it.
_MOST_SECONDS, _LEAST_SECONDS = 3600.0, 1e-3
_FIELDS_OF_VIEW = (1.0, 170.0)
_SIDES = (2, 8192)


@dataclass(frozen=True)
class Keyframe:
    """Where a camera is at a time.

    Attributes:
        time: seconds from the path's beginning.
        position: of the camera in the world, dataset's units.
        quaternion: (w, x, y, z), camera → world, OpenCV axes: +x right, +y down, +z forward; of any length but zero.
        fov: angle between the picture's upper and lower edge, degrees.
    """

    time: float
    position: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]
    fov: float

    @classmethod
    def of_camera(cls, camera: Camera, time: float) -> Keyframe:
        """A camera's pose and field of view."""
        from scipy.spatial.transform import Rotation

        x, y, z, w = Rotation.from_matrix(camera.viewmat[:3, :3].T).as_quat()
        fov = math.degrees(2 * math.atan(0.5 * camera.height / camera.K[1, 1]))
        a, b, c = camera.position
        return cls(time, (float(a), float(b), float(c)), (float(w), float(x), float(y), float(z)), fov)


@dataclass(frozen=True)
class KeyframePath:
    """Two or more keyframes in the order of their times, and the size of the pictures that they were chosen on.

    Raises:
        SplatError: too few or too many, or a number that makes no sense.
    """

    keyframes: tuple[Keyframe, ...]
    size: tuple[int, int]

    def __post_init__(self) -> None:
        if not 2 <= len(self.keyframes) <= _MOST_KEYFRAMES:
            raise SplatError(f"a path needs 2 to {_MOST_KEYFRAMES} keyframes, not {len(self.keyframes)}")
        if not all(_SIDES[0] <= side <= _SIDES[1] for side in self.size):
            raise SplatError(f"size is {list(self.size)}; sides are {_SIDES[0]} to {_SIDES[1]} pixels")
        for i, keyframe in enumerate(self.keyframes):
            _check(keyframe, f"keyframe {i}")
        gaps = np.diff([keyframe.time for keyframe in self.keyframes])
        if not (gaps >= _LEAST_SECONDS).all():
            raise SplatError(f"the time of keyframe {int(gaps.argmin()) + 1} is not after that before it; put them in order")

    @property
    def seconds(self) -> float:
        """From the first keyframe to the last."""
        return self.keyframes[-1].time - self.keyframes[0].time

    @property
    def frames(self) -> int:
        """Of a video as long as the path, at 30 a second."""
        return round(30 * self.seconds) + 1

    def cameras(self, n: int) -> list[Camera]:
        """`n` cameras at equal times from the first keyframe to the last; one is at the first.

        Positions follow the Catmull-Rom spline over the keyframes' times (Barry and Goldman 1988), which has no jump in
        velocity and does not swing out as a natural cubic spline does; orientations a spline whose angular acceleration is
        continuous (scipy's RotationSpline); fields of view a monotone one.
        """
        from scipy.interpolate import CubicHermiteSpline, PchipInterpolator
        from scipy.spatial.transform import Rotation, RotationSpline

        times = np.array([keyframe.time for keyframe in self.keyframes])
        positions = np.array([keyframe.position for keyframe in self.keyframes])
        quaternions = np.array([keyframe.quaternion for keyframe in self.keyframes])
        at = np.linspace(times[0], times[-1], n)
        eyes = CubicHermiteSpline(times, positions, _tangents(times, positions))(at)
        turns = RotationSpline(times, Rotation.from_quat(np.roll(quaternions, -1, axis=1)))(at).as_matrix()
        fovs = np.clip(PchipInterpolator(times, [keyframe.fov for keyframe in self.keyframes])(at), *_FIELDS_OF_VIEW)
        cameras = zip(eyes, turns, fovs, strict=True)
        return [camera_at(eye, turn, fov, self.size, f"path_{i:04d}") for i, (eye, turn, fov) in enumerate(cameras)]

    def save(self, path: Path) -> None:
        """Write JSON, atomically."""
        keyframes = [vars(keyframe) for keyframe in self.keyframes]
        write_json(path, {"version": VERSION, "size": self.size, "keyframes": keyframes})

    @classmethod
    def load(cls, path: Path) -> KeyframePath:
        """Read what `save` wrote, or somebody else.

        Raises:
            SplatError: the file is missing, damaged or something else, in one sentence.
        """
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
            content = parse_json(data.decode("utf-8"))
            if content["version"] != VERSION:
                raise ValueError("its version is another")
            rows = content["keyframes"]
            if not isinstance(rows, list) or len(rows) > _MOST_KEYFRAMES:
                raise ValueError(f"its keyframes are no list of at most {_MOST_KEYFRAMES}")
            width, height = content["size"]
            if type(width) is not int or type(height) is not int:
                raise TypeError("its size is not two whole numbers")
            return cls(tuple(_keyframe(row) for row in rows), (width, height))
        except FileNotFoundError as error:
            raise SplatError(f"{path} does not exist; name a file of keyframes that splat view has saved") from error
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise SplatError(f"{path} is no camera path or is damaged; save one in splat view ({reason(error)})") from error


def camera_at(
    position: NDArray[np.float64], turn: NDArray[np.float64], fov: float, size: tuple[int, int], name: str = ""
) -> Camera:
    """A pinhole camera of `size` (width, height) at `position` [3], with its axes in the columns of `turn` [3, 3].

    Raises:
        SplatError: as Camera does.
    """
    width, height = size
    focal = 0.5 * height / math.tan(math.radians(fov) / 2)
    viewmat = np.eye(4)
    viewmat[:3, :3], viewmat[:3, 3] = turn.T, -turn.T @ position
    return Camera(viewmat, np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]]), width, height, name)


def _tangents(times: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Velocities [K, D] at points [K, D] of the Catmull-Rom spline over uneven times [K]; at the ends those that let the first
    and the last part be parabolas."""
    steps = np.diff(times)[:, None]
    slopes = np.diff(points, axis=0) / steps
    if len(times) == 2:
        return np.repeat(slopes, 2, axis=0)
    inner = (slopes[:-1] * steps[1:] + slopes[1:] * steps[:-1]) / (steps[:-1] + steps[1:])
    return np.concatenate([2 * slopes[:1] - inner[:1], inner, 2 * slopes[-1:] - inner[-1:]])


def _check(keyframe: Keyframe, what: str) -> None:
    numbers: Sequence[float] = (keyframe.time, *keyframe.position, *keyframe.quaternion, keyframe.fov)
    if not all(map(math.isfinite, numbers)):
        raise SplatError(f"{what} holds NaN or infinity")
    if not 0 <= keyframe.time <= _MOST_SECONDS:
        raise SplatError(f"the time of {what} is {keyframe.time:g}; it must be 0 to {_MOST_SECONDS:g} seconds")
    if max(map(abs, keyframe.position)) > MOST_DISTANCE:
        raise SplatError(f"the position of {what} is beyond {MOST_DISTANCE:g}")
    if not 1e-6 <= math.hypot(*keyframe.quaternion) <= 1e6:
        raise SplatError(f"the quaternion of {what} is no rotation")
    if not _FIELDS_OF_VIEW[0] <= keyframe.fov <= _FIELDS_OF_VIEW[1]:
        low, high = _FIELDS_OF_VIEW
        raise SplatError(f"the fov of {what} is {keyframe.fov:g}; it must be {low:g} to {high:g} degrees")


def _keyframe(row: Any) -> Keyframe:
    """Of the file's. Raises KeyError, TypeError or ValueError if it is none."""
    position, quaternion = _numbers(row["position"]), _numbers(row["quaternion"])
    time, fov = _numbers([row["time"], row["fov"]])
    x, y, z = position
    a, b, c, d = quaternion
    return Keyframe(time, (x, y, z), (a, b, c, d), fov)


def _numbers(values: Any) -> list[float]:
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise TypeError("a position, quaternion, time or fov holds something else than numbers")
    return [float(value) for value in values]
