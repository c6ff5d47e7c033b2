"""Fitting of blobs to a picture: initial blobs, and Adam steps of three kernels, plus a sort if there are lists to sort."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import gaussian_filter

from splat_py.base.errors import SplatError
from splat_py.base.fields import LARGEST, check_number
from splat_py.fit.process import kept_checkpoint
from splat_py.fit.steps import Adam, AdamArrays, Overflow, StepsInFlight, check_finite
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, get_device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.image.options import Method, Rates
from splat_py.image.pictures import FitCheckpoint, ImageFit, Picture, fingerprint, psnr, read_picture, to_picture
from splat_py.image.rasterizers import Blobs, Rasterizer, check_shape, draw, rasterizer_for

_EPSILON = 1e-8
# Gradients of a mean shrink with the number of pixels. Above so many pixels ε shrinks too, so that it does not slow the fit.
_EPSILON_PIXELS = 1 << 14
# More than pictures have pixels; 2 GiB hold the parameters of so many blobs several times.
_MOST_BLOBS = 10_000_000
_MARGIN, _LARGEST_DEVIATION, _PIXEL_VARIANCE = (
    constant("splat/blob2d", name) for name in ("MARGIN", "LARGEST_DEVIATION", "PIXEL_VARIANCE")
)
# Share of the blobs that are spread evenly.
_EVEN_SHARE = 0.1
# Initial standard deviation of a blob, as a share of the distance to its neighbours.
_DEVIATION = 0.8
_OPACITY = 0.9
# Distance of sampled values from the ends of a squashed range.
_MARGIN_OF_RANGE = 0.02


@dataclass(frozen=True)
class FitReport:
    """The fitted picture [H, W, 3] and its PSNR after `step` steps."""

    step: int
    psnr: float
    image: Picture


def adam_for(width: int, height: int) -> Adam:
    """Return the optimiser for a picture of this size."""
    return Adam(_EPSILON * min(1.0, _EPSILON_PIXELS / (width * height)))


@dataclass(frozen=True)
class FitStep:
    """Arrays that a step differentiates and updates."""

    rasterizer: Rasterizer
    target: Array  # [H, W, 3]
    parameters: Array  # [9, N]
    gradients: Array  # [9, N]
    moments: tuple[Array, ...]  # [9, N] twice
    status: Array  # [3] uint32 (kernels/status.slang)
    rates: Rates
    adam: Adam

    def record(self, recorder: Recorder, step: int, steps: int) -> None:
        """Record step number `step` of `steps`."""
        self.rasterizer.record_lists(recorder, self.parameters, self.status, step)
        self.rasterizer.record_gradients(recorder, self.parameters, self.target, self.gradients)
        recorder.stage("update")
        height, width, _ = self.target.shape
        recorder.dispatch(
            "blobs",
            "updateBlobs",
            linear_groups(self.parameters.shape[1]),
            blobs=Blobs(self.parameters, self.parameters.shape[1], width, height),
            rates=self.rates.times(self.rates.final ** (step / steps)),
            adam=self.adam.settings(step),
            status=self.status,
            learnt=AdamArrays(self.parameters, *self.moments),
            gradients=self.gradients,
        )


class ImageFitter(StepsInFlight):
    """Optimises blobs to look like a picture. `fit` runs it from beginning to end.

    Args:
        picture: [H, W, 3] float32, 0 to 1.
        params: initial raw blobs [9, N].
        steps: of the whole run, over which the rates fall.
        rates: learning rates; by default `Rates()`.
        device: where to fit; the default device if None.
        rasterizer: how to draw; the faster rasteriser if None.
        resume: continue from this checkpoint, with its blobs and its number of steps.
    """

    def __init__(
        self,
        picture: Picture,
        params: NDArray[np.float32],
        steps: int,
        rates: Rates | None = None,
        device: Device | str | None = None,
        rasterizer: Rasterizer | None = None,
        resume: FitCheckpoint | None = None,
    ) -> None:
        if resume is not None:
            resume.check_picture(picture)
            params, steps = resume.params, resume.steps
        self.picture, self.steps, self.rates = picture, steps, rates or Rates()
        super().__init__(get_device(device), resume.step if resume else 0)
        memory = self.device.memory
        height, width, _ = picture.shape
        check_shape(params.shape)
        parameters = memory.array(np.ascontiguousarray(params, dtype=np.float32))
        moments = (resume.m, resume.v) if resume else (np.zeros_like(params),) * 2
        self._work = FitStep(
            rasterizer or rasterizer_for(self.device, params.shape[1], width, height),
            memory.array(picture),
            parameters,
            memory.empty(params.shape),
            tuple(memory.array(moment) for moment in moments),
            self._status,
            self.rates,
            adam_for(width, height),
        )
        self._work.rasterizer.reserve(parameters)

    def params(self) -> NDArray[np.float32]:
        """Return a copy of the raw blobs as they are now."""
        self.finish()
        return self._work.parameters.numpy().copy()

    def checkpoint(self) -> FitCheckpoint:
        """Return everything that a later fit needs to continue from here."""
        params = self.params()
        m, v = (moment.numpy().copy() for moment in self._work.moments)
        return FitCheckpoint(self.step, self.steps, fingerprint(self.picture), params, m, v)

    def save_checkpoint(self, path: Path) -> None:
        """Write `checkpoint()` to a file, atomically."""
        checkpoint = self.checkpoint()
        self._check_finite(checkpoint.params)
        checkpoint.save(path)

    def report(self) -> FitReport:
        """Return how the blobs look now."""
        self._check_finite(self.params())
        height, width, _ = self.picture.shape
        image = draw(self.device, self._work.parameters, width, height).numpy()
        return FitReport(self.step, psnr(image, self.picture), image)

    def _check_finite(self, params: NDArray[np.float32]) -> None:
        names = ("the centres", "the shapes", "the colours", "the opacities")
        check_finite(dict(zip(names, np.split(params, (2, 5, 8)), strict=True)), self.step)

    def _reserve_lists(self, overflow: Overflow) -> None:
        self._work.rasterizer.reserve(self._work.parameters)

    def _submit(self, step: int) -> int:
        recorder = self.device.record()
        self._work.record(recorder, step, self.steps)
        return recorder.submit(wait=False)


def fit(
    image: ArrayLike | str | Path,
    blobs: int = 40_960,
    steps: int = 1_000,
    *,
    init: Literal["detail", "random"] = "detail",
    background: ArrayLike = (1.0, 1.0, 1.0),
    rates: Rates | None = None,
    seed: int = 42,
    method: Method = "auto",
    device: Device | str | None = None,
    on_report: Callable[[FitReport], None] | None = None,
    checkpoint: Path | None = None,
    resume: FitCheckpoint | None = None,
) -> ImageFit:
    """Approximate an image with 2D Gaussians.

    Args:
        image: a picture's file, or [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]: uint8, uint16, or floats from 0 to 1.
        blobs: number of Gaussians.
        steps: Adam steps, on the mean squared error.
        init: "detail" starts where the picture has detail, with its colours; "random" anywhere, in random colours.
        background: rgb from 0 to 1, put behind an image with alpha before it is fitted.
        rates: learning rates; by default `Rates()`.
        seed: of the initial blobs.
        method: "tiles", "group", "auto" for the faster one of these, or "autodiff" for at most 400 blobs: see
            `splat_py.image.rasterizers`.
        device: where to fit; the default device if None.
        on_report: called with the present picture at the beginning, about a hundred times in between, and at the end.
        checkpoint: file to keep a checkpoint in, also when the fit is interrupted: SIGINT, SIGTERM and SIGHUP act between
            steps, in the main thread. It stays after the fit, for a longer one.
        resume: continue from this checkpoint; `blobs`, `steps`, `init` and `seed` are then those of its fit.

    Raises:
        SplatError: the image cannot be used, or is not that of the checkpoint, a number is out of range, or the fit has
            diverged.
        KeyboardInterrupt: a signal was received; the checkpoint is written, unless a second one has interrupted a step.
    """
    check_number("blobs", blobs, int, (1, _MOST_BLOBS))
    check_number("steps", steps, int, (1, LARGEST))
    check_number("seed", seed, int, (0, (1 << 63) - 1))
    if init not in ("detail", "random"):
        raise SplatError(f"init is {init!r}; use 'detail' or 'random'")
    is_file = isinstance(image, str | Path)
    picture = read_picture(image, background) if is_file else to_picture(image, background)  # type: ignore[arg-type]
    start = blobs_on_detail if init == "detail" else blobs_anywhere
    params = resume.params if resume else start(picture, blobs, np.random.default_rng(seed))
    device = get_device(device)
    height, width, _ = picture.shape
    rasterizer = rasterizer_for(device, params.shape[1], width, height, method)
    fitter = ImageFitter(picture, params, steps, rates, device, rasterizer, resume)
    # Steps between reports; a checkpoint comes with every fifth.
    every = max(fitter.steps // 100, 1)
    with kept_checkpoint(checkpoint, fitter.save_checkpoint) as (interrupts, save):
        while fitter.step < fitter.steps:
            interrupts.act()
            if on_report is not None and fitter.step % every == 0:
                on_report(fitter.report())
            if fitter.step % (5 * every) == 0:
                save()
            fitter.advance()
        report = fitter.report()
        save()
        interrupts.act()
    if on_report is not None:
        on_report(report)
    return ImageFit(fitter.params(), width, height, report.psnr)


def blobs_on_detail(picture: Picture, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw raw blobs [9, count] with a density that follows the gradient's magnitude; the smaller ones are in front."""
    # Pad to at least two pixels a side, as np.gradient needs.
    padded = np.pad(picture, [(0, max(2 - side, 0)) for side in picture.shape], mode="edge")
    detail = sum(np.hypot(*np.gradient(padded[..., k])) for k in range(3))
    detail = gaussian_filter(np.asarray(detail)[: picture.shape[0], : picture.shape[1]], 1.0)
    density = (1 - _EVEN_SHARE) * detail / max(float(detail.sum()), 1e-12) + _EVEN_SHARE / detail.size
    density /= density.sum()
    chosen = rng.choice(density.size, count, p=density.ravel())
    spacing = 1 / np.sqrt(count * density.ravel()[chosen])
    chosen = chosen[np.argsort(spacing, kind="stable")]
    return _blobs_at(picture, chosen, np.sort(spacing, kind="stable"), rng)


