"""gsplat's loss functions in torch, on any device. If a loss has a value for each element, the caller takes the mean.

SSIM here accepts images [B, C, H, W] of any float type and any window, with zeros outside; `splat_py.ssim` is faster.
"""

import math
import os
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from splat_py.gsplat.checks import ArgumentError, check_same, leading
from splat_py.gsplat.schedules import LinearLambdaScheduler  # noqa: F401
from splat_py.gsplat.unsupported import (  # noqa: F401
    lidar_background_loss,
    lidar_distance_loss,
    lidar_intensity_loss,
    lidar_raydrop_loss,
)

# True to check values, which waits for the device; shapes are always checked.
ENFORCE_CONTRACTS = os.environ.get("GSPLAT_ENFORCE_CONTRACTS") == "1"
_SIGMA = 1.5
_C1, _C2 = 0.01**2, 0.03**2


def l1_loss(pred: Tensor, target: Tensor) -> Tensor:
    """|pred - target| of each element, any shape."""
    return F.l1_loss(pred, target, reduction="none")


def mse_loss(pred: Tensor, target: Tensor) -> Tensor:
    """(pred - target)² of each element, any shape."""
    return F.mse_loss(pred, target, reduction="none")


def huber_loss(pred: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    """Huber's loss of each element: e²/2 up to |e| = delta, delta (|e| - delta/2) beyond (Huber 1964)."""
    return F.huber_loss(pred, target, reduction="none", delta=delta)


def smooth_l1_loss(pred: Tensor, target: Tensor, beta: float = 1.0) -> Tensor:
    """Huber's loss of each element divided by its limit beta: e²/(2 beta) up to |e| = beta, |e| - beta/2 beyond."""
    return F.smooth_l1_loss(pred, target, reduction="none", beta=beta)


def bce_loss(pred: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy -t log p - (1 - t) log(1 - p) of each element, both 0 to 1."""
    return F.binary_cross_entropy(pred, target, reduction="none")


def bce_with_logits_loss(pred: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of each element, with predictions as logits."""
    return F.binary_cross_entropy_with_logits(pred, target, reduction="none")


def bce_clipped(input: Tensor, target: Tensor, eps: float = 0.001) -> Tensor:
    """The cross-entropy of each element in float32, with probabilities clipped to [eps, 1 - eps]."""
    with torch.autocast(input.device.type, enabled=False):
        return bce_loss(input.float().clip(eps, 1 - eps), target.float())


def cross_entropy_loss(pred: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy [N] of logits [N, classes] and class indices [N]."""
    return F.cross_entropy(pred, target, reduction="none")


def log_l1(pred: Tensor, target: Tensor) -> Tensor:
    """log(1 + |pred - target|) of each element, any shape."""
    return (pred - target).abs().log1p()


def normal_cosine_loss(pred_normal: Tensor, gt_normal: Tensor) -> Tensor:
    """1 - cos of the angle between unit normals [..., 3]: [...]. SplatError if the shapes differ."""
    check_same("pred_normal", pred_normal, "gt_normal", gt_normal)
    leading("pred_normal", pred_normal, 3)
    for name, normals in (("pred_normal", pred_normal), ("gt_normal", gt_normal)):
        _check_range(f"the length of {name}", normals.norm(dim=-1), 0.999, 1.001, "unit-normalized vectors")
    return 1 - (pred_normal * gt_normal).sum(-1)


def masked_l1(pred: Tensor, gt: Tensor, mask: Tensor) -> Tensor:
    """Mean |pred - gt| where `mask`, which broadcasts to them, is not 0: a scalar, 0 if the mask is 0 everywhere. SplatError if
    the shapes differ."""
    check_same("pred", pred, "gt", gt)
    chosen = (pred - gt).abs()[(mask != 0).expand_as(pred)]
    return chosen.mean() if chosen.numel() else chosen.sum()


def masked_ssim(pred: Tensor, gt: Tensor, mask: Tensor) -> Tensor:
    """`ssim_loss` of two images [B, C, H, W] times `mask`, averaged over the whole image. SplatError if the shapes differ."""
    check_same("pred", pred, "gt", gt)
    return ssim_loss(pred * mask, gt * mask)


def _check_range(name: str, values: Tensor, low: float, high: float, wanted: str) -> None:
    if ENFORCE_CONTRACTS and not ((values >= low) & (values <= high)).all():
        raise ArgumentError(f"{name} ranges from {values.min():.4g} to {values.max():.4g}; give {wanted}")


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
    for name, image in (("img1", img1), ("img2", img2)):
        _check_range(name, image, 0, 1, "images, which must be in [0, 1]")
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


def binocular_disparity_l1(pred_depth: Tensor, gt_depth: Tensor, mask: Tensor | None = None, eps: float = 1e-7) -> Tensor:
    """Mean |1/pred - 1/gt| of the pixels where both |depths| exceed eps and `mask`, which broadcasts, is not 0: a scalar.
    SplatError if the depths' shapes differ."""
    check_same("pred_depth", pred_depth, "gt_depth", gt_depth)
    known = (pred_depth.abs() > eps) & (gt_depth.abs() > eps)
    # Masked before division, so that gradients stay finite.
    pred, gt = (1 / torch.where(known, depth, 1) for depth in (pred_depth, gt_depth))
    return masked_l1(pred, gt, known if mask is None else known & (mask != 0))


def pearson_depth_loss(pred_depth: Tensor, gt_depth: Tensor, mask: Tensor | None = None) -> Tensor:
    """1 - Pearson's correlation of depths where `mask`, which broadcasts, is not 0: a scalar, 0 of fewer than two pixels.
    SplatError if the depths' shapes differ."""
    check_same("pred_depth", pred_depth, "gt_depth", gt_depth)
    chosen = [depth.flatten() if mask is None else depth[(mask != 0).expand_as(depth)] for depth in (pred_depth, gt_depth)]
    if len(chosen[0]) < 2:
        return pred_depth.sum() * 0
    pred, gt = (depth - depth.mean() for depth in chosen)
    return 1 - (pred * gt).sum() / (pred.square().sum() * gt.square().sum()).clamp(min=1e-12).sqrt()


def depth_inverse_mse(pred: Tensor, target: Tensor, eps: float = 1e-6) -> Tensor:
    """(1/pred - 1/target)² of each element, with depths of at least eps."""
    return (1 / pred.clamp(min=eps) - 1 / target.clamp(min=eps)).square()


def total_variation_temporal(x: Tensor, loss_mask: Tensor) -> Tensor:
    """Mean squared difference [B - 1] of consecutive x [B, C, D, H, W], times `loss_mask`; zero [1] if B is 1."""
    return x.diff(dim=0).square().mean((1, 2, 3, 4)) * loss_mask if len(x) > 1 else torch.zeros(1, device=x.device)


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
    return _weighted("scales", scales, visibility)


def gaussian_density_reg(densities: Tensor, visibility: Tensor | None = None) -> Tensor:
    """|densities| [N] or [N, 1] (opacities, not logits), times `visibility` [N] or [N, 1] if given: as `densities`."""
    return _weighted("densities", densities, visibility)


def _weighted(name: str, values: Tensor, visibility: Tensor | None) -> Tensor:
    _check_range(name, values, 0, math.inf, "post-activation values")
    values = values.abs()
    return values if visibility is None else values * visibility.reshape(-1, *(1,) * (values.dim() - 1))


def gaussian_z_scale_reg(z_scales: Tensor, threshold: float) -> Tensor:
    """Excess of scales along z [N] (not logarithms) over a threshold: [N]."""
    _check_range("z_scales", z_scales, 0, math.inf, "post-activation values")
    return F.relu(z_scales - threshold)


def out_of_bound_loss(positions: Tensor, cuboid_dims: Tensor) -> Tensor:
    """Distance [N, 3] of positions [N, 3] along each axis from cuboids around the origin with sides `cuboid_dims` [N, 3]."""
    _check_range("cuboid_dims", -cuboid_dims, -math.inf, -math.ulp(0.0), "positive sides")
    return F.relu(positions.abs() - cuboid_dims / 2)


class FusedGaussianLosses(torch.nn.Module):
    """`gaussian_scale_reg`, `gaussian_density_reg`, `gaussian_z_scale_reg` above `z_scale_threshold`, and `out_of_bound_loss`
    in one call. gsplat fuses them in CUDA; here they run one by one."""

    def __init__(self, z_scale_threshold: float = 0.0) -> None:
        super().__init__()
        self.z_scale_threshold = z_scale_threshold

    def forward(
        self,
        scales: Tensor,
        densities: Tensor,
        z_scales: Tensor,
        positions: Tensor,
        cuboid_dims: Tensor,
        visibility: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Losses [N, 3], [N], [N] and [N, 3], from scales, positions and sides [N, 3] and the others [N]."""
        size = gaussian_scale_reg(scales, visibility), gaussian_density_reg(densities, visibility)
        return *size, gaussian_z_scale_reg(z_scales, self.z_scale_threshold), out_of_bound_loss(positions, cuboid_dims)


def relu_sum(value: Tensor, eps: float) -> Tensor:
    """The sum of the excesses over eps: a scalar."""
    return F.relu(value - eps).sum()


def weights_reg(weights_list: list[Tensor], dim: int = 1) -> Tensor:
    """Mean squared norm of all weights' rows along `dim`: a scalar."""
    return torch.cat([weights.square().sum(dim) for weights in weights_list]).mean()


def identity_distance(grid: Tensor, num_rows: int = 3, num_cols: int = 4) -> Tensor:
    """Frobenius distance [B, ...] of matrices [B, num_rows · num_cols, ...] from the identity."""
    one = torch.eye(num_rows, num_cols, device=grid.device).reshape(num_rows, num_cols, *(1,) * (grid.dim() - 2))
    return torch.linalg.vector_norm(grid.unflatten(1, (num_rows, num_cols)) - one, dim=(1, 2))


def bilateral_grid_drift_loss(grids: list[Tensor], num_rows: int = 3, num_cols: int = 4) -> Tensor:
    """`identity_distance` of all cells of all grids [B, num_rows · num_cols, ...] in one list; empty without grids."""
    return torch.cat([identity_distance(grid, num_rows, num_cols).flatten() for grid in grids] or [torch.empty(0)])


def reduce_mean(value: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean, or Σ value · mask / max(Σ mask, 1) with a mask of booleans or integers: a scalar."""
    if mask is None:
        return value.mean()
    if mask.is_floating_point():
        raise ArgumentError(f"mask has dtype {mask.dtype}, but it must be bool or integer; use mask > 0")
    return (value * mask).sum() / mask.sum().clamp(min=1)


def reduce_quantile(value: Tensor, quantile: float) -> Tensor:
    """Mean of the smallest int(N · quantile) of N values: a scalar, 0 if that is none."""
    if not 0 < quantile <= 1:
        raise ArgumentError(f"quantile is {quantile!r}; quantile must be in (0, 1]")
    chosen = value.flatten().topk(int(value.numel() * quantile), largest=False).values
    return chosen.mean() if chosen.numel() else chosen.sum()


def reduce_sum(value: Tensor) -> Tensor:
    """The sum: a scalar."""
    return value.sum()
