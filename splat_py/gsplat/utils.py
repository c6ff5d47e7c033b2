"""Small functions that gsplat's scripts import: rotations, depth maps, a projection matrix, the older PLY writer."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.scene.gaussians import SH_C0
from splat_py.scene.ply import GaussianArrays, write_gaussians
from splat_py.splats.depth_maps import depth_to_normal, depth_to_points

__all__ = [
    "depth_to_normal",
    "depth_to_points",
    "get_projection_matrix",
    "inverse_log_transform",
    "log_transform",
    "normalized_quat_to_rotmat",
    "save_ply",
]


def save_ply(splats: Mapping[str, Tensor], dir: str | os.PathLike[str], colors: Tensor | None = None) -> None:
    """Write a PLY in the layout of Kerbl et al. 2023, without the Gaussians that are not finite. Deprecated: `export_splats`.

    Args:
        splats: means [N, 3], scales [N, 3] (log), quats [N, 4], opacities [N] (logit), sh0 [N, 1, 3], shN [N, K, 3].
        dir: the file, for all its name.
        colors: [N, 3] rgb from 0 to 1 instead of the spherical harmonics.
    """
    warnings.warn("save_ply is deprecated; use export_splats", DeprecationWarning, stacklevel=2)
    means, quats, scales, opacities, sh0, shN = (
        splats[name].detach().cpu().numpy() for name in ("means", "quats", "scales", "opacities", "sh0", "shN")
    )
    sh = np.concatenate([sh0, shN], axis=1)
    arrays = (means, quats, scales, opacities, sh)
    keep = np.logical_and.reduce([np.isfinite(array).all(axis=tuple(range(1, array.ndim))) for array in arrays])
    if colors is not None:
        sh = (colors.detach().cpu().numpy()[:, None] - 0.5) / SH_C0
    write_gaussians(dir, GaussianArrays(means[keep], quats[keep], scales[keep], opacities[keep], sh[keep]))


def normalized_quat_to_rotmat(quat: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3] of unit quaternions w x y z [..., 4]."""
    if quat.shape[-1] != 4:
        raise SplatError(f"quat has shape {list(quat.shape)}; expected [..., 4]")
    w, v = quat[..., :1, None], quat[..., 1:]
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))
    # Rodrigues' formula: 1 + 2 w [v]ₓ + 2 [v]ₓ².
    return torch.eye(3, dtype=quat.dtype, device=quat.device) + 2 * w * cross + 2 * cross @ cross


def log_transform(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|)."""
    return x.sign() * x.abs().log1p()


def inverse_log_transform(y: Tensor) -> Tensor:
    """sign(y) (exp |y| - 1), the inverse of `log_transform`."""
    return y.sign() * y.abs().expm1()


def get_projection_matrix(znear: float, zfar: float, fovX: float, fovY: float, device: torch.device | str = "cpu") -> Tensor:
    """[4, 4] camera, z ahead → clip, depth 0 to 1 from `znear` to `zfar`; angles in radians."""
    depth = zfar / (zfar - znear)
    rows = [
        [1 / math.tan(fovX / 2), 0, 0, 0],
        [0, 1 / math.tan(fovY / 2), 0, 0],
        [0, 0, depth, -znear * depth],
        [0, 0, 1, 0],
    ]
    return torch.tensor(rows, dtype=torch.float32, device=device)
