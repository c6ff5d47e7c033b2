"""The photometric loss (1 - λ) L1 + λ (1 - SSIM), fused with its gradient, for training and for torch
(kernels/loss_sweeps.slang). Another pixel loss may replace L1.

SSIM is that of Wang et al. 2004 for values from 0 to 1: a Gaussian window of 11×11 pixels with σ = 1.5, channel by channel.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.fit.steps import psnr_of
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import first_derivative, graph_break
from splat_py.gpu.device import Device, Tuning, device_for
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.gpu.sources import constant
from splat_py.gpu.tensors import as_tensor
from splat_py.shaders.custom_types import PIXEL_LOSS
from splat_py.shaders.functions import ShaderModule
from splat_py.shaders.loading import built_in_or_own

CHANNELS, _RUN, _MOMENTS, _ADJOINTS = (constant("kernels/loss", name) for name in ("CHANNELS", "RUN", "MOMENTS", "ADJOINTS"))
_TILE_HEIGHT = constant("kernels/loss", "TILE_HEIGHT")
# Entry points by `Tuning.loss_threads`; the second half differentiates.
_IN_TILES = "ssimInTiles", "gradientInTiles"
_IN_BUFFERS = "momentsAlongRows", "ssimAlongColumns", "adjointsAlongRows", "lossGradient"
_RADIUS = constant("splat/ssim", "SSIM_RADIUS")
# Pixels across the window of SSIM.
WINDOW = 2 * _RADIUS + 1
# Shape of the loss's sums: one row for each slot; workgroups add to the slots in turn.
SUMS: tuple[int, int] = (constant("kernels/loss", "SLOTS"), 4)
# Rows above and below a band that its gradient depends on: a window's radius for SSIM and one for its adjoint, rounded up to
# whole runs, so that every thread does the same arithmetic as without bands.
_MARGIN = -(-2 * _RADIUS // _RUN) * _RUN
# The largest buffer: images of up to 8.9 megapixels are one band.
BAND_BYTES = 1 << 29


@dataclass(frozen=True)
class LossValues:
    """The loss and its parts."""

    loss: float
    # Means over pixels and channels; `l1` is the mean of the pixel loss, whichever it is.
    l1: float
    ssim: float
    # dB, over the pixels that count; NaN if none does.
    psnr: float

    @classmethod
    def mean(cls, values: Sequence[Self], total: Callable[[list[float]], list[float]] = list) -> Self:
        """Average over photographs; `total` adds sums up over several processes."""
        known = [value.psnr for value in values if not math.isnan(value.psnr)]
        sums = [sum(value.loss for value in values), sum(value.l1 for value in values), sum(value.ssim for value in values)]
        loss, l1, ssim, psnr, count, compared = total([*sums, sum(known), len(values), len(known)])
        return cls(loss / count, l1 / count, ssim / count, psnr / compared if compared else math.nan)


@dataclass(frozen=True)
class _Band:
    """Rows `first` to `end` of an image, which depend on `rows` rows from `top`."""

    top: int
    rows: int
    first: int
    end: int


def _bands(width: int, height: int, most_bytes: int, channels: int = CHANNELS) -> list[_Band]:
    """Split an image into as few bands as buffers of `most_bytes` allow; a band has at least one run of rows."""
    most_rows = most_bytes // (_MOMENTS * width * channels * 4)
    if height <= most_rows:
        return [_Band(0, height, 0, height)]
    step = max((most_rows - 2 * _MARGIN) // _RUN, 1) * _RUN
    bands = []
    for first in range(0, height, step):
        top, end = max(first - _MARGIN, 0), min(first + step, height)
        bands.append(_Band(top, min(end + _MARGIN, height) - top, first, end))
    return bands


def floats_a_pixel(tuning: Tuning) -> tuple[int, ...]:
    """Floats per channel in each array that a dispatch leaves for the next; tiles keep moments in group-shared memory."""
    return (_ADJOINTS,) if tuning.loss_threads else (_ADJOINTS, _MOMENTS)


Padding = Literal["same", "valid", "reflect"]
# The longest vector in Slang.
_MOST_CHANNELS = 4


@dataclass(frozen=True)
class Comparison:
    """The way in which images are compared; kernels are specialised by it.

    Attributes:
        pixel_weight, ssim_weight: the gradient is that of pixel_weight · mean loss(x, y) + ssim_weight · mean SSIM(x, y).
        channels: of the images.
        packed: True if y is bytes with weights from `pack`; else it is the bits of floats in x's layout.
        whole_windows: True if SSIM uses only windows inside the image; else it uses all, with zeros outside.
        pixel_loss: a built-in type's name, or a type that implements IPixelLoss.
        swapped: True if the pixel loss gets (y, x).
    """

    pixel_weight: float
    ssim_weight: float
    channels: int = CHANNELS
    packed: bool = True
    whole_windows: bool = False
    pixel_loss: str | UserType = "L1"
    swapped: bool = False
    native_atomics: bool = True

    @property
    def joint(self) -> bool:  # JOINT of the kernels
        return isinstance(self.pixel_loss, UserType)


class SsimPasses:
    """The sweeps over images of one size; large images are swept in bands, so that no buffer exceeds `BAND_BYTES`.
    SplatError if the images are too large for the device, or have more channels than a user's pixel loss accepts."""

    def __init__(self, device: Device, width: int, height: int, comparison: Comparison) -> None:
        self.width, self.height, channels = width, height, comparison.channels
        device.memory.limits.check_images(1, height, width, channels)
        if comparison.joint and channels > _MOST_CHANNELS:
            raise SplatError(
                f"images has {channels} channels; a pixel loss of your own accepts {_MOST_CHANNELS} at most, "
                f"{', '.join(PIXEL_LOSS.names)} any number"
            )
        self._threads = device.tuning.loss_threads
        border = WINDOW - 1 if comparison.whole_windows else 0
        # Numbers in an image, and values of SSIM.
        self.count, self.ssim_count = width * height * channels, (width - border) * (height - border) * channels
        self._options = replace(
            comparison,
            pixel_weight=comparison.pixel_weight / self.count,
            ssim_weight=comparison.ssim_weight / self.ssim_count,
            native_atomics=device.native_float_atomics,
        )
        self._bands = _bands(width, height, BAND_BYTES, channels)
        rows = max(band.rows for band in self._bands)
        self._adjoints, *row_maps = (device.memory.empty((n, rows, width, channels)) for n in floats_a_pixel(device.tuning))
        self._own: dict[str, Any] = {"row_maps": row_maps[0]} if row_maps else {"LOSS_THREADS": self._threads}

    def record(
        self, recorder: Recorder, x: Array, y: Array, sums: Array, v_x: Array | None, image: int = 0, swapped: bool = False
    ) -> None:
        """Add an image's part to `sums`, `SUMS` float32, and write ∂/∂x to `v_x`, if it is given: x and v_x are
        [images, H, W, channels] float32, y [images, H, W] uint32 from `pack` or, if not packed, the words of an array like x.
        `swapped` exchanges the arguments of a user's pixel loss."""
        options = replace(self._options, swapped=swapped and self._options.joint)
        entries = _IN_TILES if self._threads else _IN_BUFFERS
        arrays = {"renders": x, "photographs": y, "v_renders": v_x, "adjoints": self._adjoints, **self._own}
        for band in self._bands:
            for entry in entries if v_x is not None else entries[: len(entries) // 2]:
                recorder.dispatch(
                    "loss" if self._threads else "cpu/loss",
                    entry,
                    self._groups(entry, band),
                    options=options,
                    band=band,
                    width=self.width,
                    height=self.height,
                    first_pixel=(image * self.height + band.top) * self.width,
                    sums=sums,
                    sum_bits=sums.as_uint32,
                    **cast(Any, arrays),
                )

    def _groups(self, entry: str, band: _Band) -> tuple[int, int, int]:
        channels = self._options.channels
        if self._threads:
            return channels, -(-self.width // (self._threads * _RUN // _TILE_HEIGHT)), -(-band.rows // _TILE_HEIGHT)
        runs = -(-self.width // _RUN) * band.rows if entry.endswith("Rows") else -(-band.rows // _RUN) * self.width
        return linear_groups(runs * channels)


class PhotometricLoss:
    """The training loss for images of one size; errors as for `SsimPasses`."""

    def __init__(self, device: Device, width: int, height: int, ssim_lambda: float, pixel_loss: str | UserType = "L1") -> None:
        self.ssim_lambda = ssim_lambda
        comparison = Comparison(1 - ssim_lambda, -ssim_lambda, pixel_loss=pixel_loss)
        self._sweeps = SsimPasses(device, width, height, comparison)
        self.v_render = device.memory.empty((1, height, width, CHANNELS))

    def record(self, recorder: Recorder, render: Array, photograph: Array, sums: Array) -> None:
        """Write ∂loss/∂render [1, H, W, 3] to `v_render` and the loss's sums to `sums`, `SUMS` float32, for `values`. The
        photograph is [H, W] uint32 from `pack`."""
        recorder.stage("loss")
        recorder.clear(sums)
        self._sweeps.record(recorder, render, photograph, sums, self.v_render)

    def values(self, sums: Array) -> LossValues:
        """Read the loss from `sums`, after the recording of `record` has run."""
        absolute, similarity, squared, weight = (float(x) for x in sums.numpy().sum(0, dtype=np.float64))
        l1, ssim = absolute / self._sweeps.count, similarity / self._sweeps.count
        loss = (1 - self.ssim_lambda) * l1 + self.ssim_lambda * (1 - ssim)
        return LossValues(loss, l1, ssim, psnr_of(squared / weight) if weight else math.nan)


def pack(photograph: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Pack a photograph [H, W, 4] (rgb, weight) for the loss: [H, W] uint32, red in the lowest byte."""
    return np.ascontiguousarray(photograph).view("<u4")[..., 0]


@graph_break
def photometric_loss(
    images: Tensor,
    photographs: Tensor,
    ssim_lambda: float = 0.2,
    *,
    padding: Literal["same", "valid"] = "same",
    pixel_loss: str | UserType | ShaderModule = "L1",
) -> Tensor:
    """Return (1 - λ) mean |images - photographs| + λ (1 - SSIM), the training loss (Kerbl et al. 2023, equation 7).

    Args:
        images, photographs: [..., H, W, C] float32 of any size and number of channels, for example those of `rasterization`.
            SSIM expects values from 0 to 1.
        ssim_lambda: λ, from 0 to 1.
        padding: of SSIM, as for `ssim`; training uses "same".
        pixel_loss: "L1", |x - y|; "L2", (x - y)²; "Charbonnier", √((x - y)² + 0.001²) (Charbonnier et al. 1994); or your own
            Slang with a type that implements `IPixelLoss` (slang/splat/pixel_loss.slang), for up to 4 channels.

    Returns:
        A scalar, the mean over all images. NaN in an image makes it NaN.

    Differentiable once, in both; |x - y| has the gradient 0 where x = y.

    Raises:
        SplatError: shapes differ or are not [..., H, W, C], the dtype is not float32, λ is out of range, or there is no such
            pixel loss.
    """
    if not 0 <= ssim_lambda <= 1:
        raise SplatError(f"ssim_lambda is {ssim_lambda}; it must lie between 0 and 1")
    _check("photographs", images, photographs, padding, {"same": 1, "valid": WINDOW})
    loss = built_in_or_own("pixel_loss", pixel_loss, PIXEL_LOSS.names, *PIXEL_LOSS.interfaces)
    comparison = Comparison(1 - ssim_lambda, -ssim_lambda, whole_windows=padding == "valid", pixel_loss=loss)
    return _compare(images, photographs, comparison) + ssim_lambda


@graph_break
def ssim(images: Tensor, others: Tensor, *, padding: Padding = "reflect") -> Tensor:
    """Return the structural similarity, 1 for equal images.

    Args:
        images, others: [..., H, W, C] float32 of any number of channels, values from 0 to 1.
        padding: the values that windows near the border get outside the image. "reflect": the image mirrored at its outermost
            pixels, as in torchmetrics; sides of 6 pixels at least. "same": zeros, as in training. "valid": the mean is only
            over pixels whose window lies in the image, as in the paper; sides of 11 pixels at least.

    Returns:
        A scalar, the mean over all images, pixels and channels. NaN in an image makes it NaN.

    Differentiable once, in both.

    Raises:
        SplatError: shapes differ, are not [..., H, W, C] or are too small; or the dtype is not float32.
    """
    _check("others", images, others, padding, {"same": 1, "valid": WINDOW, "reflect": _RADIUS + 1})
    if padding == "reflect":
        # Pad with a window's radius of mirrored pixels: [B, H + 10, W + 10, C].
        batches = (pixels.reshape(-1, *pixels.shape[-3:]).permute(0, 3, 1, 2) for pixels in (images, others))
        images, others = (F.pad(batch, (_RADIUS,) * 4, mode="reflect").permute(0, 2, 3, 1) for batch in batches)
    return _compare(images, others, Comparison(0.0, 1.0, whole_windows=padding != "same"))


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
    # The backward pass needs no pixels of these, only their autograd history (`first_derivative`).
    sources = (images.narrow(0, 0, 0).clone() for images in (x, y))
    return cast(Tensor, _Compare.apply(x, y, comparison, *sources))


class _Compare(torch.autograd.Function):
    """A weighted sum of the mean pixel loss and of mean SSIM(x, y), which is symmetric."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weights: Comparison, *sources: Tensor) -> Tensor:
        height, width, channels = x.shape[-3:]
        images = x.numel() // (height * width * channels)
        device = device_for(x)
        device.memory.limits.check_images(images, height, width, channels)
        pixel_weight, ssim_weight = weights.pixel_weight / images, weights.ssim_weight / images
        comparison = replace(weights, pixel_weight=pixel_weight, ssim_weight=ssim_weight, channels=channels, packed=False)
        sweeps = SsimPasses(device, width, height, comparison)
        arrays = [device.memory.array(tensor) for tensor in (x, y)]
        sums = [device.memory.empty(SUMS) for _ in arrays]
        gradients = [device.memory.empty(array.shape) if ctx.needs_input_grad[i] else None for i, array in enumerate(arrays)]

        with device.recording() as recorder:
            # The gradient for y is the gradient for x with both exchanged.
            for i, (of, other, v_of) in enumerate(zip(arrays, reversed(arrays), gradients, strict=True)):
                if i == 0 or v_of is not None:
                    recorder.clear(sums[i])
                    for image in range(images):
                        sweeps.record(recorder, of, other.as_uint32, sums[i], v_of, image, swapped=i == 1)

        ctx.save_for_backward(*(None if array is None else as_tensor(array, x) for array in gradients), *sources)
        pixels, similarity = (float(total) for total in sums[0].numpy().sum(0, dtype=np.float64)[:2])
        # The sums are over all images, the weights for one image.
        return x.new_tensor(pixel_weight * pixels / sweeps.count + ssim_weight * similarity / sweeps.ssim_count)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v_value: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if gradient is None else v_value * gradient for gradient in ctx.saved_tensors[:2]), *[None] * 3
