"""Meshes of Gaussians on surfaces that are known in closed form: near them, closed if asked to, and nothing where no camera
looked."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trimesh
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from splat_py import Camera, Gaussians, mesh
from splat_py.demo import scene as demo
from splat_py.demo.shapes import Box, Shape, Sphere, Surface, plain, trace, unit
from splat_py.render.mesh import triangles
from splat_py.scene.camera import Distortion
from tests.refusals import refused


def seen(surfaces: tuple[Surface, ...], cameras: list[Camera]) -> tuple[NDArray, NDArray, NDArray]:
    """Points, normals and albedos [P, 3] of surfaces in the cameras' pixels."""
    found = []
    for camera in cameras:
        y, x = np.mgrid[: camera.height, : camera.width].reshape(2, -1)
        pixels = np.stack([x + 0.5, y + 0.5, np.ones(len(x))], -1) @ np.linalg.inv(camera.K).T
        rays = unit((pixels @ camera.viewmat[:3, :3]).astype(np.float32))
        origins = np.broadcast_to(camera.position.astype(np.float32), rays.shape)
        distances, index = trace(surfaces, origins, rays)
        for i, surface in enumerate(surfaces):
            points = (origins + distances[:, None] * rays)[index == i]
            local = surface.to_local(points - np.array(surface.center, np.float32))
            found.append((points, surface.shape.normal(local) @ surface.rotation.T, surface.texture(local)))
    points, normals, albedos = map(np.concatenate, zip(*found, strict=True))
    return points, normals, albedos


def on(surfaces: tuple[Surface, ...], cameras: list[Camera], size: float) -> Gaussians:
    """Flat opaque Gaussians on the surfaces where cameras see them, with standard deviations `size`."""
    points, normals, albedos = seen(surfaces, cameras)
    gaussians = Gaussians.from_points(points, albedos.astype(float).clip(0, 1), sh_degree=0, opacity=0.95)
    across = np.cross(normals, np.where(np.abs(normals[:, :1]) < 0.7, [[1.0, 0, 0]], [[0, 1.0, 0]]))
    axes = np.stack([unit(across), np.cross(normals, unit(across)), normals], -1)
    quats = np.roll(Rotation.from_matrix(axes).as_quat(), 1, axis=-1)
    gaussians.quats[:] = torch.from_numpy(quats)
    gaussians.log_scales[:] = torch.log(torch.tensor([size, size, 0.05 * size]))
    return gaussians


def around(count: int, size: int, *, above: bool = False) -> list[Camera]:
    """Cameras 4 units from the origin on all sides, or on those with z > 1."""
    z = (np.arange(count) + 0.5) / count * (0.75 if above else 2) + (0.25 if above else -1)
    angle, radius = np.arange(count) * 2.4, np.sqrt(1 - z**2)
    eyes = 4 * np.stack([radius * np.cos(angle), radius * np.sin(angle), z], -1)
    return [Camera.look_at(eye, (0, 0, 0), (0.01, 0.02, 1), 40, size, size) for eye in eyes]


def one(shape: Shape, *color: float) -> tuple[Surface, ...]:
    return (Surface(shape, plain(*color), (0.1, 0.0, -0.1)),)


@pytest.mark.parametrize(
    ("shape", "volume"),
    [(Sphere(0.8), 4 / 3 * np.pi * 0.8**3), (Box((0.7, 0.5, 0.4)), 8 * 0.7 * 0.5 * 0.4)],
    ids=["sphere", "box"],
)
def test_a_body_seen_from_all_sides_is_closed_and_has_its_volume(shape: Shape, volume: float) -> None:
    cameras = around(14, 40)
    made = mesh(on(one(shape, 0.9, 0.3, 0.1), cameras, 0.03), cameras, resolution=40)
    body = trimesh.Trimesh(made.vertices, made.faces, process=False)
    assert body.is_watertight and body.is_winding_consistent
    assert body.volume == pytest.approx(volume, rel=0.1)
    np.testing.assert_allclose(made.colors, [np.array([0.9, 0.3, 0.1]) ** 2.2 * 255] * len(made.colors), atol=6)


def test_what_no_camera_saw_stays_open_or_is_closed(tmp_path: Path) -> None:
    cameras = around(10, 40, above=True)
    ball = one(Sphere(0.8), 0.5, 0.5, 0.5)
    gaussians = on(ball, cameras, 0.03)
    made = mesh(gaussians, cameras, resolution=40)
    heights = made.vertices[:, 2] + 0.1
    assert not trimesh.Trimesh(made.vertices, made.faces, process=False).is_watertight
    assert heights.max() == pytest.approx(0.8, abs=0.04) and heights.min() > -0.7
    np.testing.assert_allclose(np.linalg.norm(made.vertices - [0.1, 0, -0.1], axis=1), 0.8, atol=0.06)
    wide = (-2, -2, -2), (2, 2, 2)
    mesh(gaussians, cameras, resolution=64, bounds=wide, close_holes=True).save(tmp_path / "closed.ply")
    closed = trimesh.load(tmp_path / "closed.ply")
    assert closed.is_watertight and closed.volume > 1.5
    # No deeper than what cameras saw.
    np.testing.assert_allclose(closed.bounds, [made.vertices.min(0), made.vertices.max(0)], atol=0.1)
    # A camera alone is believed.
    assert len(mesh(gaussians, cameras[:1], resolution=40).faces) > 100


