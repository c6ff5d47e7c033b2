"""The photometric loss (1 - λ) L1 + λ (1 - SSIM), fused with its gradient, as training records it (kernels/loss_sweeps.slang).
Another loss of pixels may take the place of L1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.fit.psnr import psnr_of
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.gpu.sources import constant
from splat_py.shaders import ShaderModule
from splat_py.user_types import user_type

CHANNELS, _RUN, _MOMENTS, _ADJOINTS = (constant("kernels/loss", name) for name in ("CHANNELS", "RUN", "MOMENTS", "ADJOINTS"))
_RADIUS = constant("splat/ssim", "SSIM_RADIUS")
# Pixels across the window of SSIM.
WINDOW = 2 * _RADIUS + 1
# Of the loss's sums: a row for each of the places that workgroups take turns to add to.
SUMS: tuple[int, int] = (constant("kernels/loss", "SLOTS"), 4)
# Of each channel, in the two arrays that sweeps leave for the next.
FLOATS_A_PIXEL = (_MOMENTS, _ADJOINTS)
# Rows beside a band that its gradient depends on: a window's radius for SSIM and one for its adjoint, in whole runs, so that
# every thread does the same arithmetic as without bands.
_MARGIN = -(-2 * _RADIUS // _RUN) * _RUN
# Of the largest buffer: images of up to 8.9 megapixels are one band.
BAND_BYTES = 1 << 29


@dataclass(frozen=True)
class LossValues:
    """The loss and what it is made of."""

    loss: float
    # Means over pixels and channels; `l1` is that of the pixel loss, whichever it is.
    l1: float
    ssim: float
    # Over those pixels that count, dB; NaN if none does.
    psnr: float

    @classmethod
    def mean(cls, values: Sequence[LossValues], total: Callable[[list[float]], list[float]] = list) -> LossValues:
        """Means over photographs; `total` adds up sums of several processes."""
        known = [value.psnr for value in values if not math.isnan(value.psnr)]
        sums = [sum(value.loss for value in values), sum(value.l1 for value in values), sum(value.ssim for value in values)]
        loss, l1, ssim, psnr, count, compared = total([*sums, sum(known), len(values), len(known)])
        return cls(loss / count, l1 / count, ssim / count, psnr / compared if compared else math.nan)


@dataclass(frozen=True)
class _Band:
    """Rows `first` to `end` of an image, and those that they depend on, `rows` of them from `top`."""

    top: int
    rows: int
    first: int
    end: int


def _bands(width: int, height: int, most_bytes: int, channels: int = CHANNELS) -> list[_Band]:
    """An image in as few bands as buffers of so many bytes allow, or of one run of rows each."""
    most_rows = most_bytes // (_MOMENTS * width * channels * 4)
    if height <= most_rows:
        return [_Band(0, height, 0, height)]
    step = max((most_rows - 2 * _MARGIN) // _RUN, 1) * _RUN
    bands = []
    for first in range(0, height, step):
        top, end = max(first - _MARGIN, 0), min(first + step, height)
        bands.append(_Band(top, min(end + _MARGIN, height) - top, first, end))
    return bands


# Types in slang/splat/pixel_loss.slang, which are means over channels.
PIXEL_LOSSES = ("L1", "L2", "Charbonnier")
# Of a vector in Slang.
_MOST_CHANNELS = 4


def pixel_loss_type(pixel_loss: Any) -> str | UserType:
    """A built-in loss' name, or a caller's own type that implements IPixelLoss.

    Raises:
        SplatError: it is neither.
    """
    if isinstance(pixel_loss, UserType | ShaderModule):
        return user_type(pixel_loss, "IPixelLoss")
    if not isinstance(pixel_loss, str) or pixel_loss not in PIXEL_LOSSES:
        given = repr(pixel_loss) if isinstance(pixel_loss, str) else f"a {type(pixel_loss).__name__}"
        raise SplatError(f"pixel_loss is {given}; use {', '.join(PIXEL_LOSSES)}, or a type from splat_py.shaders.source")
    return pixel_loss


@dataclass(frozen=True)
class Comparison:
    """How images are compared.

    Attributes:
        pixel_weight, ssim_weight: the gradient is that of pixel_weight · mean loss(x, y) + ssim_weight · mean SSIM(x, y).
        channels: of the images.
        packed: y is bytes with weights as from `pack`, or else the bits of floats in x's layout.
        whole_windows: SSIM is of those windows only that lie in the image, or else of all, with zeros outside.
        pixel_loss: implements IPixelLoss.
    """

    pixel_weight: float
    ssim_weight: float
    channels: int = CHANNELS
    packed: bool = True
    whole_windows: bool = False
    pixel_loss: str | UserType = "L1"

    def loss_constants(self, swapped: bool) -> dict[str, bool | str | UserType]:
        """What kernels that evaluate the pixels' loss are specialised by."""
        if isinstance(self.pixel_loss, UserType):
            constants: dict[str, bool | str | UserType] = {"PixelLoss": self.pixel_loss, "JOINT": True}
            return constants | ({"SWAPPED": True} if swapped else {})
        # Those do not mind in which order their arguments come.
        return {} if self.pixel_loss == "L1" else {"PixelLoss": self.pixel_loss}


