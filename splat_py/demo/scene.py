"""The embedded scene: a small captured scene whose every surface is known in closed form.

A still life on a round table, ray traced in NumPy: fine texture (table, planet, box, torus), structures a
pixel or two wide (wire pyramid, planet ring) and colour that depends on the view (glossy sphere).  As the
geometry is analytic, `render_view` gives the ground truth for any camera, not only for the pictures on disk.

World frame: metres, +z up, the table's top at z = 0, everything within 1.6 of the origin, black background.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

import imageio.v3 as imageio
import numpy as np
from numpy.typing import NDArray
from plyfile import PlyData, PlyElement
from rich.console import Console
from rich.progress import Progress

from splat_py.errors import SplatError

Array = NDArray[np.floating]  # float32 on every ray
Texture = Callable[[Array], Array]
Point = tuple[float, float, float]

RECIPE = 1  # raised whenever the pictures change, so that an older folder is not mistaken for this scene
POINTS = 2000
POINT_NOISE = 0.008  # metres; a third of a pixel at the table, as good structure from motion leaves
LOOK_AT = np.array([0.0, 0.0, 0.3])
CAMERA_DISTANCE = 4.1
FIELD_OF_VIEW = np.deg2rad(45.0)
SUBPIXELS = 3  # a side: 9 rays a pixel, each with its own direction to the lamp and to the sky
EPSILON = 2e-3


# Shapes: each in its own frame, centred at the origin.


class Shape(Protocol):
    """A surface that rays can hit, in its own frame."""

    @property
    def bound(self) -> float:
        """Radius of a sphere around the origin that holds the shape."""

    def hit(self, origins: Array, directions: Array) -> Array:
        """Distance along each unit direction to the first point of the surface [N], `inf`: none."""

    def normal(self, points: Array) -> Array:
        """Outward unit normals at points of the surface [N, 3]."""


def dot(a: Array, b: Array) -> Array:
    return np.einsum("...i,...i->...", a, b)


def unit(vectors: Array) -> Array:
    return vectors / np.sqrt(dot(vectors, vectors))[..., None]


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
    reach = np.where(discriminant > 0, root, np.float32(-np.inf))
    return (-b - reach) / a, (reach - b) / a


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


# Textures: linear RGB albedo [N, 3] as a function of the point in the shape's frame.


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


# The scene.


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


# Light.


@cache
def enclosing_spheres() -> tuple[Array, Array]:
    """Centres [S, 3] and radii [S, 1] of spheres that hold the surfaces, a little large against rounding."""
    surfaces = still_life()
    centers = np.array([surface.center for surface in surfaces], np.float32)
    return centers, np.array([[surface.shape.bound + 0.01] for surface in surfaces], np.float32)


def trace(origins: Array, directions: Array) -> tuple[Array, NDArray[np.int64]]:
    """Distance to the first surface along each ray [N] (`inf`: none), and its index in `still_life` [N]."""
    distance = np.full(len(origins), np.inf, np.float32)
    index = np.full(len(origins), -1)
    centers, bounds = enclosing_spheres()
    along = dot(origins, directions) - centers @ directions.T
    apart = dot(origins, origins) - 2 * centers @ origins.T + dot(centers, centers)[:, None]
    candidates = (apart - along**2 < bounds**2) & (along < bounds)
    for i, surface in enumerate(still_life()):
        rays = np.flatnonzero(candidates[i])
        if not len(rays):
            continue
        t = surface.shape.hit(surface.to_local(origins[rays] - centers[i]), surface.to_local(directions[rays]))
        closer = t < distance[rays]
        distance[rays[closer]] = t[closer]
        index[rays[closer]] = i
    return distance, index


LAMP = unit(np.array([0.55, -0.35, 0.85], np.float32))
LAMP_COLOR = np.array([1.16, 1.09, 0.98], np.float32)
SKY_COLOR = np.array([0.60, 0.69, 0.82], np.float32)
BOUNCE_COLOR = np.array([0.10, 0.09, 0.08], np.float32)


@cache
def light_samples() -> list[tuple[Array, Array]]:
    """A direction to the lamp (a disc) and one to the sky (the upper hemisphere) for each ray of a pixel."""
    count = SUBPIXELS**2
    order = np.random.default_rng(3).permutation(count)  # the lamp's place says nothing of the sky's
    k = np.arange(count) + 0.5
    angle = k * np.pi * (3 - np.sqrt(5))
    radius = 0.13 * np.sqrt(k / count)
    side = np.cross(LAMP, [0, 0, 1])
    disc = np.cos(angle)[:, None] * side + np.sin(angle)[:, None] * np.cross(side, LAMP)
    lamp = LAMP + radius[:, None] * disc
    z = k / count
    sky = np.stack([np.sqrt(1 - z**2) * np.cos(angle), np.sqrt(1 - z**2) * np.sin(angle), z], axis=-1)
    return list(zip(unit(lamp.astype(np.float32)), sky.astype(np.float32)[order], strict=True))


def lit(points: Array, normals: Array, direction: Array) -> Array:
    """Cosine of a light's direction at each point, zero in its shadow [N]."""
    cosine = np.maximum(normals @ direction, 0)
    facing = np.flatnonzero(cosine > 0)
    origins = points[facing] + np.float32(EPSILON) * normals[facing]
    _, blocker = trace(origins, np.broadcast_to(direction, origins.shape))
    cosine[facing[blocker >= 0]] = 0
    return cosine


