"""Shapes that rays can hit, each in its own frame, centred at the origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]  # float32 on every ray

# Metres from a surface within which a ray does not hit it again.
EPSILON = 2e-3


def dot(a: Array, b: Array) -> Array:
    return np.einsum("...i,...i->...", a, b)


def unit(vectors: Array) -> Array:
    return vectors / np.sqrt(dot(vectors, vectors))[..., None]


class Shape(Protocol):
    """A surface that rays can hit, in its own frame."""

    @property
    def bound(self) -> float:
        """Radius of a sphere around the origin that holds the shape."""

    def hit(self, origins: Array, directions: Array) -> Array:
        """Distance along each unit direction to the first point of the surface [N], `inf`: none."""

    def normal(self, points: Array) -> Array:
        """Outward unit normals at points of the surface [N, 3]."""


def first_of(enter: Array, leave: Array) -> Array:
    """The hit with a convex body that a ray enters and leaves at these distances, seen from outside."""
    return np.where((enter < leave) & (enter > EPSILON), enter, np.float32(np.inf))


def between_planes(position: Array, slope: Array, half: Array | float) -> tuple[Array, Array]:
    """Where `position + t slope` enters and leaves [-half, half]."""
    slope = np.where(np.abs(slope) < 1e-9, np.float32(1e-9), slope)
    a, b = (-half - position) / slope, (half - position) / slope
    return np.minimum(a, b), np.maximum(a, b)


def between_roots(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Where `a t² + 2 b t + c` is negative, for a > 0; an empty interval (inf, -inf) where it never is."""
    a = np.maximum(a, np.float32(1e-12))
    discriminant = b * b - a * c
    root = np.sqrt(np.maximum(discriminant, 0))
    half = np.where(discriminant > 0, root, np.float32(-np.inf))
    return (-b - half) / a, (half - b) / a


@dataclass(frozen=True)
class Sphere:
    radius: float

    @property
    def bound(self) -> float:
        return self.radius

    def hit(self, origins: Array, directions: Array) -> Array:
        ones = np.ones(len(origins), np.float32)
        c = dot(origins, origins) - np.float32(self.radius**2)
        return first_of(*between_roots(ones, dot(origins, directions), c))

    def normal(self, points: Array) -> Array:
        return unit(points)


@dataclass(frozen=True)
class Box:
    half: tuple[float, float, float]

    @property
    def bound(self) -> float:
        return float(np.linalg.norm(self.half))

    def hit(self, origins: Array, directions: Array) -> Array:
        enter, leave = between_planes(origins, directions, np.array(self.half, np.float32))
        return first_of(enter.max(axis=-1), leave.min(axis=-1))

    def normal(self, points: Array) -> Array:
        scaled = points / np.array(self.half, np.float32)
        face = np.abs(scaled).argmax(axis=-1)[:, None]
        normals = np.zeros_like(points)
        np.put_along_axis(normals, face, np.sign(np.take_along_axis(scaled, face, axis=-1)), axis=-1)
        return normals


@dataclass(frozen=True)
class Cylinder:
    """Around the z axis, with caps."""

    radius: float
    half: float

    @property
    def bound(self) -> float:
        return float(np.hypot(self.radius, self.half))

    def interval(self, origins: Array, directions: Array) -> tuple[Array, Array]:
        o, d = origins[:, :2], directions[:, :2]
        side = between_roots(dot(d, d), dot(o, d), dot(o, o) - np.float32(self.radius**2))
        caps = between_planes(origins[:, 2], directions[:, 2], self.half)
        return np.maximum(side[0], caps[0]), np.minimum(side[1], caps[1])

    def hit(self, origins: Array, directions: Array) -> Array:
        return first_of(*self.interval(origins, directions))

    def normal(self, points: Array) -> Array:
        cap = self.half - np.abs(points[:, 2]) < self.radius - np.hypot(points[:, 0], points[:, 1])
        along = np.sign(points[:, 2:]) * np.array([0, 0, 1], np.float32)
        across = points * np.array([1, 1, 0], np.float32)
        return np.where(cap[:, None], along, unit(across + np.float32(1e-12)))


@dataclass(frozen=True)
class Torus:
    """Around the z axis; `ring` is the radius of the circle, `tube` the thickness around it."""

    ring: float
    tube: float

    @property
    def bound(self) -> float:
        return self.ring + self.tube

    def hit(self, origins: Array, directions: Array) -> Array:
        # Sphere tracing inside the flat cylinder around the torus: as exact as float32 and free of quartics.
        enter, leave = Cylinder(self.ring + self.tube, self.tube).interval(origins, directions)
        t = np.maximum(enter, np.float32(EPSILON))
        alive = np.flatnonzero(t < leave)
        result = np.full(len(t), np.inf, np.float32)
        for _ in range(64):
            points = origins[alive] + t[alive, None] * directions[alive]
            gap = np.hypot(np.hypot(points[:, 0], points[:, 1]) - self.ring, points[:, 2]) - self.tube
            near = gap < 2e-4
            result[alive[near]] = t[alive[near]]
            t[alive] += gap
            alive = alive[~near & (t[alive] < leave[alive])]
            if not len(alive):
                break
        return result

    def normal(self, points: Array) -> Array:
        across = points * np.array([1, 1, 0], np.float32)
        return unit(points - np.float32(self.ring) * unit(across + np.float32(1e-12)))
