"""Real spherical harmonics of degrees 0 to 4, by our second stage and in torch; order and signs as in Kerbl et al. 2023."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.autograd import opaque
from splat_py.gpu.device import Operator, device_for
from splat_py.gsplat.checks import leading
from splat_py.splats.shade import shade
from splat_py.splats.tensors import check_shape, check_tensors

MAX_DEGREE = 4


def sh_bases(basis_dim: int, dirs: Tensor) -> Tensor:
    """The first `basis_dim` basis functions Y_k, [..., basis_dim], at unit directions [..., 3]. Differentiable.

    With P a polynomial in z, the functions of order m are P · Re (x + i y)^m and P · Im (x + i y)^m (Sloan 2013).
    """
    degree = _degree_of(basis_dim)
    leading("dirs", dirs, 3)
    x, y, z = dirs.unbind(-1)
    # Re and Im of (x + i y)^m, with the sign that makes odd orders negative.
    real, imaginary = [torch.ones_like(x)], [torch.zeros_like(x)]
    for _ in range(degree):
        re, im = real[-1], imaginary[-1]
        real.append(y * im - x * re)
        imaginary.append(-x * im - y * re)
    bases: list[Tensor] = []
    for n in range(degree + 1):
        polynomials = [_legendre(n, m, z) for m in range(n + 1)]
        bases += [polynomials[m] * imaginary[m] for m in range(n, 0, -1)]
        bases += [polynomials[0]]
        bases += [polynomials[m] * real[m] for m in range(1, n + 1)]
    return torch.stack(bases, -1)


def _legendre(n: int, m: int, z: Tensor) -> Tensor:
    """The associated Legendre polynomial of degree n and order m over (1 - z²)^(m/2), normalised on the sphere."""
    previous, current = torch.zeros_like(z), torch.full_like(z, float(math.prod(range(1, 2 * m, 2))))
    for k in range(m + 1, n + 1):
        previous, current = current, (z * current * (2 * k - 1) - previous * (k + m - 1)) / (k - m)
    norm = (2 * n + 1) / (4 * math.pi) * math.factorial(n - m) / math.factorial(n + m) * (2 if m else 1)
    return current * math.sqrt(norm)


def _degree_of(count: int) -> int:
    degree = math.isqrt(count) - 1
    if (degree + 1) ** 2 != count or not 0 <= degree <= MAX_DEGREE:
        raise SplatError(f"basis_dim is {count!r}; use 1, 4, 9, 16 or 25")
    return degree


@opaque
def spherical_harmonics(degrees_to_use: int, dirs: Tensor, coeffs: Tensor, masks: Tensor | None = None) -> Tensor:
    """Σ Y_k(d) c_k, [..., 3]. Differentiable in dirs and coeffs.

    Args:
        degrees_to_use: 0 to 4.
        dirs: [..., 3] of any length but zero.
        coeffs: [..., K, 3], K ≥ (degrees_to_use + 1)²; the others are not used. float32 or float16.
        masks: bool [...] where to compute anything; elsewhere the result is zero.

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value.
    """
    check_tensors({"dirs": dirs, "coeffs": coeffs}, halves=("coeffs",))
    batch = _check(degrees_to_use, dirs, coeffs, masks)
    check_shape("coeffs", coeffs, (*batch, "K", 3))
    count = math.prod(batch)
    # Directions are means to a camera at the origin; what is masked has no radius.
    visible = (dirs.new_ones(count) if masks is None else masks.reshape(count)).to(torch.int32)
    device = device_for(dirs)
    device.require(Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    colors = shade(
        dirs.reshape(count, 3),
        coeffs.reshape(count, coeffs.shape[-2], 3),
        torch.eye(4, device=dirs.device)[None],
        visible[None, :, None].expand(1, count, 2),
        degrees_to_use,
        as_color=False,
        device=device,
    )
    return colors.reshape(*batch, 3)


def evaluate_harmonics(degrees_to_use: int, dirs: Tensor, coeffs: Tensor, masks: Tensor | None = None) -> Tensor:
    """`spherical_harmonics` in torch's own operations, of coefficients [..., K, D] of any D and type."""
    _check(degrees_to_use, dirs, coeffs, masks)
    count = (degrees_to_use + 1) ** 2
    bases = sh_bases(count, torch.nn.functional.normalize(dirs, dim=-1))
    colors = (bases[..., None, :] @ coeffs[..., :count, :])[..., 0, :]
    return colors if masks is None else torch.where(masks[..., None], colors, 0)


def _check(degrees_to_use: int, dirs: Tensor, coeffs: Tensor, masks: Tensor | None) -> tuple[int, ...]:
    """The leading dimensions, if all is as it must be."""
    batch = leading("dirs", dirs, 3)
    check_shape("coeffs", coeffs, (*batch, "K", "D"))
    if degrees_to_use not in range(MAX_DEGREE + 1):
        raise SplatError(f"degrees_to_use is {degrees_to_use!r}; use 0, 1, 2, 3 or 4")
    count = (degrees_to_use + 1) ** 2
    if coeffs.shape[-2] < count:
        raise SplatError(f"coeffs holds {coeffs.shape[-2]} coefficients, but degrees_to_use={degrees_to_use} needs {count}")
    if masks is not None:
        check_shape("masks", masks, batch)
    return batch
