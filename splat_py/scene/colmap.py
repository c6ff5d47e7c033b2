"""Captures described by a COLMAP model: cameras, images and points3D, binary or text (https://colmap.github.io/format.html).

COLMAP need not be installed. COLMAP 3.12 and later also write files of rigs and frames; they are ignored, since images still
have their own poses.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.base.files import is_file, refusing, regular
from splat_py.scene.camera import affine
from splat_py.scene.images import Capture, Lens, View, find_mask, open_view
from splat_py.scene.similarity import rotation_matrices
from splat_py.scene.sources import find_model

# Camera models by their numbers in binary files, with their parameter counts (colmap/sensor/models.h).
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
# A 2D point of a photograph: its pixel, and the key of its 3D point, -1 for none.
_POINT_2D = np.dtype([("xy", "<f8", 2), ("point", "<i8")])
_POINT_3D, _TRACK_ENTRY = "Q3d3Bd", np.dtype("<u8")
_FILES = ("cameras", "images", "points3D")
_MOST_SIDE = 1 << 31
# Models that `Lens` supports, and the number of focal lengths before the principal point and the coefficients.
_FOCALS = {
    **dict.fromkeys(("SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL"), 1),
    **dict.fromkeys(("PINHOLE", "OPENCV", "OPENCV_FISHEYE", "FULL_OPENCV", "FISHEYE"), 2),
    **dict.fromkeys(("SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", "SIMPLE_FISHEYE"), 1),
}


@dataclass(frozen=True)
class ModelCamera:
    """A camera: the name of its model, its size in pixels, and its parameters in that model's order."""

    model: str
    width: int
    height: int
    parameters: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class ModelImage:
    name: str  # its path inside the folder of photographs
    camera: int  # key of the model's cameras
    viewmat: NDArray[np.float64]  # [4, 4] world → camera, OpenCV axes
    points: NDArray[np.int64]  # [P] int64, keys of the 3D points it sees, -1 for none


@dataclass(frozen=True, eq=False)
class Model:
    cameras: dict[int, ModelCamera]  # by key
    images: list[ModelImage]  # in the file's order
    keys: NDArray[np.int64]  # [P] int64, keys of the points, ascending
    xyz: NDArray[np.float64]  # [P, 3] float64, world units
    rgb: NDArray[np.uint8]  # [P, 3] uint8


def read_colmap(root: Path) -> Capture:
    """Read the COLMAP model in `root`; photographs are in `root`/images, masks in `root`/masks."""
    folder = find_model(root)
    if folder is None:
        raise SplatError(f"{root} holds no COLMAP model; put cameras, images and points3D into its folder sparse/0")
    model = read_model(folder)
    used = {image.camera for image in model.images}
    lenses = {key: replace(_lens(folder, camera), camera=key) for key, camera in model.cameras.items() if key in used}
    views: list[View] = []
    missing: list[str] = []
    for image in model.images:
        windows = PureWindowsPath(image.name)
        if windows.anchor or PurePosixPath(image.name).is_absolute() or ".." in windows.parts:  # on any system
            raise SplatError(f"{folder} names the photograph {image.name!r:.80} outside {root / 'images'}; export it again")
        path = root / "images" / image.name
        if is_file(path):
            views.append(open_view(image.name, image.viewmat, lenses[image.camera], path, find_mask(root, path)))
        else:
            missing.append(image.name)
    with np.errstate(over="ignore"):  # callers skip infinite points
        points = (model.xyz.astype(np.float32), model.rgb) if len(model.keys) else None
    return Capture(views, missing, points, folder)


def read_observations(folder: Path) -> dict[str, NDArray[np.float64]]:
    """The points [P, 3] that each photograph of a COLMAP model sees, by name; photographs without points are left out."""
    model = read_model(folder)
    seen: dict[str, NDArray[np.float64]] = {}
    for image in model.images if len(model.keys) else ():
        rows = np.searchsorted(model.keys, image.points).clip(max=len(model.keys) - 1)
        rows = rows[model.keys[rows] == image.points]
        if len(rows):
            seen[image.name] = model.xyz[rows]
    return seen


