"""The portable operator trained on a photograph: the flat colour that is least wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py import portable
from splat_py.fit.psnr import psnr_of
from splat_py.gpu.device import Device
from splat_py.scene.gaussians import Gaussians

# Steps, the share of the way that each goes, and how often a pass is timed.
_STEPS, _SHARE, _REPEATS = 40, 0.15, 5


@dataclass(frozen=True)
class FlatColor:
    """What came of it.

    Attributes:
        image: [H, W, 3], of one colour.
        curve: seconds since the beginning, and PSNR in dB.
        torch_ms, slang_ms: a pass and its gradient, either way; medians.
        difference: the largest one between the two ways' gradients, as a share of the largest gradient.
    """

    image: NDArray[np.float32]
    curve: list[tuple[float, float]]
    torch_ms: float
    slang_ms: float
    difference: float


def fit_flat_color(gaussians: Gaussians, photograph: NDArray[np.float32], device: Device) -> FlatColor:
    """Optimise the colours of Gaussians, white ones, so that their flat colour is like a photograph [H, W, 3]."""
    height, width, _ = photograph.shape
    target = torch.from_numpy(photograph)
    colors = torch.ones((len(gaussians), 3), requires_grad=True)

    ignored, opacities = (gaussians.means, gaussians.scales, gaussians.quats), gaussians.opacities[:, None]

    def picture(operator: Callable[..., Tensor]) -> Tensor:
        return operator(*ignored, opacities, colors, gaussians.sh, width, height).view(height, width, 4)[..., :3]

    def gradient(operator: Callable[..., Tensor]) -> Tensor:
        (v_colors,) = torch.autograd.grad(((picture(operator) - target) ** 2).mean(), colors)
        return v_colors

    def slang(*parts: object) -> Tensor:
        return portable.splat_slang(*parts, device=device)  # type: ignore[arg-type]

    gradients, milliseconds = [], []
    for operator in (portable.splat, slang):
        gradients.append(gradient(operator))
        samples = []
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            gradient(operator)
            samples.append((time.perf_counter() - begin) * 1e3)
        milliseconds.append(float(np.median(samples)))
    difference = float((gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max())
    # The mean colour moves by the rate times ∂L/∂mean · Σ opacity² / N², and ∂L/∂mean is two thirds of what it is wrong by.
    rate = 1.5 * _SHARE * len(gaussians) ** 2 / float((opacities**2).sum())
    curve, begin = [], time.perf_counter()
    for _ in range(_STEPS):
        loss = ((picture(portable.splat) - target) ** 2).mean()
        curve.append((time.perf_counter() - begin, psnr_of(loss.item())))
        (v_colors,) = torch.autograd.grad(loss, colors)
        colors = (colors - rate * v_colors).detach().requires_grad_()
    return FlatColor(picture(portable.splat).detach().numpy(), curve, milliseconds[0], milliseconds[1], difference)
