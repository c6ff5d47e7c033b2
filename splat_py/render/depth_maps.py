"""From maps of depth to points and normals in the world."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from splat_py.errors import SplatError


def depth_to_points(depths: Tensor, camtoworlds: Tensor, Ks: Tensor, z_depth: bool = True) -> Tensor:
    """Points [..., H, W, 3] in the world's frame of depth maps.

    Args:
        depths: [..., H, W, 1].
        camtoworlds: [..., 4, 4] camera → world.
        Ks: [..., 3, 3], pixels; the first pixel's centre is (0.5, 0.5).
        z_depth: along the camera's axis, or else along the pixel's ray.

    Raises:
        SplatError: shapes that do not belong together.
    """
    batch, sides = depths.shape[:-3], depths.shape[-3:]
    if len(sides) < 3 or sides[-1] != 1 or camtoworlds.shape != (*batch, 4, 4) or Ks.shape != (*batch, 3, 3):
        given = f"{list(depths.shape)}, {list(camtoworlds.shape)} and {list(Ks.shape)}"
        raise SplatError(
            f"depths, camtoworlds and Ks have shapes {given}; expected [..., H, W, 1], [..., 4, 4] and [..., 3, 3]"
        )
    K = Ks[..., None, None, :, :]
    x = torch.arange(sides[1], device=depths.device) + 0.5
    y = torch.arange(sides[0], device=depths.device)[:, None] + 0.5
    along_x, along_y = torch.broadcast_tensors((x - K[..., 0, 2]) / K[..., 0, 0], (y - K[..., 1, 2]) / K[..., 1, 1])
    directions = torch.stack([along_x, along_y, torch.ones_like(along_x)], dim=-1)
    if not z_depth:
        directions = F.normalize(directions, dim=-1)
    rotations, centers = camtoworlds[..., None, :3, :3], camtoworlds[..., None, None, :3, 3]
    return centers + depths * (directions @ rotations.transpose(-1, -2))


def depth_to_normal(depths: Tensor, camtoworlds: Tensor, Ks: Tensor, z_depth: bool = True) -> Tensor:
    """Normals [..., H, W, 3] in the world's frame, by central differences of depth maps; zero in the outermost pixels.

    Arguments and errors as of `depth_to_points`. They point towards the camera.
    """
    points = depth_to_points(depths, camtoworlds, Ks, z_depth)
    down = points[..., 2:, 1:-1, :] - points[..., :-2, 1:-1, :]
    right = points[..., 1:-1, 2:, :] - points[..., 1:-1, :-2, :]
    normals = F.normalize(torch.linalg.cross(down, right), dim=-1)
    return F.pad(normals, (0, 0, 1, 1, 1, 1))
