"""Windshields of gsplat 1.6 through the whole renderer; tests/shaders/test_windshield.py has their points and rays."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import splat_py.gsplat as gsplat
from splat_py.gpu.kernels import UserType
from splat_py.gsplat.cameras import make_params
from splat_py.gsplat.rendering import FThetaCameraDistortionParameters
from tests.gsplat.scenes import scene
from tests.refusals import refused
from tests.shaders.camera_models import bent, windshield

IDENTITY = make_params([0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
FTHETA = FThetaCameraDistortionParameters(1, (0,) * 6, (0, 30, 0, 0, 0, 0), 2.0, (1.0, 0.0, 0.0))
CAMERAS: dict[str, dict[str, Any]] = {
    "pinhole": {"radial_coeffs": torch.tensor([0.1, 0.02, 0.0, 0.0]).repeat(2, 1)},
    "ortho": {},
    "ftheta": {"ftheta_coeffs": FTHETA, "global_z_order": False},
}


def rendered(camera_model: str, coeffs: Any, **named: Any) -> tuple[Tensor, Tensor]:
    s = scene()
    arguments = s.means, s.quats, s.scales, s.opacities, s.means.sigmoid(), s.viewmats, s.Ks, s.width, s.height
    named |= {"camera_model": camera_model, "external_distortion_coeffs": coeffs}
    return gsplat.rasterization(*arguments, **named, **CAMERAS[camera_model], packed=False, with_ut=True)[:2]


@pytest.mark.parametrize("camera_model", CAMERAS)
def test_the_identity_changes_nothing(camera_model: str) -> None:
    for found, expected in zip(*(rendered(camera_model, coeffs, with_eval3d=True) for coeffs in (IDENTITY, None)), strict=True):
        assert expected.any()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert (rendered(camera_model, windshield(3))[0] - rendered(camera_model, IDENTITY)[0]).abs().max() > 0.05


def test_small_gaussians_are_where_their_means_are_seen() -> None:
    """Pixels and gradients of means and poses, against float64."""
    s, glass = scene(), windshield(3)
    scales = torch.full_like(s.scales, 1e-4)
    arguments = s.means, s.quats, scales, None, s.viewmats, s.Ks, s.width, s.height
    radii, found, *_ = gsplat.fully_fused_projection_with_ut(*arguments, external_distortion_coeffs=glass)
    seen = (radii > 0).all(-1)
    assert seen.sum() > 10
    v = torch.randn_like(found) * seen[..., None]
    means, viewmats = (leaf.detach().double().requires_grad_() for leaf in (s.means, s.viewmats))
    t = torch.einsum("cij,nj->cni", viewmats[:, :3, :3], means) + viewmats[:, None, :3, 3]
    polynomials = glass.horizontal_poly, glass.vertical_poly
    d = torch.stack([torch.stack([bent(polynomials, one) if one[2] > 0 else one for one in row]) for row in t])
    Ks = s.Ks.double()[:, None]
    expected = d[..., :2] / d[..., 2:] * Ks.diagonal(dim1=-2, dim2=-1)[..., :2] + Ks[..., :2, 2]
    torch.testing.assert_close(found[seen].double(), expected[seen], rtol=0, atol=1e-3)
    gradients = torch.autograd.grad(found, (s.means, s.viewmats), v)
    references = torch.autograd.grad(expected, (means, viewmats), v.double())
    for gradient, reference in zip(gradients, references, strict=True):
        torch.testing.assert_close(gradient.double(), reference, rtol=1e-3, atol=1e-3 * float(reference.abs().max()))


def test_wrong_ones_are_one_sentence() -> None:
    refused("external_distortion_coeffs is a dict; give a BivariateWindshieldModelParameters", rendered, "ortho", {})
    for wrong in (None, torch.zeros(4), torch.tensor([0.0, torch.nan, 0.0]), "x", torch.zeros(3, 1)):
        coeffs = replace(IDENTITY, vertical_poly=wrong)
        refused("external_distortion_coeffs.vertical_poly is missing or wrong; give 1, 3, 6", rendered, "ortho", coeffs)
    s = scene()
    arguments = s.means, s.quats, s.scales, s.opacities, s.means.sigmoid(), s.viewmats, s.Ks, s.width, s.height
    refused("needs with_ut=True", gsplat.rasterization, *arguments, external_distortion_coeffs=IDENTITY)
    named: dict[str, Any] = {"with_ut": True, "external_distortion_coeffs": IDENTITY}
    named["camera_model"] = UserType("Own", "struct Own : ICameraModel {}")
    refused("do not fit a camera model of your own", gsplat.rasterization, *arguments, **named)
