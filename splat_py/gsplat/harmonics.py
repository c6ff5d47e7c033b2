"""Real spherical harmonics of degrees 0 to 4, in torch; order and signs as in Kerbl et al. 2023."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gsplat.checks import check_shape, leading

MAX_DEGREE = 4


def sh_bases(count: int, dirs: Tensor) -> Tensor:
    """The first `count` basis functions Y_k, [..., count], at unit directions [..., 3]. Differentiable.

    With P a polynomial in z, the functions of order m are P · Re (x + i y)^m and P · Im (x + i y)^m (Sloan 2013).
    """
    degree = _degree_of(count)
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


def spherical_harmonics(degrees_to_use: int, dirs: Tensor, coeffs: Tensor, masks: Tensor | None = None) -> Tensor:
    """Σ Y_k(d) c_k, [..., D]. Differentiable in dirs and coeffs.

    Args:
        degrees_to_use: 0 to 4.
        dirs: [..., 3] of any length but zero.
        coeffs: [..., K, D], K ≥ (degrees_to_use + 1)²; the others are not used.
        masks: [...] where to compute anything; elsewhere the result is zero.

    Raises:
        SplatError: an argument has the wrong shape or value.
    """
    batch = leading("dirs", dirs, 3)
    check_shape("coeffs", coeffs, (*batch, "K", "D"))
    if degrees_to_use not in range(MAX_DEGREE + 1):
        raise SplatError(f"degrees_to_use is {degrees_to_use!r}; use 0, 1, 2, 3 or 4")
    count = (degrees_to_use + 1) ** 2
    if coeffs.shape[-2] < count:
        raise SplatError(f"coeffs holds {coeffs.shape[-2]} coefficients, but degrees_to_use={degrees_to_use} needs {count}")
    bases = sh_bases(count, torch.nn.functional.normalize(dirs, dim=-1))
    colors = (bases[..., None, :] @ coeffs[..., :count, :])[..., 0, :]
    if masks is None:
        return colors
    check_shape("masks", masks, batch)
    return torch.where(masks[..., None], colors, 0)
