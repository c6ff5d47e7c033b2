"""The embedded scene: a small scene of surfaces that are known in closed form, as a nerfstudio data set.

A still life on a round table, ray traced in NumPy under a lamp and a sky: fine texture (table, planet, box, torus),
structures a pixel or two wide (wire pyramid, planet ring) and colour that depends on the view (glossy sphere). World frame:
metres, +z up, the table's top at z = 0, everything within 1.6 of the origin.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_folder, is_vacant
from splat_py.demo import shapes
from splat_py.demo.shapes import EPSILON, Array, Surface, Texture, dot, photograph, plain, trace, turn, unit
from splat_py.scene.camera import look_at_matrix
from splat_py.scene.formats.ply import write_points
from splat_py.scene.images import late_progress
from splat_py.scene.pictures import write_pixels

Point = tuple[float, float, float]

SUBPIXELS = 3  # per side of a pixel: 9 rays, each with its own directions to lamp and sky
LAMP = unit(np.array([0.55, -0.35, 0.85], np.float32))
LAMP_COLOR = np.array([1.16, 1.09, 0.98], np.float32)
SKY_COLOR = np.array([0.60, 0.69, 0.82], np.float32)
BOUNCE_COLOR = np.array([0.10, 0.09, 0.08], np.float32)
POINTS = 2000
POINT_NOISE = 0.008  # metres; a third of a pixel at the table, the error of good structure from motion
LOOK_AT = np.array([0.0, 0.0, 0.3])
CAMERA_DISTANCE = 4.1
FIELD_OF_VIEW = np.deg2rad(45.0)


def rod(start: Point, end: Point, radius: float, texture: Texture) -> Surface:
    """A thin cylinder from one point to another."""
    a, b = np.array(start), np.array(end)
    length = float(np.linalg.norm(b - a))
    axis = (b - a) / length
    side = np.cross(axis, [1.0, 0.0, 0.0] if abs(axis[0]) < 0.9 else [0.0, 1.0, 0.0])
    side /= np.linalg.norm(side)
    rotation = np.stack([side, np.cross(axis, side), axis], axis=1).astype(np.float32)
    x, y, z = (a + b) / 2
    return Surface(shapes.Cylinder(radius, length / 2), texture, (float(x), float(y), float(z)), rotation)


def pyramid(center: tuple[float, float], size: float, height: float) -> Iterator[Surface]:
    """Yield wire edges about a pixel and a half wide, with beads where they meet."""
    x, y = center
    wire, bead = plain(0.86, 0.88, 0.92), plain(0.95, 0.62, 0.18)
    foot = 0.04
    corners = [(x + size * float(np.cos(a)), y + size * float(np.sin(a)), foot) for a in np.deg2rad([20, 140, 260])]
    apex = (x, y, height)
    for i, corner in enumerate(corners):
        yield rod(corner, corners[i - 1], 0.016, wire)
        yield rod(corner, apex, 0.016, wire)
        yield Surface(shapes.Sphere(0.04), bead, corner)
    yield Surface(shapes.Sphere(0.04), bead, apex)


@cache
def still_life() -> tuple[Surface, ...]:
    return (
        Surface(shapes.Cylinder(1.5, 0.05), shapes.table, (0, 0, -0.05)),
        Surface(shapes.Sphere(0.36), shapes.planet, (0.0, 0.12, 0.78), turn(x=24, z=35)),
        Surface(shapes.Torus(0.54, 0.014), plain(0.95, 0.86, 0.66), (0.0, 0.12, 0.78), turn(x=24, z=35)),
        rod((0.0, 0.12, 0.0), (0.0, 0.12, 0.45), 0.035, plain(0.75, 0.55, 0.25)),
        Surface(shapes.Cylinder(0.16, 0.02), plain(0.75, 0.55, 0.25), (0.0, 0.12, 0.02)),
        Surface(shapes.Sphere(0.27), plain(0.75, 0.08, 0.07), (0.62, -0.55, 0.27), gloss=1.0),
        Surface(shapes.Box((0.24, 0.24, 0.24)), shapes.stripes, (-0.72, -0.38, 0.24), turn(z=28)),
        Surface(shapes.Torus(0.27, 0.095), shapes.quilt, (0.02, -0.92, 0.33), turn(x=62, z=-28)),
        Surface(shapes.Cylinder(0.11, 0.36), shapes.candy, (-0.62, 0.72, 0.36)),
        *pyramid((0.75, 0.45), 0.42, 0.85),
    )


@cache
def light_samples() -> list[tuple[Array, Array]]:
    """Return directions to the lamp (a disc) and to the sky (the upper hemisphere) for each ray of a pixel."""
    count = SUBPIXELS**2
    order = np.random.default_rng(3).permutation(count)  # makes the directions to lamp and sky independent
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
    """Return the cosine of a light's direction at each point, zero in its shadow [N]."""
    cosine = np.maximum(normals @ direction, 0)
    facing = np.flatnonzero(cosine > 0)
    origins = points[facing] + np.float32(EPSILON) * normals[facing]
    _, blocker = trace(still_life(), origins, np.broadcast_to(direction, origins.shape))
    cosine[facing[blocker >= 0]] = 0
    return cosine


