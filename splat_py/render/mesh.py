"""Meshes of scenes: depths from many cameras, fused into a truncated signed distance (Curless and Levoy 1996), and its zero
surface in triangles by marching cubes (Lewiner et al. 2003)."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.transform import Rotation
from torch import Tensor

from splat_py.base.arguments import as_integer, finite_array, instances, require_instance
from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_path
from splat_py.render.surfels import depth_to_points
from splat_py.render.views import linear, render_surface
from splat_py.scene.camera import Camera, affine
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.images import late_progress
from splat_py.scene.sources import require_mesh_name

# Voxels along the longest side of the box: the least and the most.
_LEAST, _MOST = 16, 1024
# Truncation of signed distances and sides of blocks, in voxels.
_TRUNCATION, _BLOCK = 4, 32
# Cameras that have to see a voxel, and triangles that have to hang together.
_LEAST_VIEWS, _DUST = 2, 64
# The default box: the middle 98 % of the surface's points, and at each side a quarter more as far as there are points.
_TAIL, _MARGIN = 0.01, 0.25
_NOTHING = "the cameras see no surface; the scene is empty or faint where they look, or too few of them see the same part"


class Mesh(NamedTuple):
    """V coloured vertices and F triangles."""

    vertices: NDArray[np.float64]  # [V, 3] world units
    faces: NDArray[np.int64]  # [F, 3] indices of vertices, counterclockwise from outside
    colors: NDArray[np.uint8]  # [V, 3] sRGB

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .ply in the scene's axes, or a .glb, turned as .glb files of scenes are (docs/files.md), whose colours are
        light and not lit again. SplatError for another ending."""
        require_mesh_name(path := Path(path))
        vertices, colors, how = self.vertices, self.colors, {}
        if path.suffix.lower() == ".glb":
            vertices, how = vertices * [-1, -1, 1], {"tree_postprocessor": _unlit}
            colors = np.rint(255 * linear(colors / 255)).astype(np.uint8)
        made = _packages()[1](vertices, self.faces, vertex_colors=colors, process=False)
        with atomic_path(path) as temporary:
            made.export(temporary, **how)


def _unlit(tree: dict[str, Any]) -> None:
    """Give a glTF's meshes a material whose colours are shown as they are."""
    tree["materials"], tree["extensionsUsed"] = [{"extensions": {"KHR_materials_unlit": {}}}], ["KHR_materials_unlit"]
    for primitive in tree["meshes"][0]["primitives"]:
        primitive["material"] = 0


def _packages() -> tuple[Any, Any]:
    """Return marching cubes and the type of meshes that can be written."""
    try:
        from skimage.measure import marching_cubes
        from trimesh import Trimesh
    except ImportError as error:
        missing = "trimesh" if error.name == "trimesh" else "scikit-image"
        raise SplatError(f"meshes need {missing}, which is not installed: pip install 'slang-splat[mesh]'") from error
    return marching_cubes, Trimesh