def _lens(folder: Path, camera: ModelCamera) -> Lens:
    if camera.model not in _FOCALS:
        raise SplatError(
            f"{folder}: camera model {camera.model} is not supported; "
            f"undistort the photographs with COLMAP's image_undistorter, or calibrate with one of {', '.join(_FOCALS)}"
        )
    focals, fisheye = _FOCALS[camera.model], camera.model.endswith("FISHEYE")
    fx, fy = camera.parameters[0], camera.parameters[focals - 1]
    cx, cy, *distortion = camera.parameters[focals:]
    length = 4 if fisheye else 8 if camera.model == "FULL_OPENCV" else 5
    distortion += [0.0] * (length - len(distortion))
    return Lens(camera.width, camera.height, fx, fy, cx, cy, tuple(distortion), fisheye)


def read_model(folder: Path) -> Model:
    """Read the model in a folder: the binary files if cameras.bin exists, otherwise the text files."""
    with refusing(f"{folder} is not a readable COLMAP model", "export it again", OSError, ValueError, OverflowError):
        if (folder / "cameras.bin").is_file():
            files = [_File(folder / f"{name}.bin") for name in _FILES]
            described, images, rows = _binary_cameras(files[0]), _binary_images(files[1]), _binary_points(files[2])
            for file in files:
                file.end()
        else:
            texts = [_lines(folder / f"{name}.txt") for name in _FILES]
            described, images, rows = _text_cameras(texts[0]), _text_images(texts[1]), _text_points(texts[2])
        cameras: dict[int, ModelCamera] = {}
        for key, camera in described:
            if key in cameras:
                raise ValueError(f"camera {key} is described twice")
            if not (1 <= camera.width < _MOST_SIDE and 1 <= camera.height < _MOST_SIDE):
                raise ValueError(f"camera {key} has {camera.width}×{camera.height} pixels")
            cameras[key] = camera
        for image in images:
            if image.camera not in cameras:
                raise ValueError(f"{image.name} refers to camera {image.camera}, which does not exist")
        return Model(cameras, images, *_points(rows))