def light(subpixel: int, points: Array, normals: Array, albedo: Array, gloss: Array, directions: Array) -> Array:
    lamp, sky = light_samples()[subpixel]
    from_lamp, from_sky = lit(points, normals, lamp), lit(points, normals, sky)
    color = albedo * (from_lamp[:, None] * LAMP_COLOR + from_sky[:, None] * SKY_COLOR + BOUNCE_COLOR)

    # Wide lobes only: a highlight should be hard for third-degree spherical harmonics, not impossible.
    cosine = dot(normals, -directions)
    mirrored = 2 * cosine[:, None] * normals + directions
    fresnel = 0.06 + 0.5 * (1 - np.clip(cosine, 0, 1)) ** 3
    reflected = fresnel * np.clip(0.5 + 0.5 * mirrored[:, 2], 0, 1) ** 2
    highlight = 0.9 * (from_lamp > 0) * np.clip(mirrored @ LAMP, 0, 1) ** 14
    return color + gloss[:, None] * (reflected[:, None] * SKY_COLOR + highlight[:, None] * LAMP_COLOR)


def render_view(viewmat: NDArray[np.floating], K: NDArray[np.floating], width: int, height: int) -> NDArray[np.floating]:
    """Render the ground truth [height, width, 3] for a pinhole camera outside the objects: display RGB from 0 to 1.

    `viewmat` [4, 4] is world → camera, with +z forward and +y down, in metres; `K` [3, 3] is in pixels."""
    return photograph(viewmat, K, (width, height), SUBPIXELS, still_life(), light)


