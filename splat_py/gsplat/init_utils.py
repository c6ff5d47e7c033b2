"""gsplat's first Gaussians from depth maps instead of structure from motion."""

import torch
from torch import Tensor

from splat_py.gsplat.checks import ArgumentError
from splat_py.render.surfels import depth_to_points


def multi_frame_depth_unprojection(
    images: Tensor, depths: Tensor, masks: Tensor, poses: Tensor, intrinsics: Tensor, max_points: int | None = None
) -> tuple[Tensor, Tensor]:
    """Points [P, 3] in the world and their colours [P, 3], 0 to 1, of all pixels with a mask that is not 0 and a depth above 0.

    Args:
        images: [N, H, W, 3], bytes or floats from 0 to 1.
        depths, masks: [N, H, W].
        poses: [N, 4, 4] camera → world.
        intrinsics: [N, 3, 3], pixels; as in gsplat, the first pixel's centre is (0, 0) here.
        max_points: keep so many of more points, at random.

    Raises:
        SplatError: the tensors have different numbers of frames.
    """
    if len(frames := [len(given) for given in (images, depths, masks, poses, intrinsics)]) > frames.count(len(images)):
        raise ArgumentError(f"the arguments have {frames} frames; give equal leading dimensions")
    half = torch.zeros_like(intrinsics)
    half[:, :2, 2] = 0.5
    kept = (masks != 0) & (depths > 0)
    xyz = depth_to_points(depths[..., None].float(), poses.float(), (intrinsics + half).float())[kept]
    rgb = images[kept].float() / (255 if images.dtype == torch.uint8 else 1)
    if max_points is not None and len(xyz) > max_points:
        chosen = torch.randperm(len(xyz), device=xyz.device)[:max_points]
        xyz, rgb = xyz[chosen], rgb[chosen]
    return xyz, rgb


def knn_scale_init(xyz: Tensor, k: int = 3, eps: float = 1e-7, chunk_size: int = 1024) -> Tensor:
    """Logarithms [N] of the root mean square distances, at least eps, of points [N, 3] to their k nearest others. SplatError
    unless N is above k. `chunk_size` limits the rows of distances held at once."""
    if len(xyz) <= k:
        raise ArgumentError(f"xyz has {len(xyz)} points; k={k} needs at least {k + 1}")
    nearest = [torch.cdist(rows, xyz).topk(k + 1, largest=False).values[:, 1:] for rows in xyz.split(max(chunk_size, 1))]
    return torch.cat(nearest).square().mean(-1).sqrt().clamp(min=eps).log()
