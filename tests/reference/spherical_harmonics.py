"""View-dependent colour: real spherical harmonics up to degree 4, in 3DGS's order and signs.

Basis function k = l² + l + m is the real harmonic (l, m) with the Condon–Shortley phase, a polynomial in the
unit direction's x, y and z; e.g. degree 1 is (−C₁ y, C₁ z, −C₁ x).
"""

import math

import torch
from torch import Tensor

from tests.reference.arrays import Array
from tests.reference.gaussian import normalized


def _constant(numerator: int, denominator: int) -> float:
    return math.sqrt(numerator / (denominator * math.pi))


C0 = _constant(1, 4)
C1 = _constant(3, 4)
C2_XY, C2_ZZ, C2_XX_YY = _constant(15, 4), _constant(5, 16), _constant(15, 16)
C3_3, C3_XYZ, C3_1 = _constant(35, 32), _constant(105, 4), _constant(21, 32)
C3_0, C3_2 = _constant(7, 16), _constant(105, 16)
C4_4, C4_3, C4_2 = 3 * _constant(35, 16), 3 * _constant(35, 32), 3 * _constant(5, 16)
C4_1, C4_0, C4_22, C4_44 = 3 * _constant(5, 32), 3 * _constant(1, 256), 3 * _constant(5, 64), 3 * _constant(35, 256)


def basis_at(directions: Tensor, degree: int) -> Tensor:
    """Y [..., (degree+1)²] at unit directions [..., 3]."""
    x, y, z = directions.unbind(-1)
    basis = [torch.full_like(x, C0)]
    if degree >= 1:
        basis += [-C1 * y, C1 * z, -C1 * x]
    if degree >= 2:
        basis += [
            C2_XY * x * y,
            -C2_XY * y * z,
            C2_ZZ * (2 * z * z - x * x - y * y),
            -C2_XY * x * z,
            C2_XX_YY * (x * x - y * y),
        ]
    if degree >= 3:
        basis += [
            -C3_3 * y * (3 * x * x - y * y),
            C3_XYZ * x * y * z,
            -C3_1 * y * (4 * z * z - x * x - y * y),
            C3_0 * z * (2 * z * z - 3 * x * x - 3 * y * y),
            -C3_1 * x * (4 * z * z - x * x - y * y),
            C3_2 * z * (x * x - y * y),
            -C3_3 * x * (x * x - 3 * y * y),
        ]
    if degree >= 4:
        xx, yy, zz = x * x, y * y, z * z
        basis += [
            C4_4 * x * y * (xx - yy),
            -C4_3 * y * z * (3 * xx - yy),
            C4_2 * x * y * (7 * zz - 1),
            -C4_1 * y * z * (7 * zz - 3),
            C4_0 * (35 * zz * zz - 30 * zz + 3),
            -C4_1 * x * z * (7 * zz - 3),
            C4_22 * (xx - yy) * (7 * zz - 1),
            -C4_3 * x * z * (xx - 3 * yy),
            C4_44 * (xx * xx - 6 * xx * yy + yy * yy),
        ]
    return torch.stack(basis, -1)


def sh_basis(directions: Array, degree: int) -> Array:
    """`basis_at` of NumPy arrays."""
    return basis_at(torch.as_tensor(directions), degree).numpy()


def sh_colors(sh: Tensor, means: Tensor, viewmat: Tensor, degree: int) -> Tensor:
    """Colours [N, 3] = max(0, Σ Y_k(d) sh_k + ½), d from the camera's centre −Rᵀ t to the mean.

    Args:
        sh: [N, K, 3] with K ≥ (degree+1)²; coefficients above `degree` are not used.
    """
    directions = normalized(means + viewmat[:3, :3].T @ viewmat[:3, 3])
    return (torch.einsum("nk,nkc->nc", basis_at(directions, degree), sh[:, : (degree + 1) ** 2]) + 0.5).relu()