def demo_cameras(views: int, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return viewmats [views, 4, 4], world → camera, and K [3, 3] for pictures of size × size pixels: three turns of a spiral
    down a dome, from overhead to just above the table, looking at the centre. The views that are held out, one of eight, lie
    amid the others."""
    t = (np.arange(views) + 0.5) / views
    z = np.sin(np.deg2rad(66)) + t * (np.sin(np.deg2rad(12)) - np.sin(np.deg2rad(66)))
    azimuth = t * 3 * 2 * np.pi
    away = np.stack([np.sqrt(1 - z**2) * np.cos(azimuth), np.sqrt(1 - z**2) * np.sin(azimuth), z], axis=-1)
    viewmats = np.stack([look_at_matrix(eye, LOOK_AT, np.array([0.0, 0, 1])) for eye in LOOK_AT + CAMERA_DISTANCE * away])
    focal = 0.5 * size / np.tan(FIELD_OF_VIEW / 2)
    return viewmats, np.array([[focal, 0, size / 2], [0, focal, size / 2], [0, 0, 1]])


@dataclass(frozen=True)
class Scenery:
    """Surfaces, and cameras that photograph them."""

    label: str  # names the scene in a folder's transforms.json
    recipe: int  # raised whenever the pictures change, so that an older folder is not mistaken for this scene
    # Numbers of views and of pixels a side → viewmats [views, 4, 4] and K [3, 3].
    cameras: Callable[[int, int], tuple[NDArray[np.float64], NDArray[np.float64]]]
    # A viewmat, K, width and height → the photograph [H, W, 3] from 0 to 1.
    render: Callable[[NDArray[np.float64], NDArray[np.float64], int, int], Array]
    surfaces: Callable[[], tuple[Surface, ...]]  # → the surfaces of the scene


def sparse_points(
    viewmats: Array, K: Array, images: list[NDArray[np.uint8]], surfaces: tuple[Surface, ...]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return points [P, 3] and colours [P, 3] as from structure from motion: on visible surfaces, sparse, a little off."""
    generator = np.random.default_rng(0)
    size = len(images[0])
    positions, colors = [], []
    for viewmat, image in zip(viewmats, images, strict=True):
        column, row = generator.integers(0, size, (2, 4 * POINTS // len(images) + 8))
        pixels = np.stack([column + 0.5, row + 0.5, np.ones(len(row))], axis=-1)
        directions = unit((pixels @ np.linalg.inv(K).T @ viewmat[:3, :3]).astype(np.float32))
        origins = np.broadcast_to((-viewmat[:3, :3].T @ viewmat[:3, 3]).astype(np.float32), directions.shape)
        distance, index = trace(surfaces, origins, directions)
        hit = np.flatnonzero(index >= 0)[: -(-POINTS // len(images))]
        positions.append(origins[hit] + distance[hit, None] * directions[hit])
        colors.append(image[row[hit], column[hit]])
    points = np.concatenate(positions)
    return (points + generator.normal(0, POINT_NOISE, points.shape)).astype(np.float32), np.concatenate(colors)


def write_demo_scene(folder: str | os.PathLike[str], *, views: int = 40, size: int = 128) -> Path:
    """Write the scene as a nerfstudio data set, or do nothing if `folder` already holds it. Returns `folder`.

    The folder gets `transforms.json` (camera → world, OpenGL axes), `images/000.png` … and `points.ply` with about 2000 points
    to start from. The same arguments give the same files, and the folder is written atomically. The default takes five seconds
    on one core.

    Args:
        views: number of photographs, at least 2.
        size: width and height of each, in pixels, at least 8.

    Raises:
        SplatError: there are too few views or pixels, or `folder` holds something else.
    """
    return write_scenery(folder, DEMO, views, size)


def write_scenery(folder: str | os.PathLike[str], scenery: Scenery, views: int, size: int) -> Path:
    if views < 2 or size < 8:
        raise SplatError(f"the demo scene needs at least 2 views and a size of at least 8, not {views} and {size}")
    folder = Path(folder)
    recipe = {"recipe": scenery.recipe, "views": views, "size": size}
    if holds(folder, recipe, scenery.label):
        return folder
    if not is_vacant(folder):
        raise SplatError(f"{folder} holds something other than this demo scene: remove it or name another")
    try:
        with atomic_folder(folder) as temporary:
            write_dataset(temporary, scenery, recipe)
    except SplatError:
        if not holds(folder, recipe, scenery.label):  # another process may have been quicker
            raise
    return folder


def holds(folder: Path, recipe: dict[str, int], label: str) -> bool:
    try:
        return bool(json.loads((folder / "transforms.json").read_text()).get(label) == recipe)
    except (OSError, ValueError, AttributeError):
        return False


def write_dataset(folder: Path, scenery: Scenery, recipe: dict[str, int]) -> None:
    views, size = recipe["views"], recipe["size"]
    viewmats, K = scenery.cameras(views, size)
    (folder / "images").mkdir(parents=True)
    images, frames = [], []
    for i, viewmat in enumerate(late_progress(viewmats, "rendering the demo scene", views)):
        image = np.round(255 * scenery.render(viewmat, K, size, size)).astype(np.uint8)
        name = f"images/{i:03}.png"
        write_pixels(folder / name, image)
        images.append(image)
        opengl = np.linalg.inv(viewmat) @ np.diag([1.0, -1.0, -1.0, 1.0])
        frames.append({"file_path": name, "transform_matrix": opengl.tolist()})
    points, colors = sparse_points(viewmats, K, images, scenery.surfaces())
    write_points(folder / "points.ply", points, colors)

    meta = {
        scenery.label: recipe,
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


DEMO = Scenery("splat_py_demo", 1, demo_cameras, render_view, still_life)
