"""Depth and normals of a scene, and their pictures."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from splat_py import Camera, Gaussians
from splat_py.render.views import render, render_depth, render_normals
from splat_py.scene.camera import Distortion
from tests.refusals import refused

# A plane through (0, 0, 4) that leans away from the camera at its right edge.
NORMAL = np.array([-0.6, 0.0, -0.8])
CAMERA = Camera(np.eye(4), np.array([[40.0, 0, 16], [0, 40, 14], [0, 0, 1]]), 32, 28)


@pytest.fixture(scope="module")
def plane() -> Gaussians:
    """Flat opaque Gaussians close together; the rotation is about the y axis."""
    along, up = np.meshgrid(np.arange(-1.2, 1.21, 0.1), np.arange(-1.2, 1.21, 0.1))
    x_axis, y_axis = np.array([0.8, 0, -0.6]), np.array([0.0, 1, 0])
    points = np.array([0, 0, 4.0]) + along.reshape(-1, 1) * x_axis + up.reshape(-1, 1) * y_axis
    gaussians = Gaussians.from_points(points, np.full(points.shape, 0.5), sh_degree=0, opacity=0.95)
    angle = np.arctan2(0.6, 0.8)
    gaussians.quats[:] = torch.tensor([np.cos(angle / 2), 0, np.sin(angle / 2), 0])
    gaussians.log_scales[:] = torch.log(torch.tensor([0.08, 0.08, 0.004]))
    return gaussians


def test_depths_are_the_planes(plane: Gaussians) -> None:
    depths = render_depth(plane, CAMERA)
    v, u = np.mgrid[8:20, 10:22]
    rays = np.stack([(u + 0.5 - 16) / 40, (v + 0.5 - 14) / 40, np.ones(u.shape)], -1)
    expected = (NORMAL @ [0, 0, 4]) / (rays @ NORMAL)
    np.testing.assert_allclose(depths[8:20, 10:22], expected, rtol=0.03)
    grey = render(plane, CAMERA, mode="depth", scene_scale=2.0)
    assert grey.shape == (28, 32, 3) and grey.min() == 0
    np.testing.assert_allclose(grey[14, 16], 2 / (2 + depths[14, 16]), rtol=1e-5)


def test_normals_are_the_planes_and_turn_with_the_camera(plane: Gaussians) -> None:
    turned = replace(CAMERA, viewmat=Camera.look_at((0.5, 0.3, -1), (0, 0, 4), (0, -1, 0), 40, 32, 28).viewmat)
    for camera in (CAMERA, turned):
        normals = render_normals(plane, camera)[10:18, 12:20]
        mean = normals.mean((0, 1)) / np.linalg.norm(normals.mean((0, 1)))
        assert mean @ NORMAL > 0.98
    picture = render(plane, CAMERA, mode="normals")
    assert picture.min() >= 0 and picture.max() <= 1 and not picture[0].any()


def test_lenses_that_are_no_pinholes_have_none(plane: Gaussians) -> None:
    bent = replace(CAMERA, distortion=Distortion((0.1, 0, 0, 0, 0)))
    np.testing.assert_array_equal(render_normals(plane, bent), render_normals(plane, CAMERA))
    for camera in (replace(CAMERA, distortion=Distortion((0.1, 0, 0, 0), True)), replace(CAMERA, model="ortho")):
        refused("no pinhole camera", render_normals, plane, camera)