class Sweeps:
    """The four sweeps over images of one size.

    Args:
        band_bytes: larger images are compared in several bands, so that no buffer takes more.

    Raises:
        SplatError: the images are too large for the device, or have more channels than a caller's own loss takes.
    """

    def __init__(self, device: Device, width: int, height: int, comparison: Comparison, band_bytes: int = BAND_BYTES) -> None:
        self.width, self.height = width, height
        device.memory.limits.check_images(1, height, width, comparison.channels)
        if isinstance(comparison.pixel_loss, UserType) and comparison.channels > _MOST_CHANNELS:
            raise SplatError(
                f"images has {comparison.channels} channels; a pixel loss of your own takes {_MOST_CHANNELS} at most, "
                f"{', '.join(PIXEL_LOSSES)} any number"
            )
        self._comparison = comparison
        self._module = "cpu/loss" if device.software else "loss"
        constants = {"CHANNELS": comparison.channels, "PACKED": comparison.packed}
        self._constants = constants if constants != {"CHANNELS": CHANNELS, "PACKED": True} else {}
        self._ssim_constants = {"WHOLE_WINDOWS": True} if comparison.whole_windows else {}
        self._ssim_constants |= {} if device.native_float_atomics else {"NATIVE_ATOMICS": False}
        self._bands = _bands(width, height, band_bytes, comparison.channels)
        rows = max(band.rows for band in self._bands)
        self._along_rows = device.memory.empty((_MOMENTS, rows, width, comparison.channels))
        self._adjoints = device.memory.empty((_ADJOINTS, rows, width, comparison.channels))

    @property
    def count(self) -> int:
        """Numbers in an image."""
        return self.width * self.height * self._comparison.channels

    @property
    def ssim_count(self) -> int:
        """Values of SSIM in an image."""
        border = WINDOW - 1 if self._comparison.whole_windows else 0
        return (self.width - border) * (self.height - border) * self._comparison.channels

    def record(
        self, recorder: Recorder, x: Array, y: Array, sums: Array, v_x: Array | None, image: int = 0, swapped: bool = False
    ) -> None:
        """Add to `sums`, `SUMS` float32, and write ∂/∂x to `v_x`, if there is one.

        Args:
            x, v_x: [images, H, W, channels] float32.
            y: [images, H, W] uint32 from `pack`; not packed, the `bits` of an array as x.
            image: which one of them.
            swapped: the pixel loss is of y and x.
        """
        entries = ("momentsAlongRows", "ssimAlongColumns", "adjointsAlongRows", "lossGradient")
        buffers = {"renders": x, "photographs": y, "vRenders": v_x, "sums": sums, "sumBits": sums.bits}
        for band in self._bands:
            for entry in entries if v_x is not None else entries[:2]:
                self._dispatch(recorder, entry, band, buffers, image, self._comparison.loss_constants(swapped))

    def _dispatch(
        self,
        recorder: Recorder,
        entry: str,
        band: _Band,
        buffers: dict[str, Array | None],
        image: int,
        constants: dict[str, bool | str | UserType],
    ) -> None:
        runs = -(-self.width // _RUN) * band.rows if entry.endswith("Rows") else -(-band.rows // _RUN) * self.width
        recorder.dispatch(
            self._module,
            entry,
            linear_groups(runs * self._comparison.channels),
            {
                "width": self.width,
                "height": self.height,
                "pixelWeight": self._comparison.pixel_weight / self.count,
                "ssimWeight": self._comparison.ssim_weight / self.ssim_count,
                "firstPixel": (image * self.height + band.top) * self.width,
                "top": band.top,
                "rows": band.rows,
                "bandFirst": band.first,
                "bandEnd": band.end,
            },
            buffers | {"rowMaps": self._along_rows, "adjoints": self._adjoints},
            **self._constants,
            **(self._ssim_constants if entry == "ssimAlongColumns" else {}),
            **constants,
        )


class PhotometricLoss:
    """The loss for images of one size; arguments and errors as of `Sweeps`."""

    def __init__(
        self,
        device: Device,
        width: int,
        height: int,
        ssim_lambda: float,
        band_bytes: int = BAND_BYTES,
        pixel_loss: str | UserType = "L1",
    ) -> None:
        self.width, self.height, self.ssim_lambda = width, height, ssim_lambda
        comparison = Comparison(1 - ssim_lambda, -ssim_lambda, pixel_loss=pixel_loss)
        self._sweeps = Sweeps(device, width, height, comparison, band_bytes)
        self.v_render = device.memory.empty((1, height, width, CHANNELS))

    def record(self, recorder: Recorder, render: Array, photograph: Array, sums: Array) -> None:
        """Leave ∂loss/∂render in `v_render` and the loss's sums in `sums`, `SUMS` float32, for `values`.

        Args:
            render: [1, H, W, 3] float32.
            photograph: [H, W] uint32 from `pack`.
        """
        recorder.stage("loss")
        recorder.clear(sums)
        self._sweeps.record(recorder, render, photograph, sums, self.v_render)

    def values(self, sums: Array) -> LossValues:
        """Read what `record` left in `sums`, once it has run."""
        absolute, similarity, squared, weight = (float(x) for x in sums.numpy().sum(0, dtype=np.float64))
        count = self.width * self.height * CHANNELS
        l1, ssim = absolute / count, similarity / count
        loss = (1 - self.ssim_lambda) * l1 + self.ssim_lambda * (1 - ssim)
        return LossValues(loss, l1, ssim, psnr_of(squared / weight) if weight else math.nan)


def pack(photograph: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """A photograph [H, W, 4] (rgb, weight) as the loss reads it: [H, W] uint32, red in the lowest byte."""
    return np.ascontiguousarray(photograph).view("<u4")[..., 0]
