"""COLMAP's own files, binary or text, to arrays: cameras, images and points3D (https://colmap.github.io/format.html).

Files of rigs and frames, which COLMAP writes since 3.12, need not be read: images have their own poses beside them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splat_py.scene.rotations import rotation_matrices

# Camera models by their numbers in binary files, and how many parameters each has (colmap/sensor/models.h).
CAMERA_MODELS = {
    0: ("SIMPLE_PINHOLE", 3),
    1: ("PINHOLE", 4),
    2: ("SIMPLE_RADIAL", 4),
    3: ("RADIAL", 5),
    4: ("OPENCV", 8),
    5: ("OPENCV_FISHEYE", 8),
    6: ("FULL_OPENCV", 12),
    7: ("FOV", 5),
    8: ("SIMPLE_RADIAL_FISHEYE", 4),
    9: ("RADIAL_FISHEYE", 5),
    10: ("THIN_PRISM_FISHEYE", 12),
    11: ("RAD_TAN_THIN_PRISM_FISHEYE", 16),
    12: ("SIMPLE_DIVISION", 4),
    13: ("DIVISION", 5),
    14: ("SIMPLE_FISHEYE", 3),
    15: ("FISHEYE", 4),
    16: ("EUCM", 6),
    17: ("EQUIRECTANGULAR", 2),
}
_PARAMETERS = dict(CAMERA_MODELS.values())
# A photograph's point: where it is, and which point of the scene; -1 is none.
_POINT_2D = np.dtype([("xy", "<f8", 2), ("point", "<i8")])
_POINT_3D = struct.Struct("<Q3d3Bd")
_TRACK_ENTRY = 8
_MOST_SIDE = 1 << 31


@dataclass(frozen=True)
class ModelCamera:
    """A camera of a model: its model's name, size in pixels, and parameters in that model's order."""

    model: str
    width: int
    height: int
    parameters: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class ModelImage:
    """A photograph of a model.

    Attributes:
        name: its path inside the folder of photographs.
        camera: key of the model's cameras.
        viewmat: [4, 4] world → camera, OpenCV axes.
        points: [P] int64, which points it sees, -1 for none.
    """

    name: str
    camera: int
    viewmat: NDArray[np.float64]
    points: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Model:
    """A reconstruction.

    Attributes:
        cameras: by their keys.
        images: in the file's order.
        keys: [P] int64, those of the points, ascending.
        xyz: [P, 3] float64, world units.
        rgb: [P, 3] uint8.
    """

    cameras: dict[int, ModelCamera]
    images: list[ModelImage]
    keys: NDArray[np.int64]
    xyz: NDArray[np.float64]
    rgb: NDArray[np.uint8]


def read_model(folder: Path) -> Model:
    """Read the model in a folder: the binary files if there is a cameras.bin, otherwise the text.

    Raises:
        ValueError, OverflowError, OSError: a file is missing or damaged.
    """
    if (folder / "cameras.bin").is_file():
        cameras = _binary_cameras(_File(folder / "cameras.bin"))
        images = _binary_images(_File(folder / "images.bin"))
        rows = _binary_points(_File(folder / "points3D.bin"))
    else:
        cameras = _text_cameras(folder / "cameras.txt")
        images = _text_images(folder / "images.txt")
        rows = _text_points(folder / "points3D.txt")
    for image in images:
        if image.camera not in cameras:
            raise ValueError(f"{image.name} was taken by camera {image.camera}, of which there is none")
    return Model(cameras, images, *_points(rows))


class _File:
    """A binary file that is read from its beginning; a number of records is believed only if they fit into what is left."""

    def __init__(self, path: Path) -> None:
        self._path, self._data, self._at = path, path.read_bytes(), 0

    def take(self, code: str) -> tuple[int | float, ...]:
        """The next numbers, little-endian."""
        return struct.unpack_from("<" + code, self._data, self._skip(struct.calcsize("<" + code)))

    def count(self, bytes_each: int) -> int:
        """The next number, of records that have at least so many bytes."""
        count = int(self.take("Q")[0])
        if count * bytes_each > len(self._data) - self._at:
            raise self._cut_off()
        return count

    def name(self) -> str:
        """The next text, up to a zero."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self._cut_off()
        text = self._data[self._at : end].decode("utf-8")
        self._at = end + 1
        return text

    def table(self, dtype: np.dtype, count: int) -> NDArray:
        """The next rows."""
        return np.frombuffer(self._data, dtype, count, self._skip(dtype.itemsize * count))

    def point(self) -> tuple[int | float, ...]:
        """The next point of the scene, without its track."""
        row = _POINT_3D.unpack_from(self._data, self._skip(_POINT_3D.size))
        self._skip(_TRACK_ENTRY * self.count(_TRACK_ENTRY))
        return row

    def end(self) -> None:
        """Nothing is to follow."""
        if self._at != len(self._data):
            raise ValueError(f"{self._path.name} goes on after its last record")

    def _skip(self, size: int) -> int:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise self._cut_off()
        return start

    def _cut_off(self) -> ValueError:
        return ValueError(f"{self._path.name} is cut off")


