"""Captures described by JSON: nerfstudio and instant-ngp (transforms.json), NeRF-synthetic.

Poses in the files are camera → world with OpenGL axes (+x right, +y up, looking along −z). They become world → camera with
OpenCV axes. Poses are not recentred or rescaled: aabb_scale, scale and offset are ignored.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.base.files import is_file, parse_json, refusing, regular, write_json
from splat_py.scene.camera import MOST_DISTANCE, affine
from splat_py.scene.formats.ply import read_points
from splat_py.scene.images import IMAGE_SUFFIXES, MOST_NUMBER, Capture, Lens, View, find_mask, open_view
from splat_py.scene.pictures import read_header

# SIMPLE_RADIAL and RADIAL are OPENCV with zeros for the other coefficients.
_RATIONAL = "FULL_OPENCV"
_PERSPECTIVE = {"PINHOLE", "SIMPLE_PINHOLE", "PERSPECTIVE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", _RATIONAL}
_FISHEYE = "OPENCV_FISHEYE"
# Coefficients in OpenCV's order, each with the power of the radius that it scales, minus one; first perspective, then fisheye.
_COEFFICIENTS = {"k1": 2, "k2": 4, "p1": 1, "p2": 1, "k3": 6, "k4": 2, "k5": 4, "k6": 6}
_FISHEYE_COEFFICIENTS = {"k1": 2, "k2": 4, "k3": 6, "k4": 8}


def read_transforms(file: Path) -> Capture:
    """Read one JSON file; paths of photographs, masks and points are relative to its folder."""
    with refusing(f"{file} is not readable JSON", "export it again", OSError, ValueError):
        content = parse_json(regular(file).read_text(encoding="utf-8-sig"))
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not all(isinstance(frame, dict) for frame in frames):
        raise SplatError(f"{file} has no list of frames; pass a transforms.json of nerfstudio, instant-ngp or NeRF")
    shared = _given({key: value for key, value in content.items() if key != "frames"})

    views: list[View] = []
    missing: list[str] = []
    for index, frame in enumerate(frames):
        stated = frame.get("file_path")
        if not isinstance(stated, str) or not stated:
            raise SplatError(f"{file}: frame {index} has no file_path; name its photograph")
        base = Path(os.path.normpath(file.parent / stated.replace("\\", "/")))
        # With or without suffix.
        path = next(filter(is_file, (base, *(Path(f"{base}{suffix}") for suffix in IMAGE_SUFFIXES))), None)
        if path is None:
            missing.append(stated)
        else:
            views.append(_read_frame(file, _given({**shared, **frame}), path))

    points = None
    if "ply_file_path" in shared:
        points = read_points(file.parent / _string(file, shared, "ply_file_path"))
    return Capture(views, missing, points)


def _given(entries: dict[str, Any]) -> dict[str, Any]:
    """The entries that are not null; programs write null for unknown values."""
    return {key: value for key, value in entries.items() if value is not None}


def _read_frame(file: Path, frame: dict[str, Any], path: Path) -> View:
    root = file.parent
    # A relative name does not depend on the folder from which the file is read.
    outside = Path(frame["file_path"]).is_absolute() and not path.is_relative_to(root)
    name = path.as_posix() if outside else Path(os.path.relpath(path, root)).as_posix()
    mask_path = find_mask(root, path)
    if "mask_path" in frame:
        mask_path = root / _string(file, frame, "mask_path").replace("\\", "/")
        if not is_file(mask_path):
            raise SplatError(f"{file}: the mask {mask_path} of {name} does not exist; restore it or remove mask_path")
    where = f"{file}: {name}"
    view = open_view(name, _world_to_camera(where, frame), _lens(where, frame, path), path, mask_path)
    if "depth_file_path" not in frame:
        return view
    unit = frame.get("depth_unit_scale_factor", 1e-3)  # nerfstudio's default: millimetres
    if isinstance(unit, bool) or not isinstance(unit, int | float) or not 0 < unit < MOST_NUMBER:
        raise SplatError(f"{where}: depth_unit_scale_factor is {repr(unit)[:40]}; it must be above 0 and below {MOST_NUMBER:g}")
    depth_path = root / _string(file, frame, "depth_file_path").replace("\\", "/")
    return replace(view, depth_path=depth_path, depth_unit=float(unit))


def _world_to_camera(where: str, frame: dict[str, Any]) -> NDArray[np.float64]:
    """The world → camera matrix [4, 4], OpenCV axes, from a frame's camera → world matrix, OpenGL axes."""
    try:
        pose = np.array(frame["transform_matrix"], dtype=np.float64)[:3]
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise SplatError(f"{where} has no transform_matrix of numbers; give its camera → world matrix") from error
    if pose.shape != (3, 4) or not (np.abs(pose) < MOST_DISTANCE).all():
        raise SplatError(f"{where}: transform_matrix must be 4 × 4 finite numbers below {MOST_DISTANCE:g}; compute it again")
    rotation = pose[:, :3] * (1, -1, -1)
    # Some exporters leave a scale in the rotation. It changes neither the camera's position nor its rays.
    scale = np.cbrt(np.linalg.det(rotation))
    if abs(scale) < 1e-8:
        raise SplatError(f"{where}: transform_matrix is singular; compute the pose again")
    u, stretch, vt = np.linalg.svd(rotation / scale)
    if scale < 0 or np.abs(stretch - 1).max() > 1e-3:
        raise SplatError(f"{where}: transform_matrix is sheared or mirrored; give a rotation and a translation")
    return affine((u @ vt).T, -(u @ vt).T @ pose[:, 3])


