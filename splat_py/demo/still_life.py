"""What stands on the demo scene's table: shapes with textures, placed in the world.

World frame: metres, +z up, the table's top at z = 0, everything within 1.6 of the origin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from splat_py.demo.shapes import Array, Box, Cylinder, Shape, Sphere, Torus
from splat_py.demo.textures import Texture, candy, plain, planet, quilt, stripes, table

Point = tuple[float, float, float]


@dataclass(frozen=True)
class Surface:
    """A shape in the world: `x_world = rotation @ x_shape + center`."""

    shape: Shape
    texture: Texture
    center: Point
    rotation: Array = field(default_factory=lambda: np.eye(3, dtype=np.float32))
    gloss: float = 0.0  # strength of the highlights and of the sky's reflection

    def to_local(self, vectors: Array) -> Array:
        return vectors @ self.rotation


def turn(x: float = 0.0, z: float = 0.0) -> Array:
    """Rotation about x, then about z, in degrees."""
    (cx, cz), (sx, sz) = np.cos(np.deg2rad([x, z])), np.sin(np.deg2rad([x, z]))
    about_x = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    about_z = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    return (about_z @ about_x).astype(np.float32)


def rod(start: Point, end: Point, radius: float, texture: Texture) -> Surface:
    """A thin cylinder from one point to another."""
    a, b = np.array(start), np.array(end)
    length = float(np.linalg.norm(b - a))
    axis = (b - a) / length
    side = np.cross(axis, [1.0, 0.0, 0.0] if abs(axis[0]) < 0.9 else [0.0, 1.0, 0.0])
    side /= np.linalg.norm(side)
    rotation = np.stack([side, np.cross(axis, side), axis], axis=1).astype(np.float32)
    x, y, z = (a + b) / 2
    return Surface(Cylinder(radius, length / 2), texture, (float(x), float(y), float(z)), rotation)


def pyramid(center: tuple[float, float], size: float, height: float) -> Iterator[Surface]:
    """Wire edges about a pixel and a half wide, beads where they meet."""
    x, y = center
    wire, bead = plain(0.86, 0.88, 0.92), plain(0.95, 0.62, 0.18)
    foot = 0.04
    corners = [(x + size * float(np.cos(a)), y + size * float(np.sin(a)), foot) for a in np.deg2rad([20, 140, 260])]
    apex = (x, y, height)
    for i, corner in enumerate(corners):
        yield rod(corner, corners[i - 1], 0.016, wire)
        yield rod(corner, apex, 0.016, wire)
        yield Surface(Sphere(0.04), bead, corner)
    yield Surface(Sphere(0.04), bead, apex)


@cache
def still_life() -> tuple[Surface, ...]:
    leaning = turn(x=62, z=-28)
    return (
        Surface(Cylinder(1.5, 0.05), table, (0, 0, -0.05)),
        Surface(Sphere(0.36), planet, (0.0, 0.12, 0.78), turn(x=24, z=35)),
        Surface(Torus(0.54, 0.014), plain(0.95, 0.86, 0.66), (0.0, 0.12, 0.78), turn(x=24, z=35)),
        rod((0.0, 0.12, 0.0), (0.0, 0.12, 0.45), 0.035, plain(0.75, 0.55, 0.25)),
        Surface(Cylinder(0.16, 0.02), plain(0.75, 0.55, 0.25), (0.0, 0.12, 0.02)),
        Surface(Sphere(0.27), plain(0.75, 0.08, 0.07), (0.62, -0.55, 0.27), gloss=1.0),
        Surface(Box((0.24, 0.24, 0.24)), stripes, (-0.72, -0.38, 0.24), turn(z=28)),
        Surface(Torus(0.27, 0.095), quilt, (0.02, -0.92, 0.33), leaning),
        Surface(Cylinder(0.11, 0.36), candy, (-0.62, 0.72, 0.36)),
        *pyramid((0.75, 0.45), 0.42, 0.85),
    )