def _binary_cameras(file: _File) -> dict[int, ModelCamera]:
    cameras: dict[int, ModelCamera] = {}
    for _ in range(file.count(24 + 8 * 2)):
        key, number, width, height = map(int, file.take("IiQQ"))
        if number not in CAMERA_MODELS:
            raise ValueError(f"camera {key} has model number {number}, which is not known")
        model, parameters = CAMERA_MODELS[number]
        _add_camera(cameras, key, ModelCamera(model, width, height, file.take(f"{parameters}d")))
    file.end()
    return cameras


def _binary_images(file: _File) -> list[ModelImage]:
    images = []
    for _ in range(file.count(4 + 7 * 8 + 4 + 1 + 8)):
        _, *pose, camera = file.take("I7dI")
        name = file.name()
        points = file.table(_POINT_2D, file.count(_POINT_2D.itemsize))["point"]
        images.append(_image(name, int(camera), pose, points))
    file.end()
    return images


def _binary_points(file: _File) -> list[tuple[int | float, ...]]:
    rows = [file.point() for _ in range(file.count(_POINT_3D.size + 8))]
    file.end()
    return rows


def _lines(path: Path) -> Iterator[str]:
    """What is no comment; empty lines too, since photographs that see no point have one."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line.startswith("#"):
            yield line.strip()


def _text_cameras(path: Path) -> dict[int, ModelCamera]:
    cameras: dict[int, ModelCamera] = {}
    for line in filter(None, _lines(path)):
        key, model, width, height, *parameters = line.split()
        if model not in _PARAMETERS:
            raise ValueError(f"camera {key[:20]} has the model {model[:40]}, which is not known")
        if len(parameters) != _PARAMETERS[model]:
            raise ValueError(f"camera {key[:20]} has {len(parameters)} parameters, and {model} has {_PARAMETERS[model]}")
        camera = ModelCamera(model, int(width), int(height), tuple(map(float, parameters)))
        _add_camera(cameras, int(key), camera)
    return cameras


def _text_images(path: Path) -> list[ModelImage]:
    images = []
    lines = _lines(path)
    for line in filter(None, lines):
        _, *pose, camera, name = line.split(maxsplit=9)
        points = next(lines, "").split()
        if len(points) % 3:
            raise ValueError(f"{name[:40]} has {len(points)} numbers for its points, and each needs three")
        keys = np.array(points[2::3]).astype(np.int64) if points else np.zeros(0, np.int64)
        images.append(_image(name, int(camera), list(map(float, pose)), keys))
    return images


def _text_points(path: Path) -> list[tuple[int | float, ...]]:
    rows: list[tuple[int | float, ...]] = []
    for line in filter(None, _lines(path)):
        key, x, y, z, r, g, b, error, *_ = line.split(maxsplit=8)
        rows.append((int(key), float(x), float(y), float(z), int(r), int(g), int(b), float(error)))
    return rows


def _add_camera(cameras: dict[int, ModelCamera], key: int, camera: ModelCamera) -> None:
    if key in cameras:
        raise ValueError(f"camera {key} is described twice")
    if not (1 <= camera.width < _MOST_SIDE and 1 <= camera.height < _MOST_SIDE):
        raise ValueError(f"camera {key} has {camera.width}×{camera.height} pixels")
    cameras[key] = camera


def _image(name: str, camera: int, pose: list[int | float], points: NDArray[np.int64]) -> ModelImage:
    """From the quaternion w x y z and the translation of world → camera."""
    w, x, y, z, *translation = pose
    norm = math.sqrt(w * w + x * x + y * y + z * z) if all(abs(q) < 1e100 for q in (w, x, y, z)) else math.nan
    if not norm > 1e-9:
        raise ValueError(f"{name[:40]} has the quaternion {w:g} {x:g} {y:g} {z:g}, which is no rotation")
    viewmat = np.eye(4)
    viewmat[:3, :3] = rotation_matrices(np.array([w, x, y, z], np.float64) / norm)
    viewmat[:3, 3] = translation
    return ModelImage(name, camera, viewmat, points)


def _points(rows: list[tuple[int | float, ...]]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.uint8]]:
    """Keys, xyz and rgb, by ascending key: the order of COLMAP's map is no property of the file."""
    if any(not 0 <= row[0] < 1 << 63 or not all(0 <= c < 256 for c in row[4:7]) for row in rows):
        raise ValueError("a point has an impossible number or colour")
    keys = np.array([row[0] for row in rows], np.int64)
    order = np.argsort(keys, kind="stable")
    if len(np.unique(keys)) != len(keys):
        raise ValueError("a point is described twice")
    xyz = np.array([row[1:4] for row in rows], np.float64).reshape(-1, 3)
    rgb = np.array([row[4:7] for row in rows], np.uint8).reshape(-1, 3)
    return keys[order], xyz[order], rgb[order]
