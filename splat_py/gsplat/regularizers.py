"""gsplat's masks of a video where instruments hide the scene, and the total variation inside a mask."""

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from splat_py.gsplat.checks import ArgumentError
from splat_py.gsplat.losses import ENFORCE_CONTRACTS


def compute_tv_loss_targeted(image: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean |difference| of neighbours along both axes of an image [B, C, H, W]: a scalar.

    Without a mask, both sums are divided by the image's size. With one, [B, 1, H, W] of zeros and ones, each sum takes pixels
    whose right or lower member has 1, and is divided by their number times C. SplatError if the image has other dimensions.
    """
    if image.dim() != 4:
        raise ArgumentError(f"image has shape {list(image.shape)}; expected 4D, [B, C, H, W]")
    down, right = (image.diff(dim=axis).abs() for axis in (2, 3))
    if mask is None:
        return (down.sum() + right.sum()) / image.numel()
    if ENFORCE_CONTRACTS and not ((mask == 0) | (mask == 1)).all():
        raise ArgumentError("mask must be binary; use (mask > 0.5).float()")
    parts = (down, mask[:, :, 1:]), (right, mask[..., 1:])
    down_mean, right_mean = ((d * m).sum() / (m.sum() * image.shape[1] + 1e-8) for d, m in parts)
    return down_mean + right_mean


def dilate_mask(mask: Tensor, kernel_size: int = 3) -> Tensor:
    """The maximum of each pixel's square of `kernel_size`², odd: float32 as the mask, [H, W], [C, H, W] or [B, C, H, W].
    SplatError for other shapes and sizes."""
    if not isinstance(kernel_size, int) or kernel_size < 1 or kernel_size % 2 == 0 or mask.dim() not in (2, 3, 4):
        raise ArgumentError(f"mask has shape {list(mask.shape)} and kernel_size is {kernel_size}; use 2 to 4 axes, an odd size")
    sides = mask.float().reshape(-1, 1, *mask.shape[-2:])
    return F.max_pool2d(sides, kernel_size, stride=1, padding=kernel_size // 2).reshape(mask.shape)


def create_invisible_mask(masks: Iterable[Tensor | str]) -> Tensor:
    """Union [H, W] of masks: tensors with 1 where the scene is hidden, or image files with black there. SplatError if there is
    none, or their shapes differ."""
    found = []
    for mask in masks:
        if isinstance(mask, str):
            with Image.open(mask) as image:
                mask = 1 - torch.from_numpy(np.array(image, np.float32).reshape(image.height, image.width, -1)[..., 0]) / 255
        elif not isinstance(mask, Tensor):
            raise TypeError(f"masks hold a {type(mask).__name__}; each must be a Tensor or str, a path")
        found.append(mask.float())
    if len({mask.shape for mask in found}) != 1:
        raise ArgumentError(f"masks have shapes {[list(mask.shape) for mask in found]}; give at least one, all of equal shapes")
    return torch.stack(found).amax(0).clamp(0, 1)