def _lens(where: str, frame: dict[str, Any], path: Path) -> Lens:
    """The frame's lens at its calibrated size, or at the photograph's size if the file states none."""

    def number(key: str) -> float | None:
        value = frame.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST_NUMBER:
            raise SplatError(f"{where}: {key} is {repr(value)[:40]}; it must be a finite number below {MOST_NUMBER:g}")
        return float(value)

    def focal(length_key: str, angle_key: str, side: float) -> float | None:
        length, angle = number(length_key), number(angle_key)
        if length is None and angle is not None:
            if not 0 < angle < math.pi:
                raise SplatError(f"{where}: {angle_key} is {angle:g}; it must lie between 0 and π")
            length = 0.5 * side / math.tan(0.5 * angle)
        return length

    width, height = number("w"), number("h")
    if width is None or height is None:
        width, height, _ = read_header(path)
    if min(width, height) < 1:
        raise SplatError(f"{where}: w and h are {width:g} and {height:g}; they must be at least 1")
    fx, fy = focal("fl_x", "camera_angle_x", width), focal("fl_y", "camera_angle_y", height)
    fx, fy = fx if fx is not None else fy, fy if fy is not None else fx
    if fx is None or fy is None:
        raise SplatError(f"{where} has no focal length; give fl_x or camera_angle_x")
    cx, cy = number("cx"), number("cy")

    model = frame.get("camera_model") or (_FISHEYE if frame.get("is_fisheye") else "OPENCV")
    if not isinstance(model, str) or model not in (_FISHEYE, *_PERSPECTIVE):
        known = ", ".join(sorted(_PERSPECTIVE | {_FISHEYE}))
        raise SplatError(f"{where}: camera_model {str(model)[:40]} is not supported; undistort the photographs, or use {known}")
    names = list(_FISHEYE_COEFFICIENTS if model == _FISHEYE else _COEFFICIENTS)[: None if model == _RATIONAL else 5]
    distortion = tuple(number(name) or 0.0 for name in names)
    if "k4" not in names and number("k4"):
        raise SplatError(f"{where}: the camera model {model} has no k4; calibrate with k1, k2, k3, p1 and p2")
    cx, cy = width / 2 if cx is None else cx, height / 2 if cy is None else cy
    return Lens(round(width), round(height), fx, fy, cx, cy, distortion, fisheye=model == _FISHEYE)


def _string(file: Path, content: dict[str, Any], key: str) -> str:
    value = content[key]
    if not isinstance(value, str):
        raise SplatError(f"{file}: {key} is {value!r}; it must be a path")
    return value


def write_transforms(file: Path, views: Sequence[View], points: str | None = None) -> None:
    """Write cameras, paths of their photographs and the path of initial points, all relative to the file.

    Lenses describe the stored photographs. If a focal length of an undistorted camera was refined by a factor s, the
    coefficients are scaled to keep the distortion at each pixel: k1 becomes k1 s², k2 becomes k2 s⁴.
    """
    start = {} if points is None else {"ply_file_path": points}
    write_json(file, {**start, "frames": [_frame(file, view) for view in views]})


def _frame(file: Path, view: View) -> dict[str, Any]:
    camera, lens = view.camera, view.lens
    K = camera.resized(lens.width, lens.height).K
    powers = _FISHEYE_COEFFICIENTS if lens.fisheye else _COEFFICIENTS
    coefficients = list(lens.distortion if camera.distortion is None else camera.distortion.coefficients)
    if camera.distortion is None:
        scale = K[0, 0] / lens.fx
        coefficients = [k * scale**power for k, power in zip(coefficients, powers.values(), strict=False)]
    numbers = {"fl_x": K[0, 0], "fl_y": K[1, 1], "cx": K[0, 2], "cy": K[1, 2]} | dict(zip(powers, coefficients, strict=False))
    frame: dict[str, Any] = {
        "file_path": _relative(view.path, file.parent),
        "camera_model": _FISHEYE if lens.fisheye else _RATIONAL if len(coefficients) == 8 else "OPENCV",
        "w": lens.width,
        "h": lens.height,
        **{name: float(x) for name, x in numbers.items()},
    }
    if view.mask_path is not None:
        frame["mask_path"] = _relative(view.mask_path, file.parent)
    if view.depth_path is not None:
        frame |= {"depth_file_path": _relative(view.depth_path, file.parent), "depth_unit_scale_factor": view.depth_unit}
    return frame | {"transform_matrix": (np.linalg.inv(camera.viewmat) * np.array([1, -1, -1, 1.0])).tolist()}


def _relative(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()
