"""Captures described by a COLMAP model, binary or text, read through pycolmap."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import is_file, reason
from splat_py.scene.images import Capture, Lens, Points, View, find_mask, open_view

if TYPE_CHECKING:
    import pycolmap


class _Model(NamedTuple):
    """A camera model of COLMAP's."""

    number: int
    # How many focal lengths lead its parameters, and how many coefficients follow them and the principal point.
    focals: int
    coefficients: int
    # Of `Lens.distortion`, which begins with them.
    length: int = 5


_MODELS = {
    "SIMPLE_PINHOLE": _Model(0, 1, 0),
    "PINHOLE": _Model(1, 2, 0),
    "SIMPLE_RADIAL": _Model(2, 1, 1),
    "RADIAL": _Model(3, 1, 2),
    "OPENCV": _Model(4, 2, 4),
    "OPENCV_FISHEYE": _Model(5, 2, 4, 4),
    "FULL_OPENCV": _Model(6, 2, 8, 8),
    "SIMPLE_RADIAL_FISHEYE": _Model(8, 1, 1, 4),
    "RADIAL_FISHEYE": _Model(9, 1, 2, 4),
}
_PARAMETERS = {model.number: model.focals + 2 + model.coefficients for model in _MODELS.values()}

# COLMAP's large binary files are a count and so many records: bytes before the name, whether there is a name,
# the struct code of the count of items that follows, and the bytes of an item.
_RECORDS = {"frames": (64, False, "<I", 16), "images": (64, True, "<Q", 24), "points3D": (43, False, "<Q", 8)}


def find_model(root: Path) -> Path | None:
    """The folder below `root` that holds a COLMAP model: sparse/0, sparse, or `root` itself."""
    folders = (root / "sparse" / "0", root / "sparse", root)
    return next((f for f in folders for end in ("bin", "txt") if (f / f"cameras.{end}").is_file()), None)


def read_colmap(root: Path) -> Capture:
    """Read the COLMAP model in `root`; photographs are in `root`/images, masks in `root`/masks.

    Raises:
        SplatError: no model, a damaged one, a camera model that is not supported, an unusable pose or
            photograph.
    """
    import pycolmap  # half a second that only COLMAP's users should pay

    folder = find_model(root)
    if folder is None:
        raise SplatError(f"{root} holds no COLMAP model; put cameras, images and points3D into its folder sparse/0")
    try:
        for name in (*_RECORDS, "cameras", "rigs"):
            _check_whole(folder / f"{name}.bin", name)
        model = pycolmap.Reconstruction(str(folder))
        registered = [image for image in model.images.values() if image.has_pose]
        names = [image.name for image in registered]
        poses = [np.vstack([image.cam_from_world().matrix(), (0, 0, 0, 1)]) for image in registered]
    except Exception as error:  # pycolmap raises what it likes
        raise SplatError(f"{folder} is not a readable COLMAP model ({reason(error)}); export it again") from error

    lenses = {key: _lens(folder, camera) for key, camera in model.cameras.items()}
    views: list[View] = []
    missing: list[str] = []
    for image, name, viewmat in zip(registered, names, poses, strict=True):
        path = root / "images" / name
        if is_file(path):
            views.append(open_view(name, viewmat, lenses[image.camera_id], path, find_mask(root, path)))
        else:
            missing.append(name)
    return Capture(views, missing, _points(model), folder)


def read_observations(folder: Path) -> dict[str, NDArray[np.float64]]:
    """The points [P, 3] that each photograph of a COLMAP model sees, by the photograph's name; of those that see any.

    Raises:
        SplatError: the model is damaged.
    """
    import pycolmap

    try:
        model = pycolmap.Reconstruction(str(folder))
        points = {key: point.xyz for key, point in model.points3D.items()}
        seen = {
            image.name: [points[p.point3D_id] for p in image.points2D if p.has_point3D() and p.point3D_id in points]
            for image in model.images.values()
        }
    except Exception as error:  # pycolmap raises what it likes
        raise SplatError(f"{folder} is not a readable COLMAP model ({reason(error)}); export it again") from error
    return {name: np.array(xyz, np.float64) for name, xyz in seen.items() if xyz}


def _check_whole(file: Path, kind: str) -> None:
    """Raise a ValueError where a binary file ends too early.

    COLMAP's reader does not notice: it takes whatever it then has for counts, and can be busy for minutes.
    """
    if not file.is_file():  # a text model, or one from before there were frames
        return
    data = file.read_bytes()
    end = 8
    for _ in range(struct.unpack_from("<Q", data)[0]):
        end = _record_end(data, end, kind)
        if end > len(data):
            raise ValueError(f"{file.name} is cut off")


def _record_end(data: bytes, start: int, kind: str) -> int:
    """Where the record of a file ends that begins at `start`. Raises struct.error or ValueError beyond the data."""
    if kind == "cameras":
        model = struct.unpack_from("<I", data, start + 4)[0]
        # Models that are not supported have three parameters at the least.
        return start + 24 + 8 * _PARAMETERS.get(model, 3)
    if kind == "rigs":
        sensors = struct.unpack_from("<I", data, start + 4)[0]
        end = start + 8 + 8 * (sensors > 0)
        for _ in range(1, sensors):
            end += 9 + 56 * struct.unpack_from("<?", data, end + 8)[0]
        return end
    head, named, code, item = _RECORDS[kind]
    end = start + head
    if named:
        end = data.index(0, end) + 1
    return end + struct.calcsize(code) + item * struct.unpack_from(code, data, end)[0]


def _lens(folder: Path, camera: pycolmap.Camera) -> Lens:
    name = camera.model.name
    if name not in _MODELS:
        raise SplatError(
            f"{folder}: camera model {name} is not supported; "
            "undistort the photographs with COLMAP's image_undistorter, "
            f"or calibrate with one of {', '.join(_MODELS)}"
        )
    number, focals, _, length = _MODELS[name]
    parameters = [float(p) for p in camera.params]
    if len(parameters) != _PARAMETERS[number] or min(camera.width, camera.height) < 1:
        found = f"{name}, {camera.width}×{camera.height}, {len(parameters)} parameters"
        raise SplatError(f"{folder}: camera {camera.camera_id} is damaged ({found}); export the model again")
    cx, cy, *distortion = parameters[focals:]
    distortion += [0.0] * (length - len(distortion))
    fisheye = name.endswith("FISHEYE")
    return Lens(camera.width, camera.height, parameters[0], parameters[focals - 1], cx, cy, tuple(distortion), fisheye)


def _points(model: pycolmap.Reconstruction) -> Points | None:
    # Sorted, because the order of COLMAP's map is no property of the file.
    points = [point for _, point in sorted(model.points3D.items())]
    if not points:
        return None
    return np.array([p.xyz for p in points], np.float32), np.array([p.color for p in points], np.uint8)
