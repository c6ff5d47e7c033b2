"""Quaternions and scales → covariance matrices and their inverses, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from splat_py.gsplat.checks import leading
from splat_py.splats.tensors import check_shape

# Where the upper triangle (xx, xy, xz, yy, yz, zz) of a symmetric matrix lies in its nine entries.
_UPPER = [0, 1, 2, 4, 5, 8]
_FULL = [0, 1, 2, 1, 3, 4, 2, 4, 5]


def quat_to_rotmat(quats: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3] of quaternions [..., 4] (w, x, y, z) of any length but zero."""
    leading("quats", quats, 4)
    w, x, y, z = torch.nn.functional.normalize(quats, dim=-1).unbind(-1)
    rows = (
        torch.stack((1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)), -1),
        torch.stack((2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)), -1),
        torch.stack((2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)), -1),
    )
    return torch.stack(rows, -2)


def quat_scale_to_matrix(quats: Tensor, scales: Tensor) -> Tensor:
    """M = R diag(s) [..., 3, 3], a root of the covariance, of quats [..., 4] and scales [..., 3]."""
    batch = leading("quats", quats, 4)
    check_shape("scales", scales, (*batch, 3))
    return quat_to_rotmat(quats) * scales[..., None, :]


def quat_scale_to_covar_preci(
    quats: Tensor,
    scales: Tensor,
    compute_covar: bool = True,
    compute_preci: bool = True,
    triu: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """Covariances R diag(s)² Rᵀ and their inverses R diag(s)⁻² Rᵀ. Differentiable.

    Args:
        quats: [..., 4] (w, x, y, z), normalised here.
        scales: [..., 3] standard deviations.
        compute_covar, compute_preci: which of the two to compute; the other is None.
        triu: give upper triangles (xx, xy, xz, yy, yz, zz), [..., 6], instead of matrices [..., 3, 3].

    Raises:
        SplatError: an argument has the wrong shape.
    """
    batch = leading("quats", quats, 4)
    check_shape("scales", scales, (*batch, 3))
    rotation = quat_to_rotmat(quats)

    def squared(lengths: Tensor) -> Tensor:
        root = rotation * lengths[..., None, :]
        matrix = root @ root.mT
        return upper_triangle(matrix) if triu else matrix

    return squared(scales) if compute_covar else None, squared(1 / scales) if compute_preci else None


def upper_triangle(matrices: Tensor) -> Tensor:
    """(xx, xy, xz, yy, yz, zz), [..., 6], of symmetric matrices [..., 3, 3]; each off-diagonal the mean of both entries."""
    return ((matrices + matrices.mT) / 2).flatten(-2)[..., _UPPER]


def symmetric(triangles: Tensor) -> Tensor:
    """Symmetric matrices [..., 3, 3] of upper triangles [..., 6]."""
    return triangles[..., _FULL].unflatten(-1, (3, 3))
