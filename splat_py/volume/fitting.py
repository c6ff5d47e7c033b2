"""From posed photographs to a radiance field: Adam, from coarse to fine, every step on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from splat_py.errors import SplatError
from splat_py.fit.checkpoint import kept_checkpoint
from splat_py.fit.finiteness import check_finite, diverged
from splat_py.fit.photographs import views_at
from splat_py.fit.psnr import psnr_of
from splat_py.gpu.device import Device, get_device
from splat_py.gpu.kernels import UserType
from splat_py.gpu.profiling import Profile
from splat_py.scene.dataset import Dataset
from splat_py.shaders import ShaderModule
from splat_py.volume.box import Box
from splat_py.volume.checkpoint import VolumeCheckpoint
from splat_py.volume.config import FIELD, VolumeConfig
from splat_py.volume.field import check_background
from splat_py.volume.marching import Image, March, TrainingStep
from splat_py.volume.optimisers import AnyField, FieldOptimiser, GridOptimiser, HashOptimiser
from splat_py.volume.own_optimiser import OwnOptimiser
from splat_py.volume.views import Batches, Views


@dataclass(frozen=True)
class FitReport:
    """A finished step."""

    step: int
    # Voxels along x, y, z.
    size: tuple[int, ...]
    # Over the step's photographs, dB.
    psnr: float


class VolumeTrainer:
    """Optimises a field so that it looks like photographs.

    Args:
        views: photographs to fit.
        box: [2, 3] what the field fills.
        background: [3] rgb behind the box.
        resume: continue from this checkpoint, with its configuration, box and background.
        field: what to fit, a built-in field's name or Slang of your own; by default what the configuration says. Where `resume`
            carries the source of one, name the same again, or see `trust_source`.
        trust_source: compile the source that `resume` carries. It could read and write any memory.

    Raises:
        SplatError: there is nothing to fit, a source cannot be compiled or is not trusted, or there is too little memory.
    """

    def __init__(
        self,
        views: Views,
        box: ArrayLike,
        config: VolumeConfig | None = None,
        *,
        background: ArrayLike = (0.0, 0.0, 0.0),
        device: Device | str | None = None,
        resume: VolumeCheckpoint | None = None,
        field: str | UserType | ShaderModule | None = None,
        trust_source: bool = False,
    ) -> None:
        if len(views) == 0:
            raise SplatError("there is no photograph to fit; give at least one view")
        self.views = views
        self.device = get_device(device)
        config = resume.config if resume else config or VolumeConfig()
        self.config, kind = FIELD.begun_with(config, field, resumed=resume is not None, trust_source=trust_source)
        # Steps done.
        self.step = resume.step if resume else 0
        self.box = Box.of(resume.state["box"] if resume else box)
        self.background = check_background(resume.state["background"] if resume else background)
        self.profile: Profile | None = None
        self._batches = Batches(self.device, views)
        self._behind = self.device.memory.array(self.background)
        self._images: dict[int, tuple[Image, Image]] = {}
        self._errors = self.device.memory.array(np.zeros(self.config.steps, np.float32))
        self._reported = self.step
        state = resume.state if resume else None
        self._optimiser: FieldOptimiser
        if isinstance(kind, UserType):
            self._optimiser = OwnOptimiser(self.device, self.config, self.box, state, self.step, kind)
        elif kind == "hash":
            self._optimiser = HashOptimiser(self.device, self.config, self.box, state, self.step)
        else:
            self._optimiser = GridOptimiser(self.device, self.config, self.box, state)

    def fit(self, on_step: Callable[[FitReport], None] | None = None, checkpoint: Path | None = None) -> AnyField:
        """Go to the last step and return the field.

        Args:
            on_step: told of finished steps in order: at the end of each stage and at checkpoints, or at once where the host
                reads device memory without a copy.
            checkpoint: file to keep a checkpoint in, also when the user interrupts: SIGINT, SIGTERM and SIGHUP are acted on
                between steps, in the main thread.

        Raises:
            SplatError: the field is no longer finite. A checkpoint from before stays.
            KeyboardInterrupt: a signal has come, and the checkpoint is written.
        """
        with kept_checkpoint(checkpoint, self.save_checkpoint) as kept:
            while self.step < self.config.steps:
                kept.act_on_interrupt()
                self.advance()
                due = checkpoint is not None and self.step % self.config.checkpoint_every == 0
                if due or self.device.software or self.step % self.config.steps_per_resolution == 0:
                    self._report(on_step)
                if due:
                    kept.save()
            check_finite(self._optimiser.parts(self._optimiser.state()), self.step)
            field = self.field()
            kept.save()
            kept.act_on_interrupt()
        return field

    def field(self) -> AnyField:
        """A copy of the field as it is now."""
        return self._optimiser.field(self.background)

    def checkpoint(self) -> VolumeCheckpoint:
        """Everything that a later fit needs to continue from here."""
        state = {**self._optimiser.state(), "box": self.box.numpy(), "background": self.background}
        return VolumeCheckpoint(self.step, self.config, state)

    def save_checkpoint(self, path: Path) -> None:
        """Write `checkpoint()` to a file, atomically.

        Raises:
            SplatError: the field is not finite.
        """
        checkpoint = self.checkpoint()
        check_finite(self._optimiser.parts(checkpoint.state), self.step)
        checkpoint.save(path)

    def advance(self) -> None:
        """One step: every view of it forward, loss and replay, then Adam."""
        config, step, optimiser = self.config, self.step, self._optimiser
        stage, age = divmod(step, config.steps_per_resolution)
        if age == 0 and stage > 0:
            optimiser.begin_stage(stage)
        volume = optimiser.volume
        march = March(self.box, optimiser.steps_per_unit, config.jitter, _word(config.seed, step), contracted=config.contract)
        batches = self._batches.of(self._views_at(step))
        scale = 1 / (3 * max(sum(batch.weight for batch in batches), 1e-6))
        recorder = self.device.record(self.profile)
        optimiser.record_occupancy(recorder, march, step)
        first_ray = 0
        for batch in batches:
            image, v_image = self._image_for(batch.rays.count)
            volume.record_training(
                recorder,
                march,
                TrainingStep(
                    rays=batch.rays,
                    background=self._behind,
                    photographs=batch.photographs,
                    scale=scale,
                    image=image,
                    v_image=v_image,
                    v_grid=optimiser.gradients,
                    errors=self._errors,
                    slot=step,
                    first_ray=first_ray,
                ),
            )
            first_ray += batch.rays.count
        optimiser.record(recorder, step)
        # Before the wait, in which an interrupt finds the step done.
        self.step += 1
        recorder.submit()

    def _report(self, on_step: Callable[[FitReport], None] | None) -> None:
        """Tell of the steps done since the last report."""
        if on_step is None:
            return
        errors = self._errors.numpy()
        for step in range(self._reported, self.step):
            size = self._optimiser.size_at(step // self.config.steps_per_resolution)
            if not np.isfinite(errors[step]):
                raise diverged("the loss", step + 1)
            on_step(FitReport(step, size, psnr_of(float(errors[step]))))
        self._reported = self.step

    def _views_at(self, step: int) -> list[int]:
        """The views that a step takes: all, or some in turn."""
        count = len(self.views)
        rays = sum(camera.width * camera.height for camera in self.views.cameras)
        if rays <= self.config.rays_per_step:
            return list(range(count))
        each = max(min(self.config.rays_per_step * count // rays, count), 1)
        return views_at(step, count, each, self.config.seed)

    def _image_for(self, rays: int) -> tuple[Image, Image]:
        """Arrays for what so many rays return, and for its adjoint."""
        if rays not in self._images:
            v_image = Image.empty(self.device, rays)
            for array in vars(v_image).values():
                array.write(np.zeros(array.shape, np.float32))
            self._images[rays] = Image.empty(self.device, rays), v_image
        return self._images[rays]


def fit(
    images: ArrayLike | Dataset,
    viewmats: ArrayLike | None = None,
    Ks: ArrayLike | None = None,
    box: ArrayLike | None = None,
    resolutions: Sequence[int] = (16, 32, 64),
    steps_per_resolution: int = 15,
    sh_degree: int = 2,
    background: ArrayLike | None = None,
    *,
    on_step: Callable[[FitReport], None] | None = None,
    device: Device | str | None = None,
    field: str | UserType | ShaderModule = "grid",
    **options: float | int | bool,
) -> AnyField:
    """Fit a radiance field to posed photographs, from coarse to fine.

    Args:
        images: [V, H, W, 3], float from 0 to 1 or uint8; or a dataset from `load_dataset`, which has cameras, background
            and, if no `box` is given, a box.
        viewmats: [V, 4, 4] world → camera, OpenCV axes.
        Ks: [V, 3, 3] intrinsics in pixels, pixel centres at +0.5.
        box: [2, 3] lower and upper corner of the grid in the world.
        resolutions: voxels along the longest side, stage by stage.
        steps_per_resolution: steps of each stage; all photographs take part in a step, up to `rays_per_step` rays.
        sh_degree: 0, 1 or 2.
        background: [3] rgb; black by default, or the dataset's.
        on_step: told of every finished step.
        field: "grid", "hash" for a hash grid, or Slang of your own from `splat_py.shaders.source` or `load`, a type that
            implements `IFieldFunction`.
        options: the other fields of `VolumeConfig`.

    Raises:
        SplatError: an argument has the wrong shape or value, or photographs and cameras do not belong together.
    """
    try:
        config = VolumeConfig(tuple(resolutions), steps_per_resolution, sh_degree, **options)  # type: ignore[arg-type]
    except TypeError as error:
        raise SplatError(f"volume.fit: {error}; see VolumeConfig for what there is") from error
    if isinstance(images, Dataset):
        views = Views.of_dataset(images)
        box = images.bounds if box is None else box
        background = images.background if background is None else background
    else:
        if viewmats is None or Ks is None or box is None:
            raise SplatError("volume.fit needs viewmats, Ks and box with images, or a dataset instead of all of them")
        views = Views.of_arrays(images, viewmats, Ks)
    background = (0.0, 0.0, 0.0) if background is None else background
    return VolumeTrainer(views, box, config, background=background, device=device, field=field).fit(on_step)


def _word(*seeds: int) -> int:
    """32 well mixed bits."""
    return int(np.random.SeedSequence(seeds).generate_state(1)[0])
