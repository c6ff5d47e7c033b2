"""Covariances, cameras and projection against the wheel's torch references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from splat_py import SplatError
from splat_py.gsplat import reference
from splat_py.gsplat.cameras import persp_proj, proj, world_to_cam
from splat_py.gsplat.covariances import quat_scale_to_covar_preci, symmetric, upper_triangle
from tests.gsplat.scenes import BATCHES, assert_same_gradients, scene

pytest.importorskip("gsplat")
from gsplat.cuda import _torch_impl as wheel

CAMERA_MODELS = {"pinhole": wheel._persp_proj, "ortho": wheel._ortho_proj, "fisheye": wheel._fisheye_proj}


@pytest.mark.parametrize("triu", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_covariances_and_precisions_are_the_wheels(batch: tuple[int, ...], triu: bool) -> None:
    s = scene(batch, dtype=torch.float64)
    ours = quat_scale_to_covar_preci(s.quats, s.scales, triu=triu)
    theirs = wheel._quat_scale_to_covar_preci(s.quats, s.scales, triu=triu)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert_same_gradients(ours, theirs, (s.quats, s.scales), 1e-9)


def test_only_what_is_asked_for_is_computed() -> None:
    s = scene()
    covars, precis = quat_scale_to_covar_preci(s.quats, s.scales, compute_preci=False)
    assert covars is not None
    assert precis is None
    covars, precis = quat_scale_to_covar_preci(s.quats, s.scales, compute_covar=False)
    assert covars is None
    assert precis is not None


def test_a_precision_is_the_inverse_of_its_covariance_and_a_triangle_is_its_matrix() -> None:
    s = scene(dtype=torch.float64)
    covars, precis = quat_scale_to_covar_preci(s.quats, s.scales)
    assert covars is not None
    assert precis is not None
    torch.testing.assert_close(covars @ precis, torch.eye(3, dtype=torch.float64).expand_as(covars))
    torch.testing.assert_close(symmetric(upper_triangle(covars)), covars)


@pytest.mark.parametrize("camera_model", CAMERA_MODELS)
@pytest.mark.parametrize("batch", BATCHES)
def test_cameras_project_as_the_wheels(batch: tuple[int, ...], camera_model: str) -> None:
    s = scene(batch, dtype=torch.float64)
    covars, _ = quat_scale_to_covar_preci(s.quats, s.scales)
    assert covars is not None
    centers, sigmas = world_to_cam(s.means, covars, s.viewmats)
    torch.testing.assert_close((centers, sigmas), wheel._world_to_cam(s.means, covars, s.viewmats))

    # Here there is no skew, and it has no gradient.
    Ks = s.Ks * torch.tensor([[1, 0, 1], [0, 1, 1], [0, 0, 1]])
    ours = proj(centers, sigmas, Ks, s.width, s.height, camera_model)
    theirs = CAMERA_MODELS[camera_model](centers, sigmas, Ks, s.width, s.height)
    # The wheel adds 1e-7 to lengths so that they are not zero.
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert_same_gradients(ours, theirs, (*s.parameters(), s.Ks), 1e-5)


def test_a_fisheye_is_smooth_on_its_axis() -> None:
    means = torch.tensor([[[0.0, 0, 2], [1e-5, 0, 2]]], dtype=torch.float64, requires_grad=True)
    covars = torch.eye(3, dtype=torch.float64).expand(1, 2, 3, 3)
    Ks = torch.tensor([[[30.0, 0, 20], [0, 30, 20], [0, 0, 1]]], dtype=torch.float64)
    means2d, covars2d = proj(means, covars, Ks, 40, 40, "fisheye")
    torch.testing.assert_close(means2d[0, 0], torch.tensor((20.0, 20), dtype=torch.float64))
    torch.testing.assert_close(covars2d[0, 0], covars2d[0, 1], rtol=1e-6, atol=1e-6)
    (v_means,) = torch.autograd.grad(means2d.sum() + covars2d.sum(), means)
    torch.testing.assert_close(v_means[0, 0], v_means[0, 1], rtol=1e-2, atol=1e-2)


def test_the_older_name_of_a_pinhole_warns() -> None:
    s = scene()
    centers, sigmas = world_to_cam(s.means, torch.eye(3).expand(50, 3, 3), s.viewmats)
    with pytest.warns(DeprecationWarning, match="use proj"):
        older = persp_proj(centers, sigmas, s.Ks, s.width, s.height)
    torch.testing.assert_close(older, proj(centers, sigmas, s.Ks, s.width, s.height))


@pytest.mark.parametrize("camera_model", CAMERA_MODELS)
def test_the_reference_projects_as_the_wheels(camera_model: str) -> None:
    s = scene((2,), dtype=torch.float64)
    covars, _ = quat_scale_to_covar_preci(s.quats, s.scales)
    assert covars is not None
    arguments = (s.means, covars, s.viewmats, s.Ks, s.width, s.height)
    options = {"eps2d": 0.2, "calc_compensations": True, "camera_model": camera_model}
    ours = reference.fully_fused_projection(*arguments, **options)  # type: ignore[arg-type]
    theirs = wheel._fully_fused_projection(*arguments, **options)
    visible = (ours[0] > 0).all(-1)
    assert 0 < int(visible.sum()) < visible.numel()
    torch.testing.assert_close(ours[0], theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(a[visible], b[visible], rtol=1e-5, atol=1e-6)
    assert_same_gradients(ours[1:], theirs[1:], s.parameters(), 1e-5, visible)


def test_wrong_shapes_are_named() -> None:
    s = scene()
    wrong = replace(s, scales=s.scales[:-1], viewmats=s.viewmats[0])
    with pytest.raises(SplatError, match=r"scales has shape \[49, 3\]; expected \[50, 3\]"):
        quat_scale_to_covar_preci(wrong.quats, wrong.scales)
    with pytest.raises(SplatError, match="viewmats has shape"):
        world_to_cam(s.means, torch.eye(3).expand(50, 3, 3), wrong.viewmats)
    with pytest.raises(SplatError, match="covars has shape"):
        proj(s.means[None], s.means[None], s.Ks, 4, 4)
    with pytest.raises(NotImplementedError, match="ftheta"):
        proj(s.means[None], s.means[None], s.Ks, 4, 4, "ftheta")
