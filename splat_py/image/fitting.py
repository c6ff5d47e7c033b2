"""Fitting blobs to a picture: three kernels a step, and the sort where lists are sorted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError

from splat_py.errors import SplatError
from splat_py.files import load_tensors, save_tensors
from splat_py.gpu.arrays import Array, Bridge
from splat_py.gpu.device import Device, get_device
from splat_py.gpu.kernels import linear_groups
from splat_py.gpu.profiling import Profile
from splat_py.image.checkpoint import FitCheckpoint, fingerprint
from splat_py.image.initial import blobs_anywhere, blobs_on_detail
from splat_py.image.pictures import Picture, psnr, read_picture, to_picture
from splat_py.image.rasterizers import FLOATS, Rasterizer, rasterizer_for

_KIND = "splat_py.image"
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
# Gradients are of a mean over the pixels. Above so many of them ε shrinks as the gradients do, lest it slow the fit down: worth
# 0.9 dB after 200 steps at 512×512, and several dB at a photograph's size.
_EPSILON_PIXELS = 1 << 14
# How often the host asks whether a step ran out of room, where asking costs a copy.
_STATUS_EVERY = 32
# How often a fit is looked at on its way, and how many of these looks lie between checkpoints.
_REPORTS = 100
_REPORTS_PER_CHECKPOINT = 5


@dataclass(frozen=True)
class Rates:
    """Adam's rates for the four kinds of raw floats; all fall exponentially to `final` of themselves."""

    center: float = 0.012
    shape: float = 0.12
    color: float = 0.15
    opacity: float = 0.15
    final: float = 0.1


@dataclass(frozen=True)
class FitReport:
    """A fit on its way: after `step` steps, the picture [H, W, 3] looks like this."""

    step: int
    psnr: float
    image: Picture


