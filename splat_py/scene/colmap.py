"""Captures described by a COLMAP model, binary or text. None of it needs COLMAP."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import is_file, reason
from splat_py.scene.colmap_model import Model, ModelCamera, read_model
from splat_py.scene.images import Capture, Lens, Points, View, find_mask, open_view
from splat_py.scene.missing_poses import find_model


class _Parameters(NamedTuple):
    """Of a camera model of COLMAP's."""

    # How many focal lengths lead its parameters; then come the principal point and coefficients.
    focals: int
    # Of `Lens.distortion`, which begins with them.
    length: int = 5


_MODELS = {
    "SIMPLE_PINHOLE": _Parameters(1),
    "PINHOLE": _Parameters(2),
    "SIMPLE_RADIAL": _Parameters(1),
    "RADIAL": _Parameters(1),
    "OPENCV": _Parameters(2),
    "OPENCV_FISHEYE": _Parameters(2, 4),
    "FULL_OPENCV": _Parameters(2, 8),
    "SIMPLE_RADIAL_FISHEYE": _Parameters(1, 4),
    "RADIAL_FISHEYE": _Parameters(1, 4),
    "SIMPLE_FISHEYE": _Parameters(1, 4),
    "FISHEYE": _Parameters(2, 4),
}


def read_colmap(root: Path) -> Capture:
    """Read the COLMAP model in `root`; photographs are in `root`/images, masks in `root`/masks.

    Raises:
        SplatError: no model, a damaged one, a camera model that is not supported, an unusable pose or
            photograph.
    """
    folder = find_model(root)
    if folder is None:
        raise SplatError(f"{root} holds no COLMAP model; put cameras, images and points3D into its folder sparse/0")
    model = _read(folder)
    used = {image.camera for image in model.images}
    lenses = {key: _lens(folder, camera) for key, camera in model.cameras.items() if key in used}
    views: list[View] = []
    missing: list[str] = []
    for image in model.images:
        if _escapes(image.name):
            raise SplatError(f"{folder} names the photograph {image.name!r:.80}, outside of {root / 'images'}; export it again")
        path = root / "images" / image.name
        if is_file(path):
            views.append(open_view(image.name, image.viewmat, lenses[image.camera], path, find_mask(root, path)))
        else:
            missing.append(image.name)
    return Capture(views, missing, _points(model), folder)


def read_observations(folder: Path) -> dict[str, NDArray[np.float64]]:
    """The points [P, 3] that each photograph of a COLMAP model sees, by the photograph's name; of those that see any.

    Raises:
        SplatError: the model is damaged.
    """
    model = _read(folder)
    seen: dict[str, NDArray[np.float64]] = {}
    for image in model.images if len(model.keys) else ():
        rows = np.searchsorted(model.keys, image.points).clip(max=len(model.keys) - 1)
        rows = rows[model.keys[rows] == image.points]
        if len(rows):
            seen[image.name] = model.xyz[rows]
    return seen


def _read(folder: Path) -> Model:
    try:
        return read_model(folder)
    except (OSError, ValueError, OverflowError) as error:
        raise SplatError(f"{folder} is not a readable COLMAP model ({reason(error)}); export it again") from error


def _escapes(name: str) -> bool:
    """Whether a photograph's name leads out of the folder of photographs, on any system."""
    windows = PureWindowsPath(name)
    return bool(windows.anchor) or PurePosixPath(name).is_absolute() or ".." in windows.parts


def _lens(folder: Path, camera: ModelCamera) -> Lens:
    if camera.model not in _MODELS:
        raise SplatError(
            f"{folder}: camera model {camera.model} is not supported; "
            "undistort the photographs with COLMAP's image_undistorter, "
            f"or calibrate with one of {', '.join(_MODELS)}"
        )
    focals, length = _MODELS[camera.model]
    fx, fy = camera.parameters[0], camera.parameters[focals - 1]
    cx, cy, *distortion = camera.parameters[focals:]
    distortion += [0.0] * (length - len(distortion))
    fisheye = camera.model.endswith("FISHEYE")
    return Lens(camera.width, camera.height, fx, fy, cx, cy, tuple(distortion), fisheye)


def _points(model: Model) -> Points | None:
    with np.errstate(over="ignore"):  # infinite ones are left out by whoever uses them
        return (model.xyz.astype(np.float32), model.rgb) if len(model.keys) else None