def radiance(origins: Array, directions: Array, lamp: Array, sky: Array) -> Array:
    """Display-space RGB in [0, 1] seen along each ray [N, 3], black where there is nothing."""
    distance, index = trace(origins, directions)
    color = np.zeros_like(directions)
    seen = np.flatnonzero(index >= 0)
    points = origins[seen] + distance[seen, None] * directions[seen]
    albedo, normals, gloss = np.zeros_like(points), np.zeros_like(points), np.zeros(len(seen), np.float32)
    for i, surface in enumerate(still_life()):
        mine = index[seen] == i
        local = surface.to_local(points[mine] - np.array(surface.center, np.float32))
        albedo[mine] = surface.texture(local)
        normals[mine] = surface.shape.normal(local) @ surface.rotation.T
        gloss[mine] = surface.gloss

    from_lamp, from_sky = lit(points, normals, lamp), lit(points, normals, sky)
    color[seen] = albedo * (from_lamp[:, None] * LAMP_COLOR + from_sky[:, None] * SKY_COLOR + BOUNCE_COLOR)

    # Wide lobes only: a highlight is to challenge third-degree spherical harmonics, not to defeat them.
    view = -directions[seen]
    cosine = dot(normals, view)
    mirrored = 2 * cosine[:, None] * normals - view
    fresnel = 0.06 + 0.5 * (1 - np.clip(cosine, 0, 1)) ** 3
    reflected = fresnel * np.clip(0.5 + 0.5 * mirrored[:, 2], 0, 1) ** 2
    highlight = 0.9 * (from_lamp > 0) * np.clip(mirrored @ LAMP, 0, 1) ** 14
    color[seen] += gloss[:, None] * (reflected[:, None] * SKY_COLOR + highlight[:, None] * LAMP_COLOR)
    return np.clip(color, 0, 1) ** np.float32(1 / 2.2)


def render_view(viewmat: NDArray[np.floating], K: NDArray[np.floating], width: int, height: int) -> Array:
    """The ground truth for any camera outside the objects.

    Args:
        viewmat: world → camera, rigid, OpenCV axes [4, 4].
        K: pinhole intrinsics in pixels, pixel centres at +0.5 [3, 3].
        width, height: pixels.

    Returns:
        RGB in [0, 1], display-referred, a box filter over each pixel [height, width, 3].
    """
    rotation, translation = np.asarray(viewmat)[:3, :3], np.asarray(viewmat)[:3, 3]
    to_world = rotation.T @ np.linalg.inv(K)
    y, x = np.mgrid[:height, :width].reshape(2, -1)
    origins = np.broadcast_to((-rotation.T @ translation).astype(np.float32), (width * height, 3))
    image = np.zeros((width * height, 3), np.float32)
    # Averaged in display space, where alpha blending, and so splatting, happens.
    for sample, (lamp, sky) in enumerate(light_samples()):
        dy, dx = (np.array(divmod(sample, SUBPIXELS)) + 0.5) / SUBPIXELS
        pixels = np.stack([x + dx, y + dy, np.ones(len(x))], axis=-1)
        image += radiance(origins, unit((pixels @ to_world.T).astype(np.float32)), lamp, sky)
    return (image / SUBPIXELS**2).reshape(height, width, 3)


# The data set.


