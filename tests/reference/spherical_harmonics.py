"""View-dependent colour: real spherical harmonics up to degree 4, in 3DGS's order and signs.

Basis function k = l² + l + m is the real harmonic (l, m) with the Condon–Shortley phase, written as a
polynomial in the unit direction's x, y, z; e.g. degree 1 is (−C₁ y, C₁ z, −C₁ x).
"""

from __future__ import annotations

import numpy as np

from tests.reference.arrays import Array
from tests.reference.gaussian import guarded_normalize, guarded_normalize_backward


def _constant(numerator: int, denominator: int) -> float:
    return float(np.sqrt(numerator / (denominator * np.pi)))


C0 = _constant(1, 4)
C1 = _constant(3, 4)
C2_XY, C2_ZZ, C2_XX_YY = _constant(15, 4), _constant(5, 16), _constant(15, 16)
C3_3, C3_XYZ, C3_1 = _constant(35, 32), _constant(105, 4), _constant(21, 32)
C3_0, C3_2 = _constant(7, 16), _constant(105, 16)
C4_4, C4_3, C4_2 = 3 * _constant(35, 16), 3 * _constant(35, 32), 3 * _constant(5, 16)
C4_1, C4_0, C4_22, C4_44 = 3 * _constant(5, 32), 3 * _constant(1, 256), 3 * _constant(5, 64), 3 * _constant(35, 256)


def sh_basis(directions: Array, degree: int) -> Array:
    """Y [N, (degree+1)²] at unit directions [N, 3]."""
    x, y, z = directions.T
    basis = [np.full_like(x, C0)]
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
    return np.stack(basis, axis=-1)


def sh_basis_jacobian(directions: Array, degree: int) -> Array:
    """∂Y/∂(x, y, z) [N, (degree+1)², 3] of the polynomials above, x, y and z taken as independent."""
    x, y, z = directions.T
    o = np.zeros_like(x)
    one = np.ones_like(x)
    rows: list[tuple[Array, Array, Array]] = [(o, o, o)]
    if degree >= 1:
        rows += [(o, -C1 * one, o), (o, o, C1 * one), (-C1 * one, o, o)]
    if degree >= 2:
        rows += [
            (C2_XY * y, C2_XY * x, o),
            (o, -C2_XY * z, -C2_XY * y),
            (-2 * C2_ZZ * x, -2 * C2_ZZ * y, 4 * C2_ZZ * z),
            (-C2_XY * z, o, -C2_XY * x),
            (2 * C2_XX_YY * x, -2 * C2_XX_YY * y, o),
        ]
    if degree >= 3:
        rows += [
            (-6 * C3_3 * x * y, -3 * C3_3 * (x * x - y * y), o),
            (C3_XYZ * y * z, C3_XYZ * x * z, C3_XYZ * x * y),
            (2 * C3_1 * x * y, -C3_1 * (4 * z * z - x * x - 3 * y * y), -8 * C3_1 * y * z),
            (-6 * C3_0 * x * z, -6 * C3_0 * y * z, C3_0 * (6 * z * z - 3 * x * x - 3 * y * y)),
            (-C3_1 * (4 * z * z - 3 * x * x - y * y), 2 * C3_1 * x * y, -8 * C3_1 * x * z),
            (2 * C3_2 * x * z, -2 * C3_2 * y * z, C3_2 * (x * x - y * y)),
            (-3 * C3_3 * (x * x - y * y), 6 * C3_3 * x * y, o),
        ]
    if degree >= 4:
        xx, yy, zz = x * x, y * y, z * z
        rows += [
            (C4_4 * y * (3 * xx - yy), C4_4 * x * (xx - 3 * yy), o),
            (-6 * C4_3 * x * y * z, -3 * C4_3 * z * (xx - yy), -C4_3 * y * (3 * xx - yy)),
            (C4_2 * y * (7 * zz - 1), C4_2 * x * (7 * zz - 1), 14 * C4_2 * x * y * z),
            (o, -C4_1 * z * (7 * zz - 3), -3 * C4_1 * y * (7 * zz - 1)),
            (o, o, C4_0 * (140 * zz - 60) * z),
            (-C4_1 * z * (7 * zz - 3), o, -3 * C4_1 * x * (7 * zz - 1)),
            (2 * C4_22 * x * (7 * zz - 1), -2 * C4_22 * y * (7 * zz - 1), 14 * C4_22 * z * (xx - yy)),
            (-3 * C4_3 * z * (xx - yy), 6 * C4_3 * x * y * z, -C4_3 * x * (xx - 3 * yy)),
            (4 * C4_44 * x * (xx - 3 * yy), 4 * C4_44 * y * (yy - 3 * xx), o),
        ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _offsets(means: Array, viewmat: Array) -> Array:
    """means − camera centre [N, 3], centre = −Rᵀ t."""
    centre = -viewmat[:3, :3].T @ viewmat[:3, 3]
    return np.asarray(means - centre)


def sh_colors(sh: Array, means: Array, viewmat: Array, degree: int) -> Array:
    """Colours [N, 3] = max(0, Σ Y_k(d) sh_k + ½), d from the camera's centre to the mean.

    Args:
        sh: [N, K, 3] with K ≥ (degree+1)²; coefficients above `degree` are not used.
    """
    directions = guarded_normalize(_offsets(means, viewmat))[0]
    basis = sh_basis(directions, degree)
    linear = np.einsum("nk,nkc->nc", basis, sh[:, : basis.shape[1]])
    return np.asarray(np.maximum(linear + 0.5, 0.0))


def sh_colors_backward(
    sh: Array, means: Array, viewmat: Array, degree: int, v_colors: Array
) -> tuple[Array, Array, Array]:
    """v_sh [N, K, 3], v_means [N, 3] and v_viewmat [4, 4] (entries of [R | t] independent)."""
    offsets = _offsets(means, viewmat)
    directions = guarded_normalize(offsets)[0]
    basis = sh_basis(directions, degree)
    used = basis.shape[1]
    v_colors = np.where(sh_colors(sh, means, viewmat, degree) > 0, v_colors, 0.0)
    v_sh = np.zeros_like(sh)
    v_sh[:, :used] = basis[:, :, None] * v_colors[:, None, :]
    v_basis = np.einsum("nkc,nc->nk", sh[:, :used], v_colors)
    v_directions = np.einsum("nk,nki->ni", v_basis, sh_basis_jacobian(directions, degree))
    v_offsets = guarded_normalize_backward(offsets, v_directions)
    # offset_j = μ_j + Σ_i t_i R_ij
    total = v_offsets.sum(axis=0)
    v_viewmat = np.zeros((4, 4))
    v_viewmat[:3, :3] = np.outer(viewmat[:3, 3], total)
    v_viewmat[:3, 3] = viewmat[:3, :3] @ total
    return v_sh, v_offsets, v_viewmat
