"""Projection and spherical harmonics by kernels against gsplat's torch functions, also by gsplat's public names."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

import splat_py.gsplat as gsplat
from splat_py.gsplat.projection import fully_fused_projection, spherical_harmonics
from tests.gsplat.scenes import BATCHES, Scene, assert_same_gradients, scene
from tests.refusals import refused

pytest.importorskip("gsplat")
from gsplat.cuda import _torch_impl as own

CAMERA_MODELS = {"pinhole": own._persp_proj, "ortho": own._ortho_proj, "fisheye": own._fisheye_proj}


@pytest.mark.parametrize("camera_model", CAMERA_MODELS)
def test_public_names_are_gsplats_own_functions(camera_model: str) -> None:
    s = scene((2,), dtype=torch.float64)
    covars, precis = gsplat.quat_scale_to_covar_preci(s.quats, s.scales)
    torch.testing.assert_close(covars @ precis, torch.eye(3, dtype=torch.float64).expand_as(covars))
    triangles, nothing = gsplat.quat_scale_to_covar_preci(s.quats, s.scales, compute_preci=False, triu=True)
    assert triangles.shape == (2, 50, 6) and nothing is None
    centers, sigmas = gsplat.world_to_cam(s.means, covars, s.viewmats)
    assert torch.equal(centers, own._world_to_cam(s.means, covars, s.viewmats)[0])
    ours = gsplat.proj(centers, sigmas, s.Ks, s.width, s.height, camera_model)
    theirs = CAMERA_MODELS[camera_model](centers, sigmas, s.Ks, s.width, s.height)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_without_gsplats_own_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from splat_py.gsplat.cuda import _torch_impl

    monkeypatch.setitem(sys.modules, "gsplat.cuda._torch_impl", None)
    refused(r"pip install gsplat==1\.5\.3, or", gsplat.quat_scale_to_covar_preci, torch.rand(2, 4), torch.rand(2, 3))
    monkeypatch.delitem(vars(_torch_impl), "_quat_to_rotmat", raising=False)
    with pytest.raises(ImportError, match=r"pip install gsplat==1\.5\.3, or"):
        _ = _torch_impl._quat_to_rotmat


def test_wrong_arguments_are_named() -> None:
    s = scene()
    wrong = replace(s, scales=s.scales[:-1], viewmats=s.viewmats[0])
    refused(r"scales has shape \[49, 3\]; expected \[50, 3\]", gsplat.quat_scale_to_covar_preci, wrong.quats, wrong.scales)
    refused("viewmats has shape", gsplat.world_to_cam, s.means, torch.eye(3).expand(50, 3, 3), wrong.viewmats)
    refused("covars has shape", gsplat.proj, s.means[None], s.means[None], s.Ks, 4, 4)
    with pytest.raises(NotImplementedError, match="ftheta"):
        gsplat.proj(s.means[None], s.means[None], s.Ks, 4, 4, "ftheta")
    s = scene()
    refused("covars is missing", fully_fused_projection, s.means, None, s.quats, None, s.viewmats, s.Ks, 4, 4)
    refused(r"Ks has shape \[1, 3, 3\]", project, replace(s, Ks=s.Ks[:1]))
    refused("quats has dtype", project, replace(s, quats=s.quats.double()))
    refused("sparse_grad needs packed=True", project, s, sparse_grad=True)
    with pytest.raises(NotImplementedError, match="lidar"):
        project(s, camera_model="lidar")
    dirs, coeffs = torch.randn(10, 3), torch.randn(10, 9, 3)
    refused("degrees_to_use must be between 0 and 4", spherical_harmonics, 5, dirs, coeffs)
    refused("coeffs holds 9 coefficients", spherical_harmonics, 3, dirs, coeffs)
    refused("coeffs has no channels", spherical_harmonics, 0, dirs, coeffs[..., :0])
    refused("coeffs has shape", spherical_harmonics, 0, dirs[:5], coeffs)
    refused("masks has shape", spherical_harmonics, 0, dirs, coeffs, torch.ones(5, dtype=torch.bool))
    refused("dirs has dtype", spherical_harmonics, 0, dirs.double(), coeffs)


def project(s: Scene, covars: torch.Tensor | None = None, **options: Any) -> tuple[Any, ...]:
    shapes = (None, s.quats, s.scales) if covars is None else (covars, None, None)
    return fully_fused_projection(s.means, *shapes, s.viewmats, s.Ks, s.width, s.height, **options)


@pytest.mark.parametrize("from_covars", [False, True])
@pytest.mark.parametrize("camera_model", CAMERA_MODELS)
@pytest.mark.parametrize("batch", BATCHES)
def test_kernels_project_as_gsplats_own(batch: tuple[int, ...], camera_model: str, from_covars: bool) -> None:
    s = scene(batch)
    covars, _ = own._quat_scale_to_covar_preci(s.quats, s.scales, compute_preci=False)
    options = {"calc_compensations": True, "camera_model": camera_model}
    ours = project(s, covars.flatten(-2)[..., [0, 1, 2, 4, 5, 8]] if from_covars else None, **options)
    theirs = own._fully_fused_projection(s.means, covars, s.viewmats, s.Ks, s.width, s.height, **options)
    visible = (ours[0] > 0).all(-1) & (theirs[0] > 0).all(-1)
    assert 0 < int(visible.sum()) < visible.numel()
    torch.testing.assert_close(ours[0], theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(a[visible], b[visible], rtol=1e-4, atol=1e-4)
    assert_same_gradients(ours[1:], theirs[1:], s.parameters(), 1e-3, visible)


@pytest.mark.parametrize("from_covars", [False, True])
def test_compensations_of_needles_are_those_of_float64(from_covars: bool) -> None:
    """Compensations cancel in a conic, and 1.5.3 has no lower limit."""
    s = scene()
    shapes: tuple[torch.Tensor, ...] = s.quats.detach(), s.scales.detach() * torch.tensor([0.03, 1e-3, 1e-3])
    if from_covars:
        shapes = (own._quat_scale_to_covar_preci(*shapes, compute_preci=False, triu=True)[0],)
    single = [x.detach().requires_grad_() for x in (s.means, *shapes)]
    means, *shapes = double = [x.detach().double().requires_grad_() for x in single]
    if from_covars:
        covars = shapes[0][..., [0, 1, 2, 1, 3, 4, 2, 4, 5]].unflatten(-1, (3, 3))
    else:
        covars = own._quat_scale_to_covar_preci(*shapes, compute_preci=False)[0]
    camera = s.viewmats.detach(), s.Ks.detach()
    given = (*single, None, None) if from_covars else (single[0], None, *single[1:])
    radii, *_, ours = fully_fused_projection(*given, *camera, s.width, s.height, calc_compensations=True)
    precise = (x.double() for x in camera)
    theirs = own._fully_fused_projection(means, covars, *precise, s.width, s.height, calc_compensations=True)[-1]
    visible = (radii > 0).all(-1)
    assert 1e-5 < theirs[visible].min() < theirs[visible].median() < 1e-3
    torch.testing.assert_close(ours[visible], theirs[visible].float(), rtol=1e-3, atol=0)
    gradients = (torch.autograd.grad(c[visible].log().sum(), x) for c, x in ((ours, single), (theirs, double)))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-3, atol=1e-3 * float(b.abs().max()))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("tight", [False, True])
def test_packed_splats_are_the_visible_ones(batch: tuple[int, ...], tight: bool) -> None:
    s = scene(batch)
    options = {"calc_compensations": True, "opacities": s.opacities if tight else None}
    dense = project(s, **options)
    batch_ids, camera_ids, gaussian_ids, *packed = project(s, packed=True, **options)
    visible = (dense[0] > 0).all(-1)
    assert visible.shape == (*batch, 2, 50)
    assert torch.equal(torch.stack((batch_ids, camera_ids, gaussian_ids), -1), visible.reshape(-1, 2, 50).nonzero())
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


@pytest.mark.parametrize("degree", range(5))
@pytest.mark.parametrize("batch", BATCHES)
def test_harmonics_are_gsplats(batch: tuple[int, ...], degree: int) -> None:
    torch.manual_seed(degree)
    dirs = torch.randn(*batch, 20, 3, dtype=torch.float64, requires_grad=True)
    coeffs = torch.randn(*batch, 20, 25, 3, dtype=torch.float64, requires_grad=True)
    theirs = own._spherical_harmonics(degree, dirs, coeffs)
    kernels = spherical_harmonics(degree, dirs.float(), coeffs.float())
    torch.testing.assert_close(kernels, theirs.float(), rtol=1e-4, atol=1e-5)
    assert_same_gradients([kernels.double()], [theirs], (dirs, coeffs), 1e-5)


def test_what_is_masked_is_zero_and_has_no_gradient() -> None:
    dirs, coeffs = torch.randn(2, 10, 3, requires_grad=True), torch.randn(2, 10, 16, 3, requires_grad=True)
    masks = torch.rand(2, 10) < 0.5
    colors = spherical_harmonics(3, dirs, coeffs, masks)
    torch.testing.assert_close(colors, spherical_harmonics(3, dirs, coeffs) * masks[..., None])
    colors.square().sum().backward()
    assert not dirs.grad[~masks].any()
    assert not coeffs.grad[~masks].any()
    assert coeffs.grad[masks].any()
