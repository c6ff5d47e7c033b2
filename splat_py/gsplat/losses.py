"""gsplat's loss functions in torch, on any device. If a loss has a value for each element, the caller takes the mean.

SSIM here accepts images [B, C, H, W] of any float type and any window, with zeros outside; `splat_py.ssim` is faster.
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from splat_py.gsplat.unsupported import (  # noqa: F401
    lidar_background_loss,
    lidar_distance_loss,
    lidar_intensity_loss,
    lidar_raydrop_loss,
)

_SIGMA = 1.5
_C1, _C2 = 0.01**2, 0.03**2


def l1_loss(pred: Tensor, target: Tensor) -> Tensor:
    """|pred - target| of each element, any shape."""
    return F.l1_loss(pred, target, reduction="none")


def mse_loss(pred: Tensor, target: Tensor) -> Tensor:
    """(pred - target)² of each element, any shape."""
    return F.mse_loss(pred, target, reduction="none")


def create_ssim_window(window_size: int, channel: int, device: torch.device | str = "cpu") -> Tensor:
    """The Gaussian window of SSIM, σ = 1.5 pixels, for each channel: [channel, 1, window_size, window_size], sum 1 each."""
    offsets = torch.arange(window_size, dtype=torch.float32, device=device) - window_size // 2
    weights = torch.softmax(-(offsets**2) / (2 * _SIGMA**2), dim=0)
    return torch.outer(weights, weights).repeat(channel, 1, 1, 1)


_window = cache(create_ssim_window)


def torch_ssim_loss(img1: Tensor, img2: Tensor, window: Tensor, window_size: int = 11, channel: int = 3) -> Tensor:
    """SSIM (not 1 - SSIM) of each pixel and channel, [B, C, H, W] (Wang et al. 2004).

    Args:
        img1, img2: [B, C, H, W], 0 to 1.
        window: from `create_ssim_window`, of the images' type.
        window_size, channel: as for the window.
    """
    maps = torch.cat([img1, img2, img1 * img1, img2 * img2, img1 * img2])
    x, y, xx, yy, xy = F.conv2d(maps, window, padding=window_size // 2, groups=channel).chunk(5)
    luminance = (2 * x * y + _C1) / (x * x + y * y + _C1)
    structure = (2 * (xy - x * y) + _C2) / (xx - x * x + yy - y * y + _C2)
    return luminance * structure


def ssim_loss(img1: Tensor, img2: Tensor, window_size: int = 11) -> Tensor:
    """1 - mean SSIM of images [B, C, H, W], 0 to 1: a scalar."""
    channel = img1.shape[1]
    window = _window(window_size, channel, img1.device).to(img1.dtype)
    return 1 - torch_ssim_loss(img1, img2, window, window_size, channel).mean()


def depth_l1_loss(pred_depth: Tensor, gt_depth: Tensor, scene_scale: float = 1.0) -> Tensor:
    """Mean |1/pred - 1/gt| · scene_scale: a scalar. Depths that are not positive count as infinitely far."""
    return F.l1_loss(_disparity(pred_depth), _disparity(gt_depth)) * scene_scale


def _disparity(depths: Tensor) -> Tensor:
    there = depths > 0
    # The unused branch must be finite, since torch multiplies its derivative by zero.
    return torch.where(there, 1 / torch.where(there, depths, 1), 0)


def total_variation_loss(x: Tensor) -> Tensor:
    """Mean squared difference of neighbours along each axis of [B, C, ...] after the second, summed over the axes: a scalar."""
    total = x.new_zeros(())
    for axis in range(2, x.dim()):
        differences = x.diff(dim=axis)
        total = total + differences.square().sum() / max(math.prod(differences.shape[1:]), 1)
    return total / x.shape[0]


def opacity_reg_loss(opacities: Tensor) -> Tensor:
    """Mean opacity, from logits of any shape: a scalar."""
    return opacities.sigmoid().mean()


def scale_reg_loss(log_scales: Tensor) -> Tensor:
    """Mean scale, from logarithms of any shape: a scalar."""
    return log_scales.exp().mean()


def gaussian_scale_reg(scales: Tensor, visibility: Tensor | None = None) -> Tensor:
    """|scales| [N, 3] (not logarithms), times `visibility` [N] or [N, 1] if given: [N, 3]."""
    return _weighted(scales, visibility)


def gaussian_density_reg(densities: Tensor, visibility: Tensor | None = None) -> Tensor:
    """|densities| [N] or [N, 1] (opacities, not logits), times `visibility` [N] or [N, 1] if given: as `densities`."""
    return _weighted(densities, visibility)


def _weighted(values: Tensor, visibility: Tensor | None) -> Tensor:
    values = values.abs()
    return values if visibility is None else values * visibility.reshape(-1, *(1,) * (values.dim() - 1))


def gaussian_z_scale_reg(z_scales: Tensor, threshold: float) -> Tensor:
    """Excess of scales along z [N] (not logarithms) over a threshold: [N]."""
    return F.relu(z_scales - threshold)


def out_of_bound_loss(positions: Tensor, cuboid_dims: Tensor) -> Tensor:
    """Distance [N, 3] of positions [N, 3] along each axis from cuboids around the origin with sides `cuboid_dims` [N, 3]."""
    return F.relu(positions.abs() - cuboid_dims / 2)
