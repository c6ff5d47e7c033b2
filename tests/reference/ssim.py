"""SSIM (Wang et al. 2004) with an 11×11 Gaussian window, and the training loss 0.8 L1 + 0.2 (1 − SSIM)."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tests.reference.arrays import Array, leaf

C1 = 0.01**2
C2 = 0.03**2
WINDOW = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
WINDOW /= WINDOW.sum()


def _blur(image: Tensor) -> Tensor:
    """Zero-padded window over [H, W, C]."""
    window = torch.from_numpy(np.outer(WINDOW, WINDOW))[None, None]
    return torch.nn.functional.conv2d(image.permute(2, 0, 1)[:, None], window, padding=5)[:, 0].permute(1, 2, 0)


def _similarity(x: Tensor, y: Tensor) -> Tensor:
    mx, my = _blur(x), _blur(y)
    a1, a2 = 2 * mx * my + C1, 2 * (_blur(x * y) - mx * my) + C2
    b1, b2 = mx * mx + my * my + C1, _blur(x * x) + _blur(y * y) - mx * mx - my * my + C2
    return a1 * a2 / (b1 * b2)


def ssim_map(x: Array, y: Array) -> Array:
    """SSIM [H, W, C] of every pixel and channel of images [H, W, C] in [0, 1]."""
    return _similarity(*(torch.as_tensor(image, dtype=torch.float64) for image in (x, y))).numpy()


def ssim(x: Array, y: Array) -> float:
    """Mean SSIM over pixels and channels."""
    return float(ssim_map(x, y).mean())


def _gradient(f: Callable[[Tensor], Tensor], x: Array) -> Array:
    image = leaf(x)
    return torch.autograd.grad(f(image), image)[0].numpy()


def ssim_backward(x: Array, y: Array) -> Array:
    """∂ssim/∂x [H, W, C]."""
    return _gradient(lambda image: _similarity(image, torch.as_tensor(y)).mean(), x)


def _loss(x: Tensor, y: Array, mask: Array | None) -> Tensor:
    weights = torch.as_tensor(np.ones(y.shape[:2]) if mask is None else mask)[..., None]
    x, truth = x * weights, torch.as_tensor(y) * weights
    return 0.8 * (x - truth).abs().mean() + 0.2 * (1 - _similarity(x, truth).mean())


def l1_ssim_loss(x: Array, y: Array, mask: Array | None = None) -> float:
    """0.8 mean|x − y| + 0.2 (1 − ssim) of images [H, W, C].

    A mask [H, W] of weights multiplies both images first; the means still run over all pixels.
    """
    return float(_loss(torch.as_tensor(x), y, mask))


def l1_ssim_loss_backward(x: Array, y: Array, mask: Array | None = None) -> Array:
    """∂loss/∂x [H, W, C]; |·| has gradient 0 at 0."""
    return _gradient(lambda image: _loss(image, y, mask), x)
