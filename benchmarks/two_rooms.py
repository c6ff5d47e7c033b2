"""A scene for `splat partition`: two rooms with a door between them, ray traced, as a nerfstudio data set.

World frame: metres, +z up, the floor at z = 0. The wall between the rooms is at x = 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splat_py.demo import shapes
from splat_py.demo.scene import Scenery, write_scenery
from splat_py.demo.shapes import Array, Box, Cylinder, Sphere, Surface, Texture, dot, photograph, turn, unit

# Half of a room's sides, its height, the door's width and height, half of a wall's thickness.
_HALF, _HEIGHT = 2.0, 2.6
_DOOR, _DOOR_HEIGHT = 1.1, 2.1
_THICK = 0.08
_FIELD_OF_VIEW = np.deg2rad(80.0)
# Cameras look across their room from a circle of this radius.
_AWAY = 1.35
_SUBPIXELS = 2
_AMBIENT, _LAMP = 0.5, 0.9


def write_two_rooms(folder: str | os.PathLike[str], *, views: int = 64, size: int = 128) -> Path:
    """Write the scene unless `folder` already holds it, as `write_demo_scene` does. The first half of the views is taken in one
    room, the second half in the other."""
    return write_scenery(folder, TWO_ROOMS, views, size)


def room_cameras(views: int, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """viewmats [views, 4, 4] and K [3, 3]: level cameras that look across their room, each a golden angle further."""
    viewmats = np.tile(np.eye(4), (views, 1, 1))
    for i in range(views):
        right_room, place = divmod(i, -(-views // 2))
        angle, height = place * np.pi * (3 - np.sqrt(5)), 0.9 + 0.8 * (place * 0.618 % 1)
        center = np.array([_HALF if right_room else -_HALF, 0.0, height])
        away = np.array([np.cos(angle), np.sin(angle), 0.0])
        # Look a little up or down, and aside.
        aside = 0.5 * np.array([-away[1], away[0], 0.0]) * ((place * 0.755 % 1) - 0.5)
        forward = unit(aside - away - np.array([0, 0, 0.35 * ((place * 0.57 % 1) - 0.4)]))
        right = unit(np.cross(forward, [0, 0, 1.0]))
        viewmats[i, :3, :3] = np.stack([right, np.cross(forward, right), forward])
        viewmats[i, :3, 3] = -viewmats[i, :3, :3] @ (center + _AWAY * away)
    focal = 0.5 * size / np.tan(_FIELD_OF_VIEW / 2)
    return viewmats, np.array([[focal, 0, size / 2], [0, focal, size / 2], [0, 0, 1]])


def _papered(light: tuple[float, float, float], dark: tuple[float, float, float], pitch: float) -> Texture:
    """Stripes along all three axes, under slow noise."""

    def texture(points: Array) -> Array:
        phase = points / np.float32(pitch) % 1
        crossing = (phase < 0.5).sum(-1) % 2
        shade = 0.5 * crossing + 0.5 * np.clip(0.5 + 0.5 * shapes.noise(points, 1.3), 0, 1)
        return shapes.mix(shapes.rgb(*light), shapes.rgb(*dark), shade)

    return texture


@cache
def room_surfaces() -> tuple[Surface, ...]:
    """The walls, floors, ceilings and furniture."""
    return (*_room(-1), *_room(1), *_between())


def _room(side: int) -> Iterator[Surface]:
    x, t, h = side * _HALF, _THICK, _HEIGHT / 2
    if side < 0:
        wall = _papered((0.93, 0.84, 0.66), (0.72, 0.42, 0.30), 0.9)
        floor = _papered((0.62, 0.45, 0.30), (0.36, 0.22, 0.13), 0.5)
    else:
        wall = _papered((0.72, 0.84, 0.93), (0.26, 0.44, 0.68), 0.7)
        floor = _papered((0.80, 0.82, 0.80), (0.30, 0.36, 0.34), 0.6)
    ceiling = _papered((0.97, 0.96, 0.92), (0.80, 0.79, 0.76), 1.1)
    yield Surface(Box((_HALF, _HALF + 2 * t, t)), floor, (x, 0, -t))
    yield Surface(Box((_HALF, _HALF + 2 * t, t)), ceiling, (x, 0, _HEIGHT + t))
    yield Surface(Box((t, _HALF + 2 * t, h)), wall, (x + side * (_HALF + t), 0, h))
    for y in (-1, 1):
        yield Surface(Box((_HALF, t, h)), wall, (x, y * (_HALF + t), h))
    yield Surface(Box((0.28, 0.28, 0.45)), shapes.stripes, (x + side * 1.3, 1.2, 0.45), turn(z=25.0 * side))
    yield Surface(Sphere(0.36), shapes.planet, (x + side * 0.2, side * 0.2, 0.62))
    yield Surface(Cylinder(0.2, 0.7), shapes.candy, (x - side * 1.1, -1.35 * side, 0.7))


def _between() -> Iterator[Surface]:
    paper = _papered((0.90, 0.90, 0.84), (0.44, 0.56, 0.40), 0.8)
    half = (_HALF - _DOOR / 2) / 2
    for side in (-1, 1):
        yield Surface(Box((_THICK, half, _HEIGHT / 2)), paper, (0, side * (_DOOR / 2 + half), _HEIGHT / 2))
    above = (_HEIGHT - _DOOR_HEIGHT) / 2
    yield Surface(Box((_THICK, _DOOR / 2, above)), paper, (0, 0, _DOOR_HEIGHT + above))


def render_rooms(viewmat: NDArray[np.float64], K: NDArray[np.float64], width: int, height: int) -> Array:
    """RGB [height, width, 3] from 0 to 1, display-referred, of a camera in the rooms. A lamp lights each room; there are no
    shadows."""
    return photograph(viewmat, K, (width, height), _SUBPIXELS, room_surfaces(), _room_light)


def _room_light(subpixel: int, points: Array, normals: Array, albedo: Array, gloss: Array, directions: Array) -> Array:
    lamp = np.array([_HALF, 0, _HEIGHT - 0.5], np.float32) * np.where(points[:, :1] < 0, [[-1, 1, 1]], 1)
    light = unit((lamp - points).astype(np.float32))
    return albedo * (_AMBIENT + _LAMP * np.maximum(dot(normals, light), 0))[:, None]


TWO_ROOMS = Scenery("splat_py_two_rooms", 1, room_cameras, render_rooms, room_surfaces)
