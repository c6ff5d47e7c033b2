"""Photographs of a corner of a room with patterned walls, whose cameras are known."""

from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from splat_py import Camera

WIDTH, HEIGHT, FIELD_OF_VIEW = 256, 192, 55.0
_PIXELS_A_METRE, _SIDE = 96, 1024


def room_cameras(count: int = 10, degrees: float = 6.0) -> list[Camera]:
    """Level cameras on an arc, so many degrees apart, looking at the corner; +z is up."""
    cameras = []
    for i in range(count):
        angle, height = np.deg2rad(45 + degrees * (i - (count - 1) / 2)), 2.6 + 0.35 * np.sin(2.1 * i)
        eye = (5 * np.cos(angle), 5 * np.sin(angle), height)
        target = (0.8 + 0.1 * np.cos(i), 0.8, 1.1)
        cameras.append(Camera.look_at(eye, target, (0, 0, 1), FIELD_OF_VIEW, WIDTH, HEIGHT, f"IMG_{i:04d}.jpg"))
    return cameras


@cache
def _pattern(seed: int) -> NDArray[np.uint8]:
    """Blobs of many sizes and colours [side, side, 3]."""
    generator = np.random.default_rng(seed)
    image = np.full((_SIDE, _SIDE, 3), 128, np.float32)
    for cells in (16, 48, 128, 300):
        noise = generator.normal(0, 40, (cells, cells, 3)).astype(np.float32)
        image += cv2.resize(noise, (_SIDE, _SIDE), interpolation=cv2.INTER_CUBIC)
    return np.clip(image, 0, 255).astype(np.uint8)


def photograph(camera: Camera, seed: int = 0) -> NDArray[np.uint8]:
    """The photograph [H, W, 3], blue, green, red, of a camera inside the room. Another seed is another room."""
    height, width = camera.height, camera.width
    y, x = np.mgrid[:height, :width] + 0.5
    rays = np.linalg.inv(camera.K) @ np.stack([x.ravel(), y.ravel(), np.ones(x.size)])
    directions = (camera.viewmat[:3, :3].T @ rays).T
    with np.errstate(divide="ignore"):
        distances = np.where(directions < 0, -camera.position / directions, np.inf)
    wall = distances.argmin(axis=1)
    places = camera.position + distances.min(axis=1)[:, None] * directions
    image = np.zeros((height * width, 3), np.uint8)
    for axis in range(3):
        u, v = (places[:, [i for i in range(3) if i != axis]].T * _PIXELS_A_METRE).astype(np.float32).reshape(2, height, width)
        colors = cv2.remap(_pattern(3 * seed + axis), u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        image = np.where((wall == axis)[:, None], colors.reshape(-1, 3), image)
    return image.reshape(height, width, 3)


def write_photograph(path: Path, pixels: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), pixels, [cv2.IMWRITE_JPEG_QUALITY, 95] if path.suffix == ".jpg" else [])


def write_photographs(folder: Path, cameras: list[Camera]) -> Path:
    for camera in cameras:
        write_photograph(folder / camera.name, photograph(camera))
    return folder


def assert_poses(found: list[Camera], known: list[Camera], most_distance: float, most_degrees: float) -> None:
    """Check distances, as a share of the cameras' extent, and angles after the best-fitting similarity (Umeyama 1991)."""
    a, b = (np.stack([camera.position for camera in cameras]) for cameras in (found, known))
    a0, b0 = a - a.mean(0), b - b.mean(0)
    u, s, vt = np.linalg.svd(b0.T @ a0)
    flip = np.diag([1.0, 1.0, np.linalg.det(u @ vt)])
    rotation = u @ flip @ vt
    scale = (s * np.diag(flip)).sum() / (a0**2).sum()
    distance = np.linalg.norm(scale * a0 @ rotation.T - b0, axis=1).max() / np.linalg.norm(b0, axis=1).max()
    turns = [f.viewmat[:3, :3] @ rotation.T @ k.viewmat[:3, :3].T for f, k in zip(found, known, strict=True)]
    angles = [np.rad2deg(np.arccos(np.clip((np.trace(turn) - 1) / 2, -1, 1))) for turn in turns]
    assert distance < most_distance and max(angles) < most_degrees
