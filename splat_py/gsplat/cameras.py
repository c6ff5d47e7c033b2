"""Gaussians' means and covariances → the camera's frame → the image plane, in torch: EWA splatting (Zwicker et al. 2001)."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from splat_py.gsplat.checks import check_camera_model, leading
from splat_py.splats.tensors import check_shape

# How far beyond each edge of a pinhole's image, as a share of its side, means are linearised where they are.
_MARGIN = 0.15


def world_to_cam(means: Tensor, covars: Tensor, viewmats: Tensor) -> tuple[Tensor, Tensor]:
    """Means [..., C, N, 3] and covariances [..., C, N, 3, 3] in the frames of C cameras. Differentiable.

    Args:
        means: [..., N, 3] in the world.
        covars: [..., N, 3, 3].
        viewmats: [..., C, 4, 4] world → camera.

    Raises:
        SplatError: an argument has the wrong shape.
    """
    *batch, count = leading("means", means, 3)
    check_shape("covars", covars, (*batch, count, 3, 3))
    check_shape("viewmats", viewmats, (*batch, "C", 4, 4))
    rotation, translation = viewmats[..., None, :3, :3], viewmats[..., None, :3, 3]
    in_camera = (rotation @ means[..., None, :, :, None])[..., 0] + translation
    return in_camera, rotation @ covars[..., None, :, :, :] @ rotation.mT


def proj(
    means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int, camera_model: str = "pinhole"
) -> tuple[Tensor, Tensor]:
    """Gaussians in the frames of C cameras on their image planes: means2d [..., C, N, 2] in pixels, J Σ Jᵀ [..., C, N, 2, 2].

    Args:
        means: [..., C, N, 3].
        covars: [..., C, N, 3, 3].
        Ks: [..., C, 3, 3] intrinsics in pixels.
        width, height: of the images; of a pinhole, J is taken at a point held within them and 15 % of a side beyond.
        camera_model: "pinhole", "ortho" (Ks then are pixels a world unit) or "fisheye" (equidistant, without distortion).

    Differentiable in means, covars and Ks.

    Raises:
        SplatError: an argument has the wrong shape.
    """
    check_camera_model(camera_model)
    *cameras, count = leading("means", means, 3)
    check_shape("covars", covars, (*cameras, count, 3, 3))
    check_shape("Ks", Ks, (*cameras, 3, 3))
    focal, center = Ks[..., None, (0, 1), (0, 1)], Ks[..., None, (0, 1), (2, 2)]  # [..., C, 1, 2]
    if camera_model == "ortho":
        means2d, jacobian = means[..., :2] * focal + center, _ortho_jacobian(means, focal)
    elif camera_model == "fisheye":
        means2d, jacobian = _fisheye(means, focal, center)
    else:
        means2d, jacobian = _pinhole(means, focal, center, means.new_tensor((width, height)))
    return means2d, jacobian @ covars @ jacobian.mT


def persp_proj(means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """`proj` of a pinhole, under gsplat's older name."""
    warnings.warn("persp_proj is gsplat's older name of proj; use proj", DeprecationWarning, stacklevel=2)
    return proj(means, covars, Ks, width, height)


def ortho_proj(means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """`proj` of an orthographic camera."""
    return proj(means, covars, Ks, width, height, "ortho")


def fisheye_proj(means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """`proj` of an equidistant fisheye."""
    return proj(means, covars, Ks, width, height, "fisheye")


def pinhole_proj(means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """`proj` of a pinhole."""
    return proj(means, covars, Ks, width, height)


def _pinhole(means: Tensor, focal: Tensor, center: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    xy, z = means[..., :2], means[..., 2:]
    slope = xy / z
    held = slope.clamp(-(size * _MARGIN + center) / focal, (size * (1 + _MARGIN) - center) / focal)
    # Rows (f/z, 0, -f x/z²) and (0, f/z, -f y/z²).
    scale = focal / z
    return slope * focal + center, torch.cat((torch.diag_embed(scale), -(scale * held)[..., None]), -1)


def _ortho_jacobian(means: Tensor, focal: Tensor) -> Tensor:
    diagonal = torch.diag_embed(focal.expand(*means.shape[:-1], 2))
    return torch.cat((diagonal, torch.zeros_like(diagonal[..., :1])), -1)


def _fisheye(means: Tensor, focal: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """Equidistant: a point at the angle θ from the axis is f θ from the principal point."""
    xy, z = means[..., :2], means[..., 2:]
    # On the axis itself there is no direction, but there is a limit.
    r = xy.square().sum(-1, keepdim=True).clamp(min=1e-14).sqrt()
    squared = r * r + z * z
    around = torch.atan2(r, z) / r
    along = z / squared
    means2d = xy * around * focal + center
    # The derivative is `along` in the direction u = xy / r, and `around` across: around 1 + (along - around) u uᵀ.
    u = xy / r
    outer = u[..., :, None] * u[..., None, :] * (along - around)[..., None]
    block = outer + torch.diag_embed(around.expand_as(xy))
    return means2d, focal[..., None] * torch.cat((block, -(xy / squared)[..., None]), -1)
