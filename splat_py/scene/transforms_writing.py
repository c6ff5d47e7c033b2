"""Cameras written as a transforms.json, as `read_transforms` and other programs read it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from splat_py.files import write_json
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import Dataset
from splat_py.scene.images import View

_COEFFICIENTS = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")


def write_transforms(file: Path, dataset: Dataset, views: Sequence[int] | None = None, points: str | None = None) -> None:
    """Write the cameras of a dataset and where its photographs are, relative to the file.

    Args:
        views: which ones; by default all.
        points: a file of points to start from, relative to this one.

    Lenses are of the photographs as they are stored. Where the dataset's cameras are those of undistorted photographs, a lens
    whose focal length has been corrected by a factor s bends light as before at each pixel: k1 becomes k1 s², k2 becomes k2 s⁴.
    """
    frames = [_frame(file, view) for view in (dataset.views if views is None else [dataset.views[i] for i in views])]
    write_json(file, {**({} if points is None else {"ply_file_path": points}), "frames": frames})


def _frame(file: Path, view: View) -> dict[str, Any]:
    pose = np.linalg.inv(view.camera.viewmat) * np.array([1, -1, -1, 1.0])
    frame: dict[str, Any] = {"file_path": _relative(view.path, file.parent), **_lens(view, view.camera)}
    if view.mask_path is not None:
        frame["mask_path"] = _relative(view.mask_path, file.parent)
    if view.depth_path is not None:
        frame |= {"depth_file_path": _relative(view.depth_path, file.parent), "depth_unit_scale_factor": view.depth_unit}
    return frame | {"transform_matrix": pose.tolist()}


def _lens(view: View, camera: Camera) -> dict[str, Any]:
    lens = view.lens
    # Of the stored photograph, of which the camera's is a smaller copy.
    K = camera.K * np.array([[lens.width / camera.width], [lens.height / camera.height], [1.0]])
    coefficients = list(lens.distortion if camera.distortion is None else camera.distortion.coefficients)
    if camera.distortion is None:
        scale = K[0, 0] / lens.fx
        coefficients = [k * scale**power for k, power in zip(coefficients, _powers(lens.fisheye), strict=False)]
    names = ("k1", "k2", "k3", "k4") if lens.fisheye else _COEFFICIENTS
    model = "OPENCV_FISHEYE" if lens.fisheye else "FULL_OPENCV" if len(coefficients) == 8 else "OPENCV"
    numbers = {"fl_x": K[0, 0], "fl_y": K[1, 1], "cx": K[0, 2], "cy": K[1, 2]} | dict(zip(names, coefficients, strict=False))
    return {"camera_model": model, "w": lens.width, "h": lens.height, **{name: float(x) for name, x in numbers.items()}}


def _powers(fisheye: bool) -> tuple[int, ...]:
    """Of the radius that a coefficient is multiplied by, beyond the first."""
    return (2, 4, 6, 8) if fisheye else (2, 4, 1, 1, 6, 2, 4, 6)


def _relative(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()
