"""The photometric loss (1 - λ) L1 + λ (1 - SSIM), fused with its gradient (kernels/loss.slang)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splat_py.fit.psnr import psnr_of
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant

_CHANNELS, _RUN, _MOMENTS, _ADJOINTS = (constant("kernels/loss", name) for name in ("CHANNELS", "RUN", "MOMENTS", "ADJOINTS"))
# Of the loss's sums: a row for each of the places that workgroups take turns to add to.
SUMS: tuple[int, int] = (constant("kernels/loss", "SLOTS"), 4)
# Rows beside a band that its gradient depends on: a window's radius for SSIM and one for its adjoint, in whole runs, so that
# every thread does the same arithmetic as without bands.
_MARGIN = -(-2 * constant("splat/ssim", "SSIM_RADIUS") // _RUN) * _RUN
# Of the largest buffer: images of up to 8.9 megapixels are one band.
_BAND_BYTES = 1 << 29


@dataclass(frozen=True)
class LossValues:
    """The loss and what it is made of."""

    loss: float
    # Means over pixels and channels; PSNR over those pixels that count, in dB, or NaN if none does.
    l1: float
    ssim: float
    psnr: float


@dataclass(frozen=True)
class _Band:
    """Rows `first` to `end` of an image, and those that they depend on, `rows` of them from `top`."""

    top: int
    rows: int
    first: int
    end: int


def _bands(width: int, height: int, most_bytes: int) -> list[_Band]:
    """An image in as few bands as buffers of so many bytes allow, or of one run of rows each."""
    most_rows = most_bytes // (_MOMENTS * width * _CHANNELS * 4)
    if height <= most_rows:
        return [_Band(0, height, 0, height)]
    step = max((most_rows - 2 * _MARGIN) // _RUN, 1) * _RUN
    bands = []
    for first in range(0, height, step):
        top, end = max(first - _MARGIN, 0), min(first + step, height)
        bands.append(_Band(top, min(end + _MARGIN, height) - top, first, end))
    return bands


class PhotometricLoss:
    """The loss for images of one size.

    Args:
        band_bytes: larger images are compared in several bands, so that no buffer takes more.

    Raises:
        SplatError: the images are too large for the device.
    """

    def __init__(
        self, device: Device, width: int, height: int, ssim_lambda: float, band_bytes: int = _BAND_BYTES
    ) -> None:
        self.width, self.height, self.ssim_lambda = width, height, ssim_lambda
        self._constants = {} if device.native_float_atomics else {"NATIVE_ATOMICS": False}
        device.memory.limits.check_images(1, height, width)
        empty = device.memory.empty
        self._bands = _bands(width, height, band_bytes)
        rows = max(band.rows for band in self._bands)
        self._along_rows = empty((_MOMENTS, rows, width, _CHANNELS))
        self._adjoints = empty((_ADJOINTS, rows, width, _CHANNELS))
        self.v_render = empty((1, height, width, _CHANNELS))

    def record(self, recorder: Recorder, render: Array, photograph: Array, sums: Array) -> None:
        """Leave ∂loss/∂render in `v_render` and the loss's sums in `sums`, `SUMS` float32, for `values`.

        Args:
            render: [1, H, W, 3] float32.
            photograph: [H, W] uint32 from `pack`.
        """
        recorder.stage("loss")
        recorder.clear(sums)
        for band in self._bands:
            self._record_band(recorder, band, render, photograph, sums)

    def _record_band(self, recorder: Recorder, band: _Band, render: Array, photograph: Array, sums: Array) -> None:
        row_runs = band.rows * -(-self.width // _RUN) * _CHANNELS
        column_runs = self.width * -(-band.rows // _RUN) * _CHANNELS
        for entry, threads in (
            ("momentsAlongRows", row_runs),
            ("ssimAlongColumns", column_runs),
            ("adjointsAlongRows", row_runs),
            ("lossGradient", column_runs),
        ):
            recorder.dispatch(
                "loss",
                entry,
                linear_groups(threads),
                {
                    "width": self.width,
                    "height": self.height,
                    "ssimLambda": self.ssim_lambda,
                    "top": band.top,
                    "rows": band.rows,
                    "bandFirst": band.first,
                    "bandEnd": band.end,
                },
                {
                    "render": render,
                    "photograph": photograph,
                    "alongRows": self._along_rows,
                    "adjoints": self._adjoints,
                    "vRender": self.v_render,
                    "sums": sums,
                    "sumBits": sums.bits,
                },
                **(self._constants if entry == "ssimAlongColumns" else {}),
            )

    def values(self, sums: Array) -> LossValues:
        """Read what `record` left in `sums`, once it has run."""
        absolute, similarity, squared, weight = (float(x) for x in sums.numpy().sum(0, dtype=np.float64))
        count = self.width * self.height * _CHANNELS
        l1, ssim = absolute / count, similarity / count
        loss = (1 - self.ssim_lambda) * l1 + self.ssim_lambda * (1 - ssim)
        return LossValues(loss, l1, ssim, psnr_of(squared / weight) if weight else math.nan)


def pack(photograph: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """A photograph [H, W, 4] (rgb, weight) as the loss reads it: [H, W] uint32, red in the lowest byte."""
    return np.ascontiguousarray(photograph).view("<u4")[..., 0]
