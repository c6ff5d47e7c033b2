"""Losses of pixels and SSIM of images for torch, by the kernels that training uses (kernels/loss_sweeps.slang).

SSIM is that of Wang et al. 2004 for values from 0 to 1: a Gaussian window of 11×11 pixels with σ = 1.5, channel by channel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.autograd import first_derivative, opaque
from splat_py.gpu.device import device_for
from splat_py.gpu.kernels import UserType
from splat_py.shaders import ShaderModule
from splat_py.splats.loss import SUMS, WINDOW, Comparison, Sweeps, pixel_loss_type
from splat_py.splats.tensors import as_tensor

Padding = Literal["same", "valid", "reflect"]
_RADIUS = WINDOW // 2


@opaque
def photometric_loss(
    images: Tensor,
    photographs: Tensor,
    ssim_lambda: float = 0.2,
    *,
    padding: Literal["same", "valid"] = "same",
    pixel_loss: str | UserType | ShaderModule = "L1",
) -> Tensor:
    """(1 - λ) mean |images - photographs| + λ (1 - SSIM), as training minimises it (Kerbl et al. 2023, equation 7).

    Args:
        images, photographs: [..., H, W, C] float32 of any size and number of channels, for example those of `rasterization`.
            SSIM expects values from 0 to 1.
        ssim_lambda: λ, from 0 to 1.
        padding: of SSIM, as `ssim` takes it; training uses "same".
        pixel_loss: in the place of |x - y|, "L1": "L2", (x - y)²; "Charbonnier", √((x - y)² + 0.001²) (Charbonnier et al.
            1994); or Slang of yours with a type that implements `IPixelLoss` (slang/splat/pixel_loss.slang), for up to 4
            channels.

    Returns:
        A scalar, the mean over all images. NaN in an image makes it NaN.

    Differentiable once, in both; |x - y| has the gradient 0 where x = y.

    Raises:
        SplatError: shapes that differ, or are no images; another type than float32; λ out of range; no such pixel loss.
    """
    if not 0 <= ssim_lambda <= 1:
        raise SplatError(f"ssim_lambda is {ssim_lambda}; it must lie between 0 and 1")
    _check("photographs", images, photographs, padding, {"same": 1, "valid": WINDOW})
    loss = pixel_loss_type(pixel_loss)
    comparison = Comparison(1 - ssim_lambda, -ssim_lambda, whole_windows=padding == "valid", pixel_loss=loss)
    return _compare(images, photographs, comparison) + ssim_lambda


@opaque
def ssim(images: Tensor, others: Tensor, *, padding: Padding = "reflect") -> Tensor:
    """Structural similarity, 1 for images that are the same.

    Args:
        images, others: [..., H, W, C] float32 of any number of channels, values from 0 to 1.
        padding: what the windows of pixels near the border see outside the image. "reflect": the image again, mirrored at the
            outermost pixels, as torchmetrics does; sides of 6 pixels at least. "same": zeros, as training does. "valid": the
            mean is only over pixels whose window lies in the image, as in the paper; sides of 11 pixels at least.

    Returns:
        A scalar, the mean over all images, pixels and channels. NaN in an image makes it NaN.

    Differentiable once, in both.

    Raises:
        SplatError: shapes that differ, or are no images or too small ones; another type than float32.
    """
    _check("others", images, others, padding, {"same": 1, "valid": WINDOW, "reflect": _RADIUS + 1})
    if padding == "reflect":
        images, others = _reflect(images), _reflect(others)
    return _compare(images, others, Comparison(0.0, 1.0, whole_windows=padding != "same"))


def _reflect(images: Tensor) -> Tensor:
    """With a window's radius of mirrored pixels around: [B, H + 10, W + 10, C]."""
    batch = images.reshape(-1, *images.shape[-3:]).permute(0, 3, 1, 2)
    return F.pad(batch, (_RADIUS,) * 4, mode="reflect").permute(0, 2, 3, 1)


def _check(name: str, images: Tensor, others: Tensor, padding: str, smallest: dict[str, int]) -> None:
    for which, tensor in (("images", images), (name, others)):
        if not isinstance(tensor, Tensor):
            raise SplatError(f"{which} is a {type(tensor).__name__}; give a torch tensor")
        if tensor.dtype != torch.float32:
            raise SplatError(f"{which} has dtype {tensor.dtype}; convert it to torch.float32, bytes divided by 255")
    if images.dim() < 3 or 0 in images.shape:
        raise SplatError(f"images has shape {list(images.shape)}; expected [..., H, W, C] with at least one pixel")
    if others.shape != images.shape:
        raise SplatError(f"{name} has shape {list(others.shape)} and images {list(images.shape)}; they must be the same")
    if others.device != images.device:
        raise SplatError(f"{name} is on {others.device} and images on {images.device}; move them to one device")
    if padding not in smallest:
        raise SplatError(f"padding is {padding!r}; use one of {', '.join(smallest)}")
    side = smallest[padding]
    if min(images.shape[-3:-1]) < side:
        raise SplatError(f"images has shape {list(images.shape)}; padding={padding!r} needs {side}×{side} pixels, use 'same'")


def _compare(x: Tensor, y: Tensor, comparison: Comparison) -> Tensor:
    # The backward pass needs none of their pixels, but has to know where they come from (`first_derivative`).
    sources = (images.narrow(0, 0, 0).clone() for images in (x, y))
    return cast(Tensor, _Compare.apply(x, y, comparison, *sources))


class _Compare(torch.autograd.Function):
    """A weighted sum of the mean of a pixel loss and of mean SSIM(x, y), which is symmetric."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weights: Comparison, *sources: Tensor) -> Tensor:
        height, width, channels = x.shape[-3:]
        images = x.numel() // (height * width * channels)
        device = device_for(x)
        device.memory.limits.check_images(images, height, width, channels)
        pixel_weight, ssim_weight = weights.pixel_weight / images, weights.ssim_weight / images
        comparison = replace(weights, pixel_weight=pixel_weight, ssim_weight=ssim_weight, channels=channels, packed=False)
        sweeps = Sweeps(device, width, height, comparison)
        arrays = [device.memory.array(tensor.detach().contiguous()) for tensor in (x, y)]
        sums = [device.memory.empty(SUMS) for _ in arrays]
        gradients = [device.memory.empty(array.shape) if ctx.needs_input_grad[i] else None for i, array in enumerate(arrays)]

        recorder = device.record()
        # The gradient for y is that for x with both exchanged.
        for i, (of, other, v_of) in enumerate(zip(arrays, reversed(arrays), gradients, strict=True)):
            if i == 0 or v_of is not None:
                recorder.clear(sums[i])
                for image in range(images):
                    sweeps.record(recorder, of, other.bits, sums[i], v_of, image, swapped=i == 1)
        recorder.submit()

        ctx.save_for_backward(*(None if array is None else as_tensor(array, x) for array in gradients), *sources)
        pixels, similarity = (float(total) for total in sums[0].numpy().sum(0, dtype=np.float64)[:2])
        # The sums are over all images, the weights for one of them.
        return x.new_tensor(pixel_weight * pixels / sweeps.count + ssim_weight * similarity / sweeps.ssim_count)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v_value: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if gradient is None else v_value * gradient for gradient in ctx.saved_tensors[:2]), *[None] * 3