@dataclass(frozen=True, eq=False)
class ImageFit:
    """An image as blobs.

    Attributes:
        params: [9, N] raw floats: rows centre x, y; variance x, y; anisotropy; red, green, blue; opacity
            (squashed by splat/blob2d.slang). Index is order of depth, 0 in front.
        width, height: of the picture that was fitted, pixels.
        psnr: against that picture, dB.
    """

    params: NDArray[np.float32]
    width: int
    height: int
    psnr: float

    def render(self, width: int | None = None, height: int | None = None, *, device: Device | None = None) -> Picture:
        """The picture [height, width, 3], 0 to 1, at any size; by default that of the original, and if one side is given, in
        its proportions. `device` is where to render, the default device if None."""
        if width is None and height is None:
            width, height = self.width, self.height
        elif width is None:
            width = max(round(int(height or 0) * self.width / self.height), 1)
        elif height is None:
            height = max(round(width * self.height / self.width), 1)
        width, height = check_size(width, height or 0)
        # Blobs are as sharp as the picture they were fitted to: a smaller one is the mean of what would alias.
        across, down = -(-self.width // width), -(-self.height // height)
        device = device or get_device()
        image = draw(device, device.memory.array(check_params(self.params)), across * width, down * height)
        return image.reshape(height, down, width, across, 3).mean(axis=(1, 3))

    def save(self, path: str | Path) -> None:
        """Write to a .safetensors file, atomically."""
        header = {"width": self.width, "height": self.height, "psnr": self.psnr}
        save_tensors(path, _KIND, header, {"params": self.params})

    @classmethod
    def load(cls, path: str | Path) -> ImageFit:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or something else.
        """
        path = Path(path)
        if not path.is_file():
            raise SplatError(f"{path} does not exist; name a file that `splat fit-image` or ImageFit.save has written")
        try:
            header, tensors = load_tensors(path, _KIND)
            return cls(check_params(tensors["params"]), int(header["width"]), int(header["height"]), float(header["psnr"]))
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise SplatError(f"{path} is not a file of image blobs or is damaged; fit the image again") from error


class ImageFitter:
    """Optimises blobs so that they look like a picture. `fit` is this from beginning to end.

    Args:
        picture: [H, W, 3] float32, 0 to 1.
        params: raw blobs [9, N] to begin with.
        steps: of the whole run; the rates fall with them.
        rates: Adam's.
        device: where; the default device if None.
        rasterizer: which; the faster one if None.
        resume: continue from this checkpoint, with its blobs and its number of steps.
    """

    def __init__(
        self,
        picture: Picture,
        params: NDArray[np.float32],
        steps: int,
        rates: Rates | None = None,
        device: Device | None = None,
        rasterizer: Rasterizer | None = None,
        resume: FitCheckpoint | None = None,
    ) -> None:
        if resume is not None:
            if resume.picture != fingerprint(picture):
                raise SplatError(
                    "the checkpoint is of another picture, or of another background behind it; fit without --resume"
                )
            params, steps = resume.params, resume.steps
        self.picture, self.steps, self.rates = picture, steps, rates or Rates()
        self.device = device or get_device()
        self.step = resume.step if resume else 0
        self.profile: Profile | None = None
        memory = self.device.memory
        height, width, _ = picture.shape
        self._blobs = params.shape[1]
        self._target = memory.array(picture)
        self._parameters = memory.array(check_params(params))
        self._gradients = memory.empty(params.shape)
        moments = (resume.m, resume.v) if resume else (np.zeros_like(params),) * 2
        self._moments = [memory.array(moment) for moment in moments]
        self._status = memory.array(np.zeros(3, np.uint32))
        self._in_flight: deque[tuple[int, int]] = deque()
        self._rasterizer = rasterizer or rasterizer_for(self.device, self._blobs, width, height)
        self._rasterizer.reserve(self._parameters)

    def advance(self) -> None:
        """Send the next step to the device, without waiting for it."""
        self._in_flight.append((self.step, self._submit(self.step)))
        self.step += 1
        self._retire(self.device.tuning.steps_ahead)

    def finish(self) -> None:
        """Wait until every step that was sent has been done, and repeat those that ran out of room."""
        sent = self.step
        self._retire(0)
        while self.step < sent:
            self.advance()
            self._retire(0)

    def params(self) -> NDArray[np.float32]:
        """A copy of the raw blobs as they are now."""
        self.finish()
        return self._parameters.numpy().copy()

    def checkpoint(self) -> FitCheckpoint:
        """Everything that a later fit needs to continue from here."""
        params = self.params()
        m, v = (moment.numpy().copy() for moment in self._moments)
        return FitCheckpoint(self.step, self.steps, fingerprint(self.picture), params, m, v)

    def report(self) -> FitReport:
        """How the blobs look now."""
        self.finish()
        height, width, _ = self.picture.shape
        image = draw(self.device, self._parameters, width, height)
        return FitReport(self.step, psnr(image, self.picture), image)

    def _submit(self, step: int) -> int:
        """Clear, differentiate, update."""
        recorder = self.device.record(self.profile)
        self._rasterizer.record_lists(recorder, self._parameters)
        self._rasterizer.record_check(recorder, self._status, step)
        self._rasterizer.record_gradients(recorder, self._parameters, self._target, self._gradients)
        recorder.stage("update")
        decay = self.rates.final ** (step / self.steps)
        height, width, _ = self.picture.shape
        recorder.dispatch(
            "image_update",
            "updateBlobs",
            linear_groups(self._parameters.size),
            {
                "blobs": self._blobs,
                "centerRate": self.rates.center * decay,
                "shapeRate": self.rates.shape * decay,
                "colorRate": self.rates.color * decay,
                "opacityRate": self.rates.opacity * decay,
                "beta1": _BETA1,
                "beta2": _BETA2,
                "epsilon": _EPSILON * min(1.0, _EPSILON_PIXELS / (width * height)),
                "correction1": 1 - _BETA1 ** (step + 1),
                "correction2": 1 - _BETA2 ** (step + 1),
            },
            {
                "status": self._status,
                "parameters": self._parameters,
                "gradients": self._gradients,
                "firstMoments": self._moments[0],
                "secondMoments": self._moments[1],
            },
        )
        return recorder.submit(wait=False)

    def _retire(self, allowed: int) -> None:
        """Wait until no more than `allowed` steps are under way; go back to the first one that ran out of room."""
        done = []
        while len(self._in_flight) > allowed:
            step, submission = self._in_flight.popleft()
            self.device.wait(submission)
            done.append(step)
        every = 1 if self.device.memory.bridge is Bridge.ALIAS else _STATUS_EVERY
        if allowed and not any(step % every == 0 for step in done):
            return
        needed, failed, _ = (int(x) for x in self._status.numpy())
        if needed:
            self.device.handle.wait_for_idle()
            self._in_flight.clear()
            self._status.write(np.zeros(3, np.uint32))
            self._rasterizer.reserve(self._parameters)
            self.step = failed


def fit(
    image: ArrayLike | str | Path,
    blobs: int = 40_960,
    steps: int = 1_000,
    *,
    init: Literal["detail", "random"] = "detail",
    background: ArrayLike = (1.0, 1.0, 1.0),
    rates: Rates | None = None,
    seed: int = 42,
    device: Device | None = None,
    on_report: Callable[[FitReport], None] | None = None,
    checkpoint: Path | None = None,
    resume: FitCheckpoint | None = None,
) -> ImageFit:
    """Approximate an image with 2D Gaussians.

    Args:
        image: a picture's file, or [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]: uint8, uint16, or floats from 0 to 1.
        blobs: how many Gaussians.
        steps: of Adam, on the mean squared error.
        init: begin where the picture has detail, with its colours; or anywhere, in any colour.
        background: rgb from 0 to 1, put behind an image with alpha before it is fitted.
        rates: Adam's.
        seed: of where the blobs begin.
        device: where; the default device if None.
        on_report: told at the beginning, about a hundred times on the way, and at the end how it looks.
        checkpoint: file to keep a checkpoint in until the fit is done, also when it is interrupted.
        resume: continue from this checkpoint; `blobs`, `steps`, `init` and `seed` are then those of its fit.

    Raises:
        SplatError: the image cannot be used, or is not that of the checkpoint, or a number is out of range.
    """
    for name, number in (("blobs", blobs), ("steps", steps)):
        if number < 1:
            raise SplatError(f"{name} is {number}; it must be at least 1")
    if init not in ("detail", "random"):
        raise SplatError(f"init is {init!r}; use 'detail' or 'random'")
    is_file = isinstance(image, str | Path)
    picture = read_picture(image, background) if is_file else to_picture(image, background)  # type: ignore[arg-type]
    start = blobs_on_detail if init == "detail" else blobs_anywhere
    params = resume.params if resume else start(picture, blobs, np.random.default_rng(seed))
    fitter = ImageFitter(picture, params, steps, rates, device, resume=resume)
    every = max(fitter.steps // _REPORTS, 1)
    try:
        while fitter.step < fitter.steps:
            if fitter.step % every == 0:
                if on_report is not None:
                    on_report(fitter.report())
                if checkpoint is not None and fitter.step % (_REPORTS_PER_CHECKPOINT * every) == 0:
                    fitter.checkpoint().save(checkpoint)
            fitter.advance()
            if fitter.step == fitter.steps:
                fitter.finish()
    except KeyboardInterrupt:
        if checkpoint is not None:
            fitter.checkpoint().save(checkpoint)
        raise
    report = fitter.report()
    if on_report is not None:
        on_report(report)
    height, width, _ = picture.shape
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return ImageFit(fitter.params(), width, height, report.psnr)


def draw(device: Device, parameters: Array, width: int, height: int) -> Picture:
    """Raw blobs [9, N] on the device → picture [height, width, 3]."""
    rasterizer = rasterizer_for(device, parameters.shape[1], width, height)
    rasterizer.reserve(parameters)
    image = device.memory.empty((height, width, 3))
    recorder = device.record()
    rasterizer.record_render(recorder, parameters, image)
    recorder.submit()
    return image.numpy().copy()


def check_params(params: NDArray) -> NDArray[np.float32]:
    """`params` as [9, N] float32.

    Raises:
        SplatError: it is not.
    """
    if params.ndim != 2 or params.shape[0] != FLOATS or params.shape[1] == 0:
        raise SplatError(f"params has shape {list(params.shape)}; it must be [9, N] with at least one blob")
    return np.ascontiguousarray(params, dtype=np.float32)


def check_size(width: int, height: int) -> tuple[int, int]:
    """The same two numbers.

    Raises:
        SplatError: one of them is no side of a picture.
    """
    if not (1 <= width <= 65_535 and 1 <= height <= 65_535):
        raise SplatError(f"the size is {width}×{height}; both sides must be from 1 to 65,535 pixels")
    return width, height