@torch.no_grad()
def mesh(
    gaussians: Gaussians,
    cameras: Iterable[Camera],
    *,
    resolution: int = 256,
    bounds: ArrayLike | None = None,
    close_holes: bool = False,
    **how: Any,
) -> Mesh:
    """Make a mesh of the surface that cameras see.

    Median depths (`render_surface`) of all cameras are averaged on a grid of voxels, as signed distances that are truncated at
    four voxels. There are triangles only where at least two cameras (or the only one) saw both sides of the surface, and no
    parts of fewer than 64 triangles. A vertex has the mean of the colours that cameras saw there.

    Args:
        cameras: the photographs', or others from which the scene looks right. Their lenses are ignored, but an equirectangular
            camera sees all around.
        resolution: voxels along the longest side of the box, 16 to 1024.
        bounds: lowest and highest corner [2, 3] of the box, world units; by default around what the cameras see, without
            scattered points far away.
        close_holes: count what no camera saw as inside, in the box around the surface. The mesh is then watertight.
        how: `antialiased`, `near` and `device` of `render`.

    Raises:
        SplatError: there is no camera or no surface, an argument is out of its range, or the extra `mesh` is not installed.
    """
    _packages()
    require_instance(Gaussians, gaussians=gaussians)
    cameras = instances(Camera, "cameras", cameras)
    resolution = as_integer("resolution", resolution, _LEAST, _MOST)
    if not cameras:
        raise SplatError("there is no camera, but a mesh is what cameras see; give some")
    box = None if bounds is None else _given(bounds)
    # Pixels finer than half a voxel add nothing.
    seen = late_progress(cameras, "depths", len(cameras))
    flat = (pinhole for camera in seen for pinhole in _pinholes(camera))
    views = [_View.of(gaussians, camera.scaled(2 * resolution / max(camera.width, camera.height)), how) for camera in flat]
    low, high = _box(views) if box is None else box
    voxel = float((high - low).max()) / resolution
    if not voxel > 0:
        raise SplatError(_NOTHING)
    truncation = _TRUNCATION * voxel
    low, shape = low - truncation, tuple(np.ceil((high - low) / voxel).astype(int) + 2 * _TRUNCATION + 1)
    views = [replace(view, camera=replace(view.camera, viewmat=view.camera.viewmat @ affine(np.eye(3), low))) for view in views]

    values = np.full(shape, np.nan, np.float32)
    blocks = _blocks(views, shape, voxel, everywhere=close_holes)
    for block in late_progress(blocks, "fusing", len(blocks)):
        points = voxel * np.stack(list(np.mgrid[block]), -1).reshape(-1, 3)
        values[block] = _fused(views, points, truncation, min(_LEAST_VIEWS, len(cameras))).reshape(values[block].shape)
    unseen = np.isnan(values)
    # A vertex at the corner of a cell would be several.
    values[np.abs(values) < 1e-3] = 1e-3
    values[unseen] = 1
    vertices, faces = triangles(values, unseen)
    if close_holes:
        # As deep as the surface, but not beyond it: cameras around a table see none of the room below.
        around = tuple(slice(math.ceil(a), int(b) + 1) for a, b in zip(vertices.min(0), vertices.max(0), strict=True))
        values[around][unseen[around]] = -1
        values[[0, -1]] = values[:, [0, -1]] = values[:, :, [0, -1]] = 1
        vertices, faces = triangles(values, np.zeros_like(unseen))
    vertices *= voxel
    return Mesh(vertices + low, faces, _colors(views, vertices, truncation))


