"""A Gaussian's shape: quaternion → rotation → covariance Σ = M Mᵀ, M = R(q) diag(s)."""

import torch
from gsplat.utils import normalized_quat_to_rotmat
from torch import Tensor

from tests.reference.arrays import Array

MIN_NORM = 1e-8  # smaller norms are replaced by this constant, which has no gradient


def normalized(v: Tensor) -> Tensor:
    """v / max(‖v‖, 1e-8), [..., C]."""
    return v / v.norm(dim=-1, keepdim=True).clamp(min=MIN_NORM)


def cross_matrix(v: Tensor) -> Tensor:
    """The matrices [..., 3, 3] that multiply by vectors [..., 3] as cross products."""
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))


def rotations(quats: Tensor) -> Tensor:
    """Rotations [..., 3, 3] of quaternions [..., 4] of any length."""
    return torch.as_tensor(normalized_quat_to_rotmat(normalized(quats)))


def covariances(quats: Tensor, scales: Tensor) -> Tensor:
    """World-space covariances [..., 3, 3] of quats [..., 4] and standard deviations `scales` [..., 3]."""
    m = rotations(quats) * scales[..., None, :]
    return m @ m.mT


def covariance(quats: Array, scales: Array) -> Array:
    """`covariances` of NumPy arrays."""
    return covariances(torch.tensor(quats), torch.tensor(scales)).numpy()
