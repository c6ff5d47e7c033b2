"""Covariances, cameras and projection in torch and by kernels, against the wheel's torch references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from splat_py import SplatError
from splat_py.gsplat import reference
from splat_py.gsplat.cameras import persp_proj, proj, world_to_cam
from splat_py.gsplat.covariances import quat_scale_to_covar_preci, symmetric, upper_triangle
from splat_py.gsplat.projection import fully_fused_projection
from tests.gsplat.scenes import BATCHES, Scene, assert_same_gradients, scene

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


def project(s: Scene, covars: torch.Tensor | None = None, **options: Any) -> tuple[Any, ...]:
    shapes = (None, s.quats, s.scales) if covars is None else (covars, None, None)
    return fully_fused_projection(s.means, *shapes, s.viewmats, s.Ks, s.width, s.height, **options)


@pytest.mark.parametrize("from_covars", [False, True])
@pytest.mark.parametrize("camera_model", CAMERA_MODELS)
@pytest.mark.parametrize("batch", BATCHES)
def test_kernels_project_as_the_wheels_reference(batch: tuple[int, ...], camera_model: str, from_covars: bool) -> None:
    s = scene(batch)
    covars, _ = quat_scale_to_covar_preci(s.quats, s.scales)
    assert covars is not None
    options = {"calc_compensations": True, "camera_model": camera_model}
    ours = project(s, upper_triangle(covars) if from_covars else None, **options)
    theirs = wheel._fully_fused_projection(s.means, covars, s.viewmats, s.Ks, s.width, s.height, **options)
    visible = (ours[0] > 0).all(-1) & (theirs[0] > 0).all(-1)
    assert 0 < int(visible.sum()) < visible.numel()
    torch.testing.assert_close(ours[0], theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(a[visible], b[visible], rtol=1e-4, atol=1e-4)
    assert_same_gradients(ours[1:], theirs[1:], s.parameters(), 1e-3, visible)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("tight", [False, True])
def test_packed_splats_are_the_visible_ones(batch: tuple[int, ...], tight: bool) -> None:
    s = scene(batch)
    options = {"calc_compensations": True, "opacities": s.opacities if tight else None}
    dense = project(s, **options)
    batch_ids, camera_ids, gaussian_ids, *packed = project(s, packed=True, **options)
    visible = (dense[0] > 0).all(-1)
    assert visible.shape == (*batch, 2, 50)
    whose = visible.reshape(-1, 2, 50).nonzero()
    assert torch.equal(torch.stack((batch_ids, camera_ids, gaussian_ids), -1), whose)
    for a, b in zip(packed, dense, strict=True):
        assert torch.equal(a, b[visible])
    assert_same_gradients(packed[1:], [part[visible] for part in dense[1:]], s.parameters(), 1e-5)


def test_sparse_gradients_are_the_dense_ones() -> None:
    s = scene()
    inputs = (s.means, s.quats, s.scales)

    def gradients(**options: Any) -> list[torch.Tensor]:
        *_, means2d, depths, conics, _ = project(s, packed=True, **options)
        return list(torch.autograd.grad(means2d.sum() + depths.sum() + conics.sum(), inputs))

    for sparse, dense in zip(gradients(sparse_grad=True), gradients(), strict=True):
        assert sparse.is_sparse
        assert torch.equal(sparse.to_dense(), dense)


def test_opacities_tighten_radii_and_have_no_gradient() -> None:
    s = scene()
    wide, tight = project(s, calc_compensations=True), project(s, calc_compensations=True, opacities=s.opacities)
    torch.testing.assert_close(wide[0], project(s)[0])
    assert (tight[0] <= wide[0]).all()
    assert (tight[0] < wide[0]).any()
    visible = (tight[0] > 0).all(-1)
    torch.testing.assert_close(tight[-1][visible], wide[-1][visible])
    (v_opacities,) = torch.autograd.grad(tight[-1].sum(), s.opacities, allow_unused=True)
    assert v_opacities is None


def test_wrong_arguments_of_the_fused_projection_are_named() -> None:
    s = scene()
    with pytest.raises(SplatError, match="covars is missing"):
        fully_fused_projection(s.means, None, s.quats, None, s.viewmats, s.Ks, 4, 4)
    with pytest.raises(SplatError, match=r"Ks has shape \[1, 3, 3\]"):
        project(replace(s, Ks=s.Ks[:1]))
    with pytest.raises(SplatError, match="quats has dtype"):
        project(replace(s, quats=s.quats.double()))
    with pytest.raises(SplatError, match="sparse_grad needs packed=True"):
        project(s, sparse_grad=True)
    with pytest.raises(NotImplementedError, match="lidar"):
        project(s, camera_model="lidar")
