"""The object at a pixel: its Gaussians, found in space, and its pixels in any photograph."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_folder, is_vacant
from splat_py.render.inspection import require_pixel
from splat_py.render.views import rasterized
from splat_py.scene.camera import Camera
from splat_py.scene.editing import select
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.images import View, inner_name
from splat_py.scene.pictures import write_pixels

Rows = NDArray[np.bool_]

# A fox's head on a wall, trained shortly five times, is separated by 1.3 in all runs, by 1.5 in three and by 1.7 in none.
REACH = 1.3

# Opacity from which Gaussians make up surfaces.
_OPAQUE = 0.5
# Neighbours that a Gaussian may be linked to, also the fewest Gaussians of an object; and those that give its spacing.
_LINKS, _NEAREST = 16, 8
# The share of opaque Gaussians on a plane from which it counts as a floor, table or wall.
_DOMINANT = 0.2
# Triples of Gaussians that propose planes, Gaussians that vote, and steps of refinement.
_TRIPLES, _VOTERS, _REFINEMENTS = 500, 4000, 3
# The grey of pixels where something hides the object.
_HIDDEN = 64


def objects(gaussians: Gaussians, reach: float = REACH) -> NDArray[np.int64]:
    """Number the objects of a scene: the label [N] of each Gaussian's object, -1 on the plane that most of the scene lies on.

    A Gaussian's spacing is the mean distance to its eight nearest neighbours. Opaque Gaussians nearer to the dominant plane,
    found by RANSAC (Fischler and Bolles 1981), than the median spacing are the floor, table or wall that objects touch. The
    others are linked to neighbours nearer than `reach` times the smaller spacing of the two; linked ones are an object, if
    there are at least sixteen. All other Gaussians belong to the nearest of these.

    Raises:
        SplatError: the scene has too few opaque Gaussians.
    """
    means = gaussians.positions
    opaque = means[gaussians.opacities.detach().cpu().numpy() >= _OPAQUE]
    if len(opaque) <= _LINKS:
        raise SplatError(f"the scene has {len(opaque)} Gaussians with an opacity of {_OPAQUE} or more, too few for objects")
    distances, neighbours = cKDTree(opaque).query(opaque, _LINKS + 1, workers=-1)
    spacing = distances[:, 1 : _NEAREST + 1].mean(1)
    free = ~_on_plane(opaque, float(np.median(spacing)))
    a, b = np.arange(len(opaque)).repeat(_LINKS), neighbours[:, 1:].ravel()
    linked = free[a] & free[b] & (distances[:, 1:].ravel() < reach * np.minimum(spacing[a], spacing[b]))
    links = coo_array((np.ones(linked.sum()), (a[linked], b[linked])), (len(opaque), len(opaque)))
    labels = np.where(free, connected_components(links, directed=False)[1], -1)
    certain = ~free | (np.bincount(labels[free], minlength=len(opaque))[labels] >= _LINKS)
    if not certain.any():
        raise SplatError(f"no {_LINKS} opaque Gaussians of the scene are linked; a larger reach links more")
    return labels[certain][cKDTree(opaque[certain]).query(means, workers=-1)[1]].astype(np.int64)


def _on_plane(points: NDArray[np.float64], tolerance: float) -> Rows:
    """True for points [P] within `tolerance` of the plane with most of them; nowhere if it has few."""
    generator = np.random.default_rng(0)
    voters = points[generator.permutation(len(points))[:_VOTERS]]
    a, b, c = voters[generator.integers(0, len(voters), (3, _TRIPLES))]
    normals = np.cross(b - a, c - a)
    # A triple on a line is far from everything.
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-300)
    offsets = np.where(normals.any(1), (normals * a).sum(1), np.inf)
    best = (np.abs(voters @ normals.T - offsets) < tolerance).sum(0).argmax()
    near: Rows = np.abs(points @ normals[best] - offsets[best]) < tolerance
    for _ in range(_REFINEMENTS):
        if near.mean() < _DOMINANT:
            return np.zeros(len(points), bool)
        middle = points[near].mean(0)
        normal = np.linalg.eigh(np.cov((points[near] - middle).T))[1][:, 0]
        near = np.abs((points - middle) @ normal) < tolerance
    return near


def pick(gaussians: Gaussians, labels: NDArray[np.int64], camera: Camera, x: int, y: int, **how: object) -> Rows:
    """Pick the object that a pixel shows: True [N] for its Gaussians.

    Args:
        labels: [N], from `objects`.
        x, y: column and row in the camera's picture, from 0.
        how: `antialiased`, `near` and `device` of `render`.

    Raises:
        SplatError: the pixel is outside of the picture, shows no surface, or shows the plane that objects stand on.
    """
    require_pixel(camera, x, y)
    with torch.no_grad():
        _, _, meta = rasterized(gaussians, camera, return_medians=True, **how)  # type: ignore[arg-type]
    median = int(meta["median_ids"][0, y, x])
    if median < 0:
        raise SplatError(f"pixel {x}, {y} shows no surface; choose one on an object")
    if labels[median] < 0:
        raise SplatError(f"pixel {x}, {y} shows the floor, table or wall that objects stand out of; choose one on an object")
    return np.asarray(labels == labels[median])


@torch.no_grad()
def shares(gaussians: Gaussians, rows: Rows, camera: Camera, **how: object) -> NDArray[np.float32]:
    """Render how much of each pixel the Gaussians in `rows` [N] are, [H, W] from 0 to 1: the sum of their α T behind all that
    occludes them. `how` is that of `pick`."""
    ones = torch.from_numpy(np.ascontiguousarray(rows)).to(gaussians.means)
    _, _, meta = rasterized(gaussians, camera, extra_signals=ones[:, None], **how)  # type: ignore[arg-type]
    return meta["render_extra_signals"][0, ..., 0].clamp(0, 1).cpu().numpy()


def write_masks(
    folder: Path, root: Path, views: Iterable[View], gaussians: Gaussians, rows: Rows, *, outside: bool = False, **how: object
) -> int:
    """Write masks of photographs of the capture in `root` into a new folder. White pixels are at least half the Gaussians in
    `rows` [N], dark grey ones would be if nothing hid them (`load_dataset(cut_out=…)`), and others are black. With `outside`,
    the first are black and all others white. A photograph whose mask would be black has none. Returns the number of masks;
    `how` is that of `pick`.

    Raises:
        SplatError: the folder is not empty, or every mask would be black.
    """
    if not is_vacant(folder):
        raise SplatError(f"{folder} is not an empty folder; name another one for masks")
    alone, count = select(gaussians, rows), 0
    with atomic_folder(folder) as temporary:
        for view in views:
            camera = view.stored_camera
            white = (shares(gaussians, rows, camera, **how) >= 0.5) != outside
            if white.any():
                hidden = not outside and shares(alone, rows[rows], camera, **how) >= 0.5
                name = temporary / inner_name(root, view.path)
                pixels = np.where(white, 255, np.where(hidden, _HIDDEN, 0))
                write_pixels(name.with_name(f"{name.name}.png"), pixels[..., None])
                count += 1
        if not count:
            raise SplatError(f"no photograph of {root} shows the selected object; no mask was written")
    return count
