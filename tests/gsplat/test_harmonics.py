"""Spherical harmonics against the wheel's torch reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splat_py import SplatError
from splat_py.gsplat.harmonics import evaluate_harmonics, sh_bases, spherical_harmonics
from tests.gsplat.scenes import BATCHES, assert_same_gradients

pytest.importorskip("gsplat")
from gsplat.cuda import _torch_impl as wheel


@pytest.mark.parametrize("degree", range(5))
@pytest.mark.parametrize("batch", BATCHES)
def test_harmonics_are_the_wheels(batch: tuple[int, ...], degree: int) -> None:
    torch.manual_seed(degree)
    dirs = torch.randn(*batch, 20, 3, dtype=torch.float64, requires_grad=True)
    coeffs = torch.randn(*batch, 20, 25, 3, dtype=torch.float64, requires_grad=True)
    ours, theirs = evaluate_harmonics(degree, dirs, coeffs), wheel._spherical_harmonics(degree, dirs, coeffs)
    torch.testing.assert_close(ours, theirs)
    assert_same_gradients([ours], [theirs], (dirs, coeffs), 1e-9)
    kernels = spherical_harmonics(degree, dirs.float(), coeffs.float())
    torch.testing.assert_close(kernels, theirs.float(), rtol=1e-4, atol=1e-5)
    assert_same_gradients([kernels.double()], [theirs], (dirs, coeffs), 1e-5)


@pytest.mark.parametrize("degree", range(5))
def test_bases_are_orthonormal(degree: int) -> None:
    # Gauss-Legendre in z and equal steps around: exact for products of these degrees.
    z, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(12))
    around = torch.arange(24).double() * (2 * torch.pi / 24)
    r = (1 - z**2).sqrt()
    dirs = torch.stack((r[:, None] * around.cos(), r[:, None] * around.sin(), z[:, None].expand(-1, 24)), -1)
    bases = sh_bases((degree + 1) ** 2, dirs)
    products = torch.einsum("zak,zal,z->kl", bases, bases, weights) * (2 * torch.pi / 24)
    torch.testing.assert_close(products, torch.eye((degree + 1) ** 2, dtype=torch.float64))


def test_what_is_masked_is_zero_and_has_no_gradient() -> None:
    dirs, coeffs = torch.randn(2, 10, 3, requires_grad=True), torch.randn(2, 10, 16, 3, requires_grad=True)
    masks = torch.rand(2, 10) < 0.5
    colors = spherical_harmonics(3, dirs, coeffs, masks)
    torch.testing.assert_close(colors, spherical_harmonics(3, dirs, coeffs) * masks[..., None])
    torch.testing.assert_close(colors, evaluate_harmonics(3, dirs, coeffs, masks))
    colors.square().sum().backward()
    assert dirs.grad is not None
    assert coeffs.grad is not None
    assert not dirs.grad[~masks].any()
    assert not coeffs.grad[~masks].any()
    assert coeffs.grad[masks].any()


def test_wrong_arguments_are_named() -> None:
    dirs, coeffs = torch.randn(10, 3), torch.randn(10, 9, 3)
    with pytest.raises(SplatError, match="degrees_to_use is 5"):
        spherical_harmonics(5, dirs, coeffs)
    with pytest.raises(SplatError, match="coeffs holds 9 coefficients"):
        spherical_harmonics(3, dirs, coeffs)
    with pytest.raises(SplatError, match="coeffs has shape"):
        spherical_harmonics(0, dirs[:5], coeffs)
    with pytest.raises(SplatError, match="masks has shape"):
        spherical_harmonics(0, dirs, coeffs, torch.ones(5, dtype=torch.bool))
    with pytest.raises(SplatError, match="dirs has dtype"):
        spherical_harmonics(0, dirs.double(), coeffs)
    with pytest.raises(SplatError, match="basis_dim is 5"):
        sh_bases(5, dirs)