def test_the_demo_to_within_a_hundredth_of_its_diagonal() -> None:
    viewmats, K = demo.demo_cameras(13, 72)
    cameras = [Camera(viewmat, K, 72, 72) for viewmat in viewmats]
    made = mesh(on(demo.still_life(), cameras, 0.03), cameras, resolution=96)
    expected, _, _ = seen(demo.still_life(), [camera.scaled(1.5) for camera in cameras[::2]])
    diagonal = np.linalg.norm(np.ptp(expected, axis=0))
    accuracy, completeness = (
        cKDTree(one).query(other)[0].mean() for one, other in ((expected, made.vertices), (made.vertices, expected))
    )
    assert (accuracy + completeness) / 2 < 0.01 * diagonal, (accuracy / diagonal, completeness / diagonal)


def test_an_edge_has_two_triangles_where_values_are_equal() -> None:
    values = np.random.default_rng(2).choice(np.float32([-1, -0.5, 0.001, 1]), (48, 48, 48))
    values[[0, -1]] = values[:, [0, -1]] = values[:, :, [0, -1]] = 1
    vertices, faces = triangles(values, np.zeros(values.shape, bool))
    body = trimesh.Trimesh(vertices, faces, process=False)
    assert body.is_watertight and body.is_winding_consistent


def test_a_fisheye_and_the_whole_sphere_see_a_mesh() -> None:
    lens = Distortion((0.02, 0, 0, 0), fisheye=True)
    cameras = [replace(camera, distortion=lens, model="fisheye") for camera in around(8, 32)]
    ball = on(one(Sphere(0.8), 0.5, 0.5, 0.5), around(8, 40), 0.03)
    made = mesh(ball, cameras, resolution=32)
    np.testing.assert_allclose(np.linalg.norm(made.vertices - [0.1, 0, -0.1], axis=1), 0.8, atol=0.08)
    # A sphere seen from its middle.
    K = np.array([[64 / (2 * np.pi), 0, 32], [0, 32 / np.pi, 16], [0, 0, 1]])
    eyes = ((0.1, 0, -0.1), (0.3, 0.1, -0.1), (0, -0.1, 0.1))
    inside = [Camera.posed(np.array(eye), np.eye(3), 90, 64, 32) for eye in eyes]
    inside = [replace(camera, K=K, model="equirectangular") for camera in inside]
    made = mesh(ball, inside, resolution=32)
    directions = unit(made.vertices - [0.1, 0, -0.1])
    np.testing.assert_allclose(np.linalg.norm(made.vertices - [0.1, 0, -0.1], axis=1), 0.8, atol=0.08)
    assert cKDTree(directions).query(unit(np.random.default_rng(0).normal(size=(200, 3))))[0].max() < 0.3
    assert len(mesh(ball, inside[:1], resolution=32).faces) > 100


def test_files(tmp_path: Path) -> None:
    cameras = around(8, 32)
    made = mesh(
        on(one(Box((0.7, 0.5, 0.4)), 0.9, 0.3, 0.1), cameras, 0.04), cameras, resolution=24, bounds=((-1, -1, -1), (2, 2, 2))
    )
    made.save(tmp_path / "box.ply")
    read = trimesh.load(tmp_path / "box.ply", process=False)
    np.testing.assert_allclose(read.vertices, made.vertices, atol=1e-5)
    np.testing.assert_array_equal(read.visual.vertex_colors[:, :3], made.colors)
    made.save(tmp_path / "box.glb")
    read = trimesh.load(tmp_path / "box.glb", force="mesh", process=False)
    np.testing.assert_allclose(read.vertices, made.vertices * [-1, -1, 1], atol=1e-5)
    assert b"KHR_materials_unlit" in (tmp_path / "box.glb").read_bytes()
    refused("cannot write a mesh to .*box.obj; use a name that ends in .ply or .glb", made.save, tmp_path / "box.obj")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cameras": []}, "there is no camera"),
        ({"resolution": 8}, "resolution is 8; it must be a whole number from 16 to 1024"),
        ({"resolution": 24.5}, "resolution is 24.5"),
        ({"bounds": ((0, 0, 0), (1, 1, 0))}, "bounds is .*; give the lowest and then the highest corner"),
        ({"bounds": ((5, 5, 5), (6, 6, 6))}, "the cameras see no surface"),
        ({"gaussians": 0}, "the cameras see no surface"),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    cameras = around(3, 16)
    gaussians = on(one(Sphere(0.8), 0.5, 0.5, 0.5), cameras, 0.1)
    if options.pop("gaussians", 1) == 0:
        gaussians = gaussians.mapped(lambda tensor: tensor[:0])
    refused(message, mesh, **{"gaussians": gaussians, "cameras": cameras, "resolution": 16} | options)


@pytest.mark.parametrize(("package", "named"), [("skimage.measure", "scikit-image"), ("trimesh", "trimesh")])
def test_a_missing_package(package: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    cameras = around(3, 16)
    message = rf"meshes need {named}, which is not installed: pip install 'slang-splat\[mesh\]'"
    refused(message, mesh, on(one(Sphere(0.8), 0.5, 0.5, 0.5), cameras, 0.1), cameras)
