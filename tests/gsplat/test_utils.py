"""Rotations, depth maps, the projection matrix and the older PLY writer: as gsplat's, and as they are defined."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py import Gaussians, SplatError
from splat_py.gsplat import utils
from tests.gsplat.test_exporter import splats


def cameras(count: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Depth maps [C, 7, 9, 1], camera → world [C, 4, 4], intrinsics [C, 3, 3]."""
    generator = torch.Generator().manual_seed(0)
    depths = 2 + torch.rand(count, 7, 9, 1, generator=generator)
    quats = torch.nn.functional.normalize(torch.randn(count, 4, generator=generator), dim=-1)
    camtoworlds = torch.eye(4).repeat(count, 1, 1)
    camtoworlds[:, :3, :3] = utils.normalized_quat_to_rotmat(quats)
    camtoworlds[:, :3, 3] = torch.randn(count, 3, generator=generator)
    Ks = torch.tensor([[11.0, 0, 4.2], [0, 13.0, 3.7], [0, 0, 1]]).repeat(count, 1, 1)
    return depths, camtoworlds, Ks


def test_they_are_gsplats() -> None:
    theirs = pytest.importorskip("gsplat.utils")
    depths, camtoworlds, Ks = cameras()
    x = torch.linspace(-30, 30, 13)
    quats = torch.nn.functional.normalize(torch.randn(2, 5, 4), dim=-1)
    for name, arguments in (
        ("normalized_quat_to_rotmat", (quats,)),
        ("log_transform", (x,)),
        ("inverse_log_transform", (x / 10,)),
        ("depth_to_points", (depths, camtoworlds, Ks)),
        ("depth_to_points", (depths, camtoworlds, Ks, False)),
        ("depth_to_points", (depths[0], camtoworlds[0], Ks[0])),
        ("depth_to_normal", (depths, camtoworlds, Ks)),
        ("depth_to_normal", (depths[None], camtoworlds[None], Ks[None], False)),
        ("get_projection_matrix", (0.1, 100.0, 1.2, 0.9, "cpu")),
    ):
        torch.testing.assert_close(getattr(utils, name)(*arguments), getattr(theirs, name)(*arguments), rtol=1e-4, atol=1e-5)


def test_points_project_to_their_pixels() -> None:
    depths, camtoworlds, Ks = cameras()
    for z_depth in (True, False):
        points = utils.depth_to_points(depths, camtoworlds, Ks, z_depth)
        inside = (points - camtoworlds[:, None, None, :3, 3]) @ camtoworlds[:, None, :3, :3]
        distance = inside[..., 2] if z_depth else inside.norm(dim=-1)
        torch.testing.assert_close(distance, depths[..., 0])
        pixels = inside / inside[..., 2:] @ Ks[:, None].transpose(-1, -2)
        torch.testing.assert_close(pixels[1, 3, 5, :2], torch.tensor([5.5, 3.5]))


def test_normals_of_a_wall_point_at_the_camera() -> None:
    depths, camtoworlds, Ks = cameras(1)
    normals = utils.depth_to_normal(torch.full_like(depths, 3.0), camtoworlds, Ks)
    torch.testing.assert_close(normals[:, 1:-1, 1:-1], -camtoworlds[:, None, None, :3, 2].expand(1, 5, 7, 3))
    assert not normals[:, 0].any() and not normals[:, :, -1].any()


def test_shapes_are_named() -> None:
    depths, camtoworlds, Ks = cameras()
    with pytest.raises(SplatError, match=r"have shapes \[2, 7, 9\], \[2, 4, 4\] and \[2, 3, 3\]; expected"):
        utils.depth_to_points(depths[..., 0], camtoworlds, Ks)
    with pytest.raises(SplatError, match=r"quat has shape \[3\]"):
        utils.normalized_quat_to_rotmat(torch.zeros(3))


def test_logarithms_there_and_back() -> None:
    x = torch.cat([-torch.logspace(-3, 3, 20), torch.zeros(1), torch.logspace(-3, 3, 20)])
    torch.testing.assert_close(utils.inverse_log_transform(utils.log_transform(x)), x)


def test_projection_has_the_field_of_view() -> None:
    matrix = utils.get_projection_matrix(0.5, 20.0, 1.2, 0.8)
    for z, depth in ((0.5, 0.0), (20.0, 1.0)):
        corner = torch.tensor([z * math.tan(0.6), z * math.tan(0.4), z, 1.0])
        clip = matrix @ corner
        torch.testing.assert_close(clip[:3] / clip[3], torch.tensor([1.0, 1.0, depth]), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_save_ply_writes_gsplats_bytes(tmp_path: Path) -> None:
    theirs = pytest.importorskip("gsplat.utils")
    given = splats(20, coefficients=3)
    given["means"][4, 1] = torch.nan
    parameters = torch.nn.ParameterDict({name: torch.nn.Parameter(tensor) for name, tensor in given.items()})
    for name, module in (("ours.ply", utils), ("theirs.ply", theirs)):
        module.save_ply(parameters, str(tmp_path / name))
    assert (tmp_path / "ours.ply").read_bytes() == (tmp_path / "theirs.ply").read_bytes()


def test_save_ply_of_colors(tmp_path: Path) -> None:
    given = splats(20)
    given["opacities"][7] = torch.inf
    colors = torch.rand(20, 3, generator=torch.Generator().manual_seed(1))
    with pytest.warns(DeprecationWarning, match="export_splats"):
        utils.save_ply(given, tmp_path / "scene.ply", colors)
    gaussians = Gaussians.load_ply(tmp_path / "scene.ply")
    kept = np.delete(np.arange(20), 7)
    torch.testing.assert_close(gaussians.sh[:, 0] * 0.28209479177387814 + 0.5, colors[kept])
    assert gaussians.sh_degree == 0
