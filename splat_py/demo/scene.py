"""The embedded scene: a small captured scene whose every surface is known in closed form, as a nerfstudio data set.

A still life on a round table, ray traced in NumPy: fine texture (table, planet, box, torus), structures a
pixel or two wide (wire pyramid, planet ring) and colour that depends on the view (glossy sphere).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from splat_py.demo.ray_tracing import render_view, trace
from splat_py.demo.shapes import Array, unit
from splat_py.errors import SplatError
from splat_py.files import atomic_folder, is_vacant
from splat_py.scene.ply import write_points

POINTS = 2000
POINT_NOISE = 0.008  # metres; a third of a pixel at the table, as good structure from motion leaves
LOOK_AT = np.array([0.0, 0.0, 0.3])
CAMERA_DISTANCE = 4.1
FIELD_OF_VIEW = np.deg2rad(45.0)


def demo_cameras(views: int, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A spiral down a dome, three turns from overhead to just above the table, all looking at the centre.

    Every eighth view, the usual held-out ones, lies amid the others and a different way round the scene.

    Returns:
        viewmats: world → camera, OpenCV axes [views, 4, 4].
        K: intrinsics of a `size` × `size` picture, the same for all [3, 3].
    """
    t = (np.arange(views) + 0.5) / views
    z = np.sin(np.deg2rad(66)) + t * (np.sin(np.deg2rad(12)) - np.sin(np.deg2rad(66)))
    azimuth = t * 3 * 2 * np.pi
    away = np.stack([np.sqrt(1 - z**2) * np.cos(azimuth), np.sqrt(1 - z**2) * np.sin(azimuth), z], axis=-1)
    eyes = LOOK_AT + CAMERA_DISTANCE * away
    right = np.stack([-np.sin(azimuth), np.cos(azimuth), np.zeros(views)], axis=-1)
    viewmats = np.tile(np.eye(4), (views, 1, 1))
    viewmats[:, :3, :3] = np.stack([right, np.cross(-away, right), -away], axis=1)
    viewmats[:, :3, 3] = -np.einsum("cij,cj->ci", viewmats[:, :3, :3], eyes)
    focal = 0.5 * size / np.tan(FIELD_OF_VIEW / 2)
    return viewmats, np.array([[focal, 0, size / 2], [0, focal, size / 2], [0, 0, 1]])


@dataclass(frozen=True)
class Scenery:
    """What is photographed, and from where.

    Attributes:
        label: what a folder's transforms.json says that it holds.
        recipe: raised whenever the pictures change, so that an older folder is not mistaken for this scene.
        cameras: of so many views and pixels a side, viewmats [views, 4, 4] and K [3, 3].
        render: a viewmat, K, width and height → the photograph [H, W, 3] from 0 to 1.
        trace: rays' origins and unit directions [N, 3] → distances to what is first, and its number, -1 where there is nothing.
    """

    label: str
    recipe: int
    cameras: Callable[[int, int], tuple[NDArray[np.float64], NDArray[np.float64]]]
    render: Callable[[NDArray[np.float64], NDArray[np.float64], int, int], Array]
    trace: Callable[[Array, Array], tuple[Array, NDArray[np.int64]]]


def sparse_points(
    viewmats: NDArray[np.float64],
    K: NDArray[np.float64],
    images: list[NDArray[np.uint8]],
    trace: Callable[[Array, Array], tuple[Array, NDArray[np.int64]]] = trace,
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Points [P, 3] and colours [P, 3] as structure from motion leaves them: on visible surfaces, sparse, a little off."""
    generator = np.random.default_rng(0)
    size = len(images[0])
    positions, colors = [], []
    for viewmat, image in zip(viewmats, images, strict=True):
        column, row = generator.integers(0, size, (2, 4 * POINTS // len(images) + 8))
        pixels = np.stack([column + 0.5, row + 0.5, np.ones(len(row))], axis=-1)
        directions = unit((pixels @ np.linalg.inv(K).T @ viewmat[:3, :3]).astype(np.float32))
        origins = np.broadcast_to((-viewmat[:3, :3].T @ viewmat[:3, 3]).astype(np.float32), directions.shape)
        distance, index = trace(origins, directions)
        hit = np.flatnonzero(index >= 0)[: -(-POINTS // len(images))]
        positions.append(origins[hit] + distance[hit, None] * directions[hit])
        colors.append(image[row[hit], column[hit]])
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
    return write_scenery(folder, DEMO, views, size)


def write_scenery(folder: str | os.PathLike[str], scenery: Scenery, views: int, size: int) -> Path:
    """The same of any scene."""
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
        if not holds(folder, recipe, scenery.label):  # it does when another process was quicker
            raise
    return folder


def holds(folder: Path, recipe: dict[str, int], label: str) -> bool:
    """Whether `folder` is the scene of this recipe."""
    try:
        return bool(json.loads((folder / "transforms.json").read_text()).get(label) == recipe)
    except (OSError, ValueError, AttributeError):
        return False


def write_dataset(folder: Path, scenery: Scenery, recipe: dict[str, int]) -> None:
    """Render every view and write the files."""
    views, size = recipe["views"], recipe["size"]
    viewmats, K = scenery.cameras(views, size)
    (folder / "images").mkdir(parents=True)
    images, frames = [], []
    start = time.monotonic()
    progress = Progress(console=Console(stderr=True), transient=True)
    task = progress.add_task("rendering the demo scene", total=views)
    try:
        for i, viewmat in enumerate(viewmats):
            image = np.round(255 * scenery.render(viewmat, K, size, size)).astype(np.uint8)
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

    points, colors = sparse_points(viewmats, K, images, scenery.trace)
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


DEMO = Scenery("splat_py_demo", 1, demo_cameras, render_view, trace)