def triangles(values: NDArray[np.float32], unseen: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The zero surface of a grid, in voxels, without cells that touch unseen voxels and without dust; SplatError if there is
    none."""
    if not values.min() < 0 < values.max():
        raise SplatError(_NOTHING)
    # Equal values leave open how a cell's sides are cut, and neighbours that differ share an edge among four triangles.
    values = values * (1 - 1e-3 * np.random.default_rng(0).random(values.shape, np.float32))
    vertices, faces, _, _ = _packages()[0](values, 0.0, gradient_direction="descent")
    cells = vertices[faces].mean(1).astype(int)
    faces = faces[~np.any([unseen[tuple((cells + corner).T)] for corner in product((0, 1), repeat=3)], axis=0)]
    edges = coo_array((np.ones(2 * len(faces), bool), (faces[:, :2].ravel(), faces[:, 1:].ravel())), [len(vertices)] * 2)
    parts = connected_components(edges, directed=False)[1][faces[:, 0]]
    used, faces = np.unique(faces[np.bincount(parts)[parts] >= _DUST], return_inverse=True)
    if not len(used):
        raise SplatError(_NOTHING)
    return vertices[used].astype(np.float64), faces.reshape(-1, 3).astype(np.int64)


def _pinholes(camera: Camera) -> list[Camera]:
    """The camera, or for an equirectangular one the six that see a cube around it."""
    if camera.model != "equirectangular":
        return [camera]
    turns = Rotation.from_euler("yx", [[0, 0], [90, 0], [180, 0], [270, 0], [0, 90], [0, -90]], degrees=True).as_matrix()
    K = np.array([[1.0, 0, 1], [0, 1, 1], [0, 0, 1]])
    return [Camera(affine(turn, np.zeros(3)) @ camera.viewmat, K, 2, 2, camera.name) for turn in turns]


@dataclass(frozen=True, eq=False)
class _View:
    """The surface that a camera without a lens sees."""

    camera: Camera
    depths: Tensor  # [H, W] world units, infinite where there is none
    colors: Tensor  # [H, W, 3] uint8

    @classmethod
    def of(cls, gaussians: Gaussians, camera: Camera, how: dict[str, Any]) -> "_View":
        depths, colors, _ = render_surface(gaussians, camera, **how)
        return cls(camera, depths, (255 * colors + 0.5).byte())

    def points(self) -> NDArray[np.float32]:
        """The surface's points [P, 3]."""
        pose, K = (torch.tensor(m, dtype=torch.float32)[None] for m in (np.linalg.inv(self.camera.viewmat), self.camera.K))
        points = depth_to_points(self.depths[None, ..., None].cpu(), pose, K)[0]
        return points[self.depths.cpu().isfinite()].numpy()

    def gaps(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Distances [P] of the surface behind points [P, 3] in their pixels, NaN outside of the picture; and the pixels [P]."""
        pose, K = self.camera.viewmat.tolist(), self.camera.K
        x, y, z = (points[:, 0] * a + points[:, 1] * b + points[:, 2] * c + d for a, b, c, d in pose[:3])
        u, v, (height, width) = K[0, 0] * x / z + K[0, 2], K[1, 1] * y / z + K[1, 2], self.depths.shape
        inside = (z > 0) & (u >= 0) & (u < width) & (v >= 0) & (v < height)
        pixels = torch.where(inside, v, 0.0).long() * width + torch.where(inside, u, 0.0).long()
        return torch.where(inside, self.depths.flatten()[pixels] - z, torch.nan), pixels


def _given(bounds: ArrayLike) -> NDArray[np.float64]:
    corners = finite_array("bounds", bounds, (2, 3))
    if not (corners[0] < corners[1]).all():
        raise SplatError(f"bounds is {corners.tolist()}; give the lowest and then the highest corner of a box, [2, 3]")
    return corners


def _box(views: Sequence[_View]) -> NDArray[np.float64]:
    """The default box [2, 3]."""
    points = np.concatenate([view.points()[::16] for view in views]).astype(np.float64)
    if not len(points):
        raise SplatError(_NOTHING)
    low, high = np.quantile(points, (_TAIL, 1 - _TAIL), axis=0)
    margin = _MARGIN * (high - low).max()
    return np.stack([np.maximum(points.min(0), low - margin), np.minimum(points.max(0), high + margin)])


def _blocks(views: Sequence[_View], shape: tuple[int, ...], voxel: float, *, everywhere: bool) -> list[tuple[slice, ...]]:
    """Blocks of the grid: those that a surface comes near to, or all."""
    counts = -(-np.array(shape) // _BLOCK)
    near = np.full(counts, everywhere)
    for view in [] if everywhere else views:
        points = view.points()[::5] / voxel
        for corner in product((-_TRUNCATION, _TRUNCATION), repeat=3):
            places = np.floor((points + np.array(corner, np.float32)) / _BLOCK).astype(int)
            near[tuple(places[((places >= 0) & (places < counts)).all(1)].T)] = True
    return [
        tuple(slice(i * _BLOCK, min((i + 1) * _BLOCK, n)) for i, n in zip(place, shape, strict=True))
        for place in np.argwhere(near)
    ]


def _fused(views: Sequence[_View], points: NDArray[np.float64], truncation: float, least: int) -> NDArray[np.float32]:
    """Mean signed distances [P] at points [P, 3], from -1 inside to 1 outside; NaN where fewer than `least` views see."""
    at = torch.from_numpy(points.astype(np.float32)).to(views[0].depths.device)
    total, count = torch.zeros_like(at[:, 0]), torch.zeros_like(at[:, 0])
    for view in views:
        gaps, _ = view.gaps(at)
        sees = gaps > -truncation
        total += torch.where(sees, gaps.clamp(max=truncation) / truncation, 0.0)
        count += sees
    return torch.where(count >= least, total / count, torch.nan).cpu().numpy()


def _colors(views: Sequence[_View], points: NDArray[np.float64], truncation: float) -> NDArray[np.uint8]:
    """Mean colours [P, 3] of the surface at points [P, 3]; grey where no camera sees it."""
    at = torch.from_numpy(points.astype(np.float32)).to(views[0].depths.device)
    total, count = torch.zeros_like(at), torch.zeros_like(at[:, :1])
    for view in views:
        gaps, pixels = view.gaps(at)
        sees = (gaps.abs() < truncation)[:, None]
        total += torch.where(sees, view.colors.reshape(-1, 3)[pixels].float(), 0.0)
        count += sees
    return torch.where(count > 0, total / count, 128.0).round().byte().cpu().numpy()
