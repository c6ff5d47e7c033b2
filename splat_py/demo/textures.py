"""Textures: linear RGB albedo [N, 3] as a function of the point [N, 3] in the shape's frame."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from splat_py.demo.shapes import Array

Texture = Callable[[Array], Array]


def rgb(*levels: float) -> Array:
    """Linear RGB from display values."""
    return np.array(levels, np.float32) ** np.float32(2.2)


def mix(a: Array, b: Array, weight: Array | NDArray[np.bool_]) -> Array:
    return a + (b - a) * weight[..., None].astype(np.float32)


@cache
def waves(frequency: float) -> tuple[Array, Array]:
    generator = np.random.default_rng(7)
    directions = generator.normal(size=(3, 12)) * frequency * generator.uniform(0.5, 2.0, 12)
    return directions.astype(np.float32), generator.uniform(0, 2 * np.pi, 12).astype(np.float32)


def noise(points: Array, frequency: float) -> Array:
    """Smooth, band-limited noise in about [-1, 1]: a sum of plane waves [N]."""
    directions, phases = waves(frequency)
    return np.sin(points @ directions + phases).sum(axis=-1) / np.float32(5.0)


def plain(*color: float) -> Texture:
    value = rgb(*color)
    return lambda points: np.broadcast_to(value, points.shape)


def table(points: Array) -> Array:
    """A marble chessboard inside a brass rim."""
    x, y = points[:, 0], points[:, 1]
    radius = np.hypot(x, y)
    dark = (np.floor(x / 0.2) + np.floor(y / 0.2)) % 2
    vein = np.abs(np.sin(9 * (x + 0.6 * y) + 3.5 * noise(points, 3.0))) ** 0.35
    pale = mix(rgb(0.62, 0.55, 0.50), rgb(0.93, 0.89, 0.82), vein)
    deep = mix(rgb(0.52, 0.62, 0.66), rgb(0.20, 0.29, 0.36), vein)
    board = pale + (deep - pale) * dark[:, None]
    band = np.floor(np.arctan2(y, x) * 48 / np.pi) % 2
    rim = mix(rgb(0.78, 0.56, 0.22), rgb(0.45, 0.26, 0.12), band)
    return np.where((radius > 1.38)[:, None], rim, board).astype(np.float32)


def planet(points: Array) -> Array:
    """Bands of cloud, stirred."""
    height = points[:, 2] / 0.36 + 0.16 * noise(points, 5.0) + 0.05 * noise(points, 17.0)
    bands = 0.5 + 0.5 * np.sin(17 * height)
    storms = np.clip(noise(points, 8.0) - 0.25, 0, 1) * 1.6
    color = mix(rgb(0.16, 0.33, 0.62), rgb(0.95, 0.80, 0.58), bands)
    return mix(color, rgb(0.97, 0.96, 0.93), np.clip(storms, 0, 1))


def stripes(points: Array) -> Array:
    """Diagonal stripes, a thin line between them."""
    phase = (points @ np.array([1.0, 0.75, 1.25], np.float32)) / np.float32(0.17) % 1
    color = mix(rgb(0.05, 0.52, 0.50), rgb(0.98, 0.76, 0.24), phase < 0.5)
    return mix(color, rgb(0.10, 0.12, 0.18), np.abs(phase - 0.5) < 0.07)


def quilt(points: Array) -> Array:
    """A chessboard around the ring and around the tube."""
    around = np.arctan2(points[:, 1], points[:, 0])
    tube = np.arctan2(points[:, 2], np.hypot(points[:, 0], points[:, 1]) - 0.27)
    light = (np.floor(around * 12 / np.pi) + np.floor(tube * 4 / np.pi)) % 2
    hue = 0.5 + 0.5 * np.sin(around)
    return mix(mix(rgb(0.72, 0.13, 0.38), rgb(0.42, 0.18, 0.62), hue), rgb(0.97, 0.91, 0.88), light)


def candy(points: Array) -> Array:
    """A helix."""
    phase = (np.arctan2(points[:, 1], points[:, 0]) / (2 * np.pi) + points[:, 2] / 0.22) % 1
    return mix(rgb(0.96, 0.94, 0.90), rgb(0.80, 0.14, 0.12), phase < 0.5)
