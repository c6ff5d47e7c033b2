"""Surfaces in closed form that rays can hit: shapes, each in its own frame and centred at the origin, with textures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

Array = NDArray[np.floating]  # float32 for rays
# Linear RGB albedo [N, 3] as a function of the point [N, 3] in the shape's frame.
Texture = Callable[[Array], Array]
# (subpixel, points, normals, albedos [N, 3], glosses [N], directions of rays [N, 3]) → linear RGB [N, 3].
Light = Callable[[int, Array, Array, Array, Array, Array], Array]

# Metres from its origin within which a ray hits nothing, so that it does not hit its own surface.
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
        """Return the distance along each unit direction to the first point of the surface [N]; `inf`: none."""

    def normal(self, points: Array) -> Array:
        """Return the outward unit normals at points of the surface [N, 3]."""


def first_of(enter: Array, leave: Array) -> Array:
    """Return the hit, from outside, with a convex body that a ray enters and leaves at these distances."""
    return np.where((enter < leave) & (enter > EPSILON), enter, np.float32(np.inf))


def between_planes(position: Array, slope: Array, half: Array | float) -> tuple[Array, Array]:
    """Return the t at which `position + t slope` enters and leaves [-half, half]."""
    slope = np.where(np.abs(slope) < 1e-9, np.float32(1e-9), slope)
    a, b = (-half - position) / slope, (half - position) / slope
    return np.minimum(a, b), np.maximum(a, b)


def between_roots(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Return the ends of the interval in which `a t² + 2 b t + c` is negative, for a > 0; (inf, -inf) if it never is."""
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
    """A cylinder around the z axis, with caps."""

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
    """A torus around the z axis; `ring` is the radius of the circle, `tube` that of the tube around it."""

    ring: float
    tube: float

    @property
    def bound(self) -> float:
        return self.ring + self.tube

    def hit(self, origins: Array, directions: Array) -> Array:
        # Sphere tracing inside the flat cylinder around the torus is as exact as float32, and needs no quartics.
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


def rgb(*levels: float) -> Array:
    return np.array(levels, np.float32) ** np.float32(2.2)


def mix(a: Array, b: Array, weight: Array | NDArray[np.bool_]) -> Array:
    return a + (b - a) * weight[..., None].astype(np.float32)


@cache
def waves(frequency: float) -> tuple[Array, Array]:
    generator = np.random.default_rng(7)
    directions = generator.normal(size=(3, 12)) * frequency * generator.uniform(0.5, 2.0, 12)
    return directions.astype(np.float32), generator.uniform(0, 2 * np.pi, 12).astype(np.float32)


def noise(points: Array, frequency: float) -> Array:
    """Return smooth, band-limited noise in about [-1, 1]: a sum of plane waves [N]."""
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
    """Turbulent bands of cloud."""
    height = points[:, 2] / 0.36 + 0.16 * noise(points, 5.0) + 0.05 * noise(points, 17.0)
    bands = 0.5 + 0.5 * np.sin(17 * height)
    storms = np.clip(noise(points, 8.0) - 0.25, 0, 1) * 1.6
    color = mix(rgb(0.16, 0.33, 0.62), rgb(0.95, 0.80, 0.58), bands)
    return mix(color, rgb(0.97, 0.96, 0.93), np.clip(storms, 0, 1))


def stripes(points: Array) -> Array:
    """Diagonal stripes with a thin line between them."""
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
    phase = (np.arctan2(points[:, 1], points[:, 0]) / (2 * np.pi) + points[:, 2] / 0.22) % 1
    return mix(rgb(0.96, 0.94, 0.90), rgb(0.80, 0.14, 0.12), phase < 0.5)


@dataclass(frozen=True)
class Surface:
    """A shape in the world: `x_world = rotation @ x_shape + center`."""

    shape: Shape
    texture: Texture
    center: tuple[float, float, float]
    rotation: Array = field(default_factory=lambda: np.eye(3, dtype=np.float32))
    gloss: float = 0.0  # strength of the highlights and of the sky's reflection

    def to_local(self, vectors: Array) -> Array:
        return vectors @ self.rotation


def turn(x: float = 0.0, z: float = 0.0) -> Array:
    """Return the rotation about x, then about z, in degrees."""
    return Rotation.from_euler("xz", (x, z), degrees=True).as_matrix().astype(np.float32)


def trace(surfaces: Sequence[Surface], origins: Array, directions: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the distance to the first surface along each ray [N] (`inf`: none), and its index in `surfaces` [N] (-1: none)."""
    distance = np.full(len(origins), np.inf, np.float32)
    index = np.full(len(origins), -1)
    # Skip rays that miss a shape's bounding sphere, which is enlarged a little against rounding.
    centers = np.array([surface.center for surface in surfaces], np.float32)
    bounds = np.array([[surface.shape.bound + 0.01] for surface in surfaces], np.float32)
    along = dot(origins, directions) - centers @ directions.T
    apart = dot(origins, origins) - 2 * centers @ origins.T + dot(centers, centers)[:, None]
    candidates = (apart - along**2 < bounds**2) & (along < bounds)
    for i, surface in enumerate(surfaces):
        rays = np.flatnonzero(candidates[i])
        t = surface.shape.hit(surface.to_local(origins[rays] - centers[i]), surface.to_local(directions[rays]))
        closer = t < distance[rays]
        distance[rays[closer]] = t[closer]
        index[rays[closer]] = i
    return distance, index


def radiance(surfaces: Sequence[Surface], light: Light, origins: Array, directions: Array, subpixel: int) -> Array:
    """Return display-space RGB in [0, 1] along each ray [N, 3], black where it hits nothing."""
    distance, index = trace(surfaces, origins, directions)
    color = np.zeros_like(directions)
    hit = np.flatnonzero(index >= 0)
    points = origins[hit] + distance[hit, None] * directions[hit]
    albedo, normals, gloss = np.zeros_like(points), np.zeros_like(points), np.zeros(len(hit), np.float32)
    for i, surface in enumerate(surfaces):
        mine = index[hit] == i
        local = surface.to_local(points[mine] - np.array(surface.center, np.float32))
        albedo[mine] = surface.texture(local)
        normals[mine] = surface.shape.normal(local) @ surface.rotation.T
        gloss[mine] = surface.gloss
    color[hit] = light(subpixel, points, normals, albedo, gloss, directions[hit])
    return np.clip(color, 0, 1) ** np.float32(1 / 2.2)


def photograph(
    viewmat: Array, K: Array, size: tuple[int, int], subpixels: int, surfaces: Sequence[Surface], light: Light
) -> Array:
    """Return a camera's picture [height, width, 3] of `size` (width, height): the mean over `subpixels` subpixels a side, in
    display space, where alpha blending happens."""
    width, height = size
    rotation, translation = np.asarray(viewmat)[:3, :3], np.asarray(viewmat)[:3, 3]
    to_world = rotation.T @ np.linalg.inv(K)
    y, x = np.mgrid[:height, :width].reshape(2, -1)
    origins = np.broadcast_to((-rotation.T @ translation).astype(np.float32), (width * height, 3))
    image = np.zeros((width * height, 3), np.float32)
    for subpixel in range(subpixels**2):
        dy, dx = (np.array(divmod(subpixel, subpixels)) + 0.5) / subpixels
        pixels = np.stack([x + dx, y + dy, np.ones(len(x))], axis=-1)
        image += radiance(surfaces, light, origins, unit((pixels @ to_world.T).astype(np.float32)), subpixel)
    return (image / subpixels**2).reshape(height, width, 3)