def blobs_anywhere(picture: Picture, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw raw blobs [9, count] evenly at random, all of one size and in random colours: the baseline of `blobs_on_detail`."""
    pixels = picture.shape[0] * picture.shape[1]
    raw = _blobs_at(picture, rng.integers(pixels, size=count), np.full(count, np.sqrt(pixels / count)), rng)
    raw[5:8] = _logit(rng.uniform(size=(3, count)))
    return raw


def _blobs_at(picture: Picture, pixels: NDArray, spacing: NDArray, rng: np.random.Generator) -> NDArray[np.float32]:
    """Make round blobs somewhere in the given pixels (flat indices), with the pixels' colours."""
    height, width = picture.shape[:2]
    size = np.array([[width], [height]])
    centers = (np.stack([pixels % width, pixels // width]) + rng.uniform(size=(2, len(pixels)))) / size
    variance = np.maximum((_DEVIATION * spacing) ** 2 - _PIXEL_VARIANCE, 0.2**2)
    raw = np.zeros((9, len(pixels)))
    raw[0:2] = _logit((centers + _MARGIN) / (1 + 2 * _MARGIN))
    raw[2:4] = _logit(np.sqrt(variance) / size / _LARGEST_DEVIATION, least=1e-6)
    raw[5:8] = _logit(picture.reshape(-1, 3)[pixels].T)
    raw[8] = _logit(np.array(_OPACITY))
    return raw.astype(np.float32)


def _logit(share: NDArray, least: float = _MARGIN_OF_RANGE) -> NDArray:
    share = np.clip(share, least, 1 - _MARGIN_OF_RANGE)
    return np.log(share / (1 - share))