class _File:
    """A sequential reader of a binary file. It rejects a count of records that do not fit into the rest of the file."""

    def __init__(self, path: Path) -> None:
        self._path, self._data, self._at = path, regular(path).read_bytes(), 0

    def take(self, code: str) -> tuple[int | float, ...]:
        return struct.unpack_from("<" + code, self._data, self._skip(struct.calcsize("<" + code)))

    def count(self, bytes_each: int) -> int:
        """Read a count of records that have at least `bytes_each` bytes."""
        count = int(self.take("Q")[0])
        if count * bytes_each > len(self._data) - self._at:
            raise self._cut_off()
        return count

    def name(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self._cut_off()
        text = self._data[self._at : end].decode("utf-8")
        self._at = end + 1
        return text

    def table(self, dtype: np.dtype, count: int) -> NDArray:
        return np.frombuffer(self._data, dtype, count, self._skip(dtype.itemsize * count))

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{self._path.name} has data after its last record")

    def _skip(self, size: int) -> int:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise self._cut_off()
        return start

    def _cut_off(self) -> ValueError:
        return ValueError(f"{self._path.name} is cut off")


def _binary_cameras(file: _File) -> list[tuple[int, ModelCamera]]:
    cameras = []
    for _ in range(file.count(24 + 8 * 2)):
        key, number, width, height = map(int, file.take("IiQQ"))
        if number not in CAMERA_MODELS:
            raise ValueError(f"camera {key} has the unknown model number {number}")
        model, parameters = CAMERA_MODELS[number]
        cameras.append((key, ModelCamera(model, width, height, file.take(f"{parameters}d"))))
    return cameras


def _binary_images(file: _File) -> list[ModelImage]:
    images = []
    for _ in range(file.count(4 + 7 * 8 + 4 + 1 + 8)):
        _, *pose, camera = file.take("I7dI")
        name = file.name()
        points = file.table(_POINT_2D, file.count(_POINT_2D.itemsize))["point"]
        images.append(_image(name, int(camera), pose, points))
    return images


def _binary_points(file: _File) -> list[tuple[int | float, ...]]:
    rows = []
    for _ in range(file.count(struct.calcsize("<" + _POINT_3D) + 8)):
        rows.append(file.take(_POINT_3D))
        file.table(_TRACK_ENTRY, file.count(_TRACK_ENTRY.itemsize))
    return rows


def _lines(path: Path) -> Iterator[str]:
    """All lines except comments. Empty lines stay: a photograph without points has one."""
    for line in regular(path).read_text(encoding="utf-8").split("\n"):
        if not line.startswith("#"):
            yield line.strip()


def _text_cameras(lines: Iterator[str]) -> list[tuple[int, ModelCamera]]:
    cameras = []
    for line in filter(None, lines):
        key, model, width, height, *parameters = line.split()
        if model not in _PARAMETERS:
            raise ValueError(f"camera {key[:20]} has the unknown model {model[:40]}")
        if len(parameters) != _PARAMETERS[model]:
            raise ValueError(f"camera {key[:20]} has {len(parameters)} parameters, but {model} needs {_PARAMETERS[model]}")
        cameras.append((int(key), ModelCamera(model, int(width), int(height), tuple(map(float, parameters)))))
    return cameras


def _text_images(lines: Iterator[str]) -> list[ModelImage]:
    images = []
    for line in filter(None, lines):
        _, *pose, camera, name = line.split(maxsplit=9)
        points = next(lines, "").split()
        if len(points) % 3:
            raise ValueError(f"{name[:40]} has {len(points)} numbers for its points, but each point needs three")
        keys = np.array(points[2::3]).astype(np.int64) if points else np.zeros(0, np.int64)
        images.append(_image(name, int(camera), list(map(float, pose)), keys))
    return images


def _text_points(lines: Iterator[str]) -> list[tuple[int | float, ...]]:
    rows: list[tuple[int | float, ...]] = []
    for line in filter(None, lines):
        key, x, y, z, r, g, b, error, *_ = line.split(maxsplit=8)
        rows.append((int(key), float(x), float(y), float(z), int(r), int(g), int(b), float(error)))
    return rows


def _image(name: str, camera: int, pose: list[int | float], points: NDArray[np.int64]) -> ModelImage:
    """A photograph from its pose, world → camera: a quaternion w x y z and a translation."""
    w, x, y, z, *translation = pose
    norm = math.sqrt(w * w + x * x + y * y + z * z) if all(abs(q) < 1e100 for q in (w, x, y, z)) else math.nan
    if not norm > 1e-9:
        raise ValueError(f"{name[:40]} has the quaternion {w:g} {x:g} {y:g} {z:g}, which is not a rotation")
    return ModelImage(name, camera, affine(rotation_matrices([w, x, y, z]), translation), points)


def _points(rows: list[tuple[int | float, ...]]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.uint8]]:
    """Keys, xyz and rgb in ascending order of keys: COLMAP writes points in the arbitrary order of a hash map."""
    if any(not 0 <= row[0] < 1 << 63 or not all(0 <= c < 256 for c in row[4:7]) for row in rows):
        raise ValueError("a point has an impossible number or colour")
    keys = np.array([row[0] for row in rows], np.int64)
    order = np.argsort(keys, kind="stable")
    if len(np.unique(keys)) != len(keys):
        raise ValueError("a point is described twice")
    xyz = np.array([row[1:4] for row in rows], np.float64).reshape(-1, 3)
    rgb = np.array([row[4:7] for row in rows], np.uint8).reshape(-1, 3)
    return keys[order], xyz[order], rgb[order]