def demo_cameras(views: int, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A spiral down a dome, three turns from overhead to just above the table, all looking at the centre.

    Every eighth view, the usual held-out ones, lies amid the others and a different way round the scene.

    Returns:
        viewmats: world → camera, OpenCV axes [views, 4, 4].
        K: intrinsics of a `size` × `size` picture, the same for all [3, 3].
    """
    place = (np.arange(views) + 0.5) / views
    z = np.sin(np.deg2rad(66)) + place * (np.sin(np.deg2rad(12)) - np.sin(np.deg2rad(66)))
    azimuth = place * 3 * 2 * np.pi
    away = np.stack([np.sqrt(1 - z**2) * np.cos(azimuth), np.sqrt(1 - z**2) * np.sin(azimuth), z], axis=-1)
    eyes = LOOK_AT + CAMERA_DISTANCE * away
    right = np.stack([-np.sin(azimuth), np.cos(azimuth), np.zeros(views)], axis=-1)
    viewmats = np.tile(np.eye(4), (views, 1, 1))
    viewmats[:, :3, :3] = np.stack([right, np.cross(-away, right), -away], axis=1)
    viewmats[:, :3, 3] = -np.einsum("cij,cj->ci", viewmats[:, :3, :3], eyes)
    focal = 0.5 * size / np.tan(FIELD_OF_VIEW / 2)
    return viewmats, np.array([[focal, 0, size / 2], [0, focal, size / 2], [0, 0, 1]])


def sparse_points(
    viewmats: NDArray[np.float64], K: NDArray[np.float64], images: list[NDArray[np.uint8]]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Points [P, 3] and colours [P, 3] as structure from motion leaves them: seen, sparse, a little off."""
    generator = np.random.default_rng(0)
    size = len(images[0])
    positions, colors = [], []
    for viewmat, image in zip(viewmats, images, strict=True):
        column, row = generator.integers(0, size, (2, 4 * POINTS // len(images) + 8))
        pixels = np.stack([column + 0.5, row + 0.5, np.ones(len(row))], axis=-1)
        directions = unit((pixels @ np.linalg.inv(K).T @ viewmat[:3, :3]).astype(np.float32))
        origins = np.broadcast_to((-viewmat[:3, :3].T @ viewmat[:3, 3]).astype(np.float32), directions.shape)
        distance, index = trace(origins, directions)
        seen = np.flatnonzero(index >= 0)[: -(-POINTS // len(images))]
        positions.append(origins[seen] + distance[seen, None] * directions[seen])
        colors.append(image[row[seen], column[seen]])
    points = np.concatenate(positions)
    noisy = points + generator.normal(0, POINT_NOISE, points.shape)
    return noisy.astype(np.float32), np.concatenate(colors)


def write_demo_scene(folder: str | os.PathLike[str], *, views: int = 40, size: int = 128) -> Path:
    """Write the scene as a nerfstudio data set, or do nothing where `folder` already holds it.

    The folder gets `transforms.json` (camera → world, OpenGL axes), `images/000.png` … and `points.ply` with
    about 2000 coloured points to start from.  The same arguments give the same files, and the folder appears
    whole or not at all.  The default takes about five seconds on one core.

    Args:
        folder: where to write; made if absent.
        views: number of photographs, at least 2.
        size: width and height of each, in pixels, at least 8.

    Returns:
        `folder`.

    Raises:
        SplatError: an argument is out of range, or `folder` holds something else or cannot be written.
    """
    if views < 2 or size < 8:
        raise SplatError(f"the demo scene needs at least 2 views and a size of at least 8, not {views} and {size}")
    folder = Path(folder)
    recipe = {"recipe": RECIPE, "views": views, "size": size}
    if holds(folder, recipe):
        return folder
    occupied = SplatError(f"{folder} holds something other than this demo scene: remove it or name another")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise occupied
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise SplatError(f"cannot write {folder}: {error.strerror}; choose another folder") from error
    try:
        dataset = temporary / folder.name
        write_dataset(dataset, recipe)
        try:
            os.replace(dataset, folder)
        except OSError as error:
            if not holds(folder, recipe):  # it does when another process was quicker
                raise occupied from error
    finally:
        shutil.rmtree(temporary)
    return folder


def holds(folder: Path, recipe: dict[str, int]) -> bool:
    """Whether `folder` is the demo scene of this recipe."""
    try:
        return bool(json.loads((folder / "transforms.json").read_text()).get("splat_py_demo") == recipe)
    except (OSError, ValueError, AttributeError):
        return False


def write_dataset(folder: Path, recipe: dict[str, int]) -> None:
    """Render every view and write the files."""
    views, size = recipe["views"], recipe["size"]
    viewmats, K = demo_cameras(views, size)
    (folder / "images").mkdir(parents=True)
    images, frames = [], []
    start = time.monotonic()
    progress = Progress(console=Console(stderr=True), transient=True)
    task = progress.add_task("rendering the demo scene", total=views)
    try:
        for i, viewmat in enumerate(viewmats):
            image = np.round(255 * render_view(viewmat, K, size, size)).astype(np.uint8)
            name = f"images/{i:03}.png"
            imageio.imwrite(folder / name, image)
            images.append(image)
            opengl = np.linalg.inv(viewmat) @ np.diag([1.0, -1.0, -1.0, 1.0])
            frames.append({"file_path": name, "transform_matrix": opengl.tolist()})
            progress.update(task, completed=i + 1)
            if time.monotonic() - start > 2:
                progress.start()
    finally:
        progress.stop()

    points, colors = sparse_points(viewmats, K, images)
    columns = [(axis, "<f4") for axis in "xyz"] + [(channel, "u1") for channel in ("red", "green", "blue")]
    vertices = np.empty(len(points), columns)
    for (name, _), column in zip(columns, [*points.T, *colors.T], strict=True):
        vertices[name] = column
    PlyData([PlyElement.describe(vertices, "vertex")], byte_order="<").write(folder / "points.ply")

    meta = {
        "splat_py_demo": recipe,
        "camera_model": "OPENCV",
        "w": size,
        "h": size,
        "fl_x": K[0, 0],
        "fl_y": K[1, 1],
        "cx": K[0, 2],
        "cy": K[1, 2],
        "ply_file_path": "points.ply",
        "frames": frames,
    }
    (folder / "transforms.json").write_text(json.dumps(meta, indent=1) + "\n")
