"""Small captures written to disk in every format, for the tests of the readers."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pycolmap
from numpy.typing import NDArray

from splat_py import Camera

WIDTH, HEIGHT = 48, 32


def ring(count: int = 9, radius: float = 4.0, width: int = WIDTH, height: int = HEIGHT) -> list[Camera]:
    """Cameras around the z axis that all look at (1, 2, 3)."""
    target = np.array([1.0, 2.0, 3.0])
    angles = 2 * np.pi * np.arange(count) / count
    eyes = target + radius * np.stack([np.cos(angles), np.sin(angles), np.full(count, 0.5)], axis=1)
    return [Camera.look_at(eye, target, (0, 0, 1), 50, width, height, f"{i:03d}.png") for i, eye in enumerate(eyes)]


def picture(seed: int, width: int = WIDTH, height: int = HEIGHT, channels: int = 3) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def write_image(path: Path, pixels: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}
    stored = pixels[..., order[pixels.shape[2]]] if pixels.ndim == 3 else pixels
    assert cv2.imwrite(str(path), stored)


def opengl_pose(camera: Camera) -> list[list[float]]:
    """camera → world with OpenGL axes, as in the JSON formats."""
    pose: list[list[float]] = (np.linalg.inv(camera.viewmat) @ np.diag([1.0, -1, -1, 1])).tolist()
    return pose


def intrinsics(camera: Camera) -> dict[str, float]:
    return {
        "fl_x": camera.K[0, 0],
        "fl_y": camera.K[1, 1],
        "cx": camera.K[0, 2],
        "cy": camera.K[1, 2],
        "w": camera.width,
        "h": camera.height,
    }


def write_transforms(
    root: Path, cameras: list[Camera], frame_entries: dict[int, dict[str, Any]] | None = None, **extra: Any
) -> dict[str, Any]:
    """Write a nerfstudio folder; `extra` goes into the head of transforms.json, and entries into frames by their number. Return
    the content of transforms.json."""
    frames: list[dict[str, Any]] = [{"file_path": f"images/{c.name}", "transform_matrix": opengl_pose(c)} for c in cameras]
    for i, entries in (frame_entries or {}).items():
        frames[i] |= entries
    content: dict[str, Any] = {**intrinsics(cameras[0]), **extra, "frames": frames}
    for i, camera in enumerate(cameras):
        write_image(root / "images" / camera.name, picture(i, camera.width, camera.height))
    save_json(root, content)
    return content


def save_json(root: Path, content: dict[str, Any], name: str = "transforms.json") -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(content))


def write_colmap(
    root: Path,
    cameras: list[Camera],
    model: str = "PINHOLE",
    params: list[float] | None = None,
    *,
    folder: str = "sparse/0",
    text: bool = False,
    points: NDArray[np.float64] | None = None,
) -> None:
    """Write a COLMAP folder with one camera of `model`; its points are coloured 0, 1, 2 … in red."""
    first = cameras[0]
    if params is None:
        params = [first.K[0, 0], first.K[1, 1], first.K[0, 2], first.K[1, 2]]
    reconstruction = pycolmap.Reconstruction()
    reconstruction.add_camera_with_trivial_rig(
        pycolmap.Camera(camera_id=1, model=model, width=first.width, height=first.height, params=params)
    )
    for i, camera in enumerate(cameras, start=1):
        pose = pycolmap.Rigid3d(camera.viewmat[:3])
        reconstruction.add_image_with_trivial_frame(pycolmap.Image(name=camera.name, camera_id=1, image_id=i), pose)
        write_image(root / "images" / camera.name, picture(i - 1, camera.width, camera.height))
    for i, point in enumerate(points if points is not None else []):
        reconstruction.add_point3D(point, pycolmap.Track(), np.array([i, 7, 9], np.uint8))
    (root / folder).mkdir(parents=True, exist_ok=True)
    (reconstruction.write_text if text else reconstruction.write_binary)(str(root / folder))
