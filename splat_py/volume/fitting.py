"""From posed photographs to a radiance field: Adam on a grid that doubles, every step on the device."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError

from splat_py.errors import SplatError
from splat_py.files import load_tensors, save_tensors
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, get_device
from splat_py.gpu.kernels import Recorder
from splat_py.gpu.profiling import Profile
from splat_py.scene.dataset import Dataset
from splat_py.volume.field import RadianceField, check_background
from splat_py.volume.marching import Box, Image, March, TrainingStep, Volume, from_voxel_order, row_floats, to_voxel_order
from splat_py.volume.rendering import voxels_per_unit
from splat_py.volume.views import Batches, Views

# A larger epsilon than for Gaussians holds directions still that photographs say nothing about: worth 3 dB at degree 2.
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
# Seven views of a procedural volume, degree 0 / 2, PSNR of the training views in dB: one rate for everything 37.3 / 35.1, with
# faster densities, slower view dependence and rates that fall during each stage 39.8 / 44.0 (between the views 26.2 / 22.1).
_DENSITY_RATE, _REST_RATE = 5.0, 0.25
_LAST_RATE = 0.3
# A fit starts as a thin grey fog, of this optical depth along the longest side: from a hundredth of it, 1 dB less.
_FIRST_DENSITY = 1.0


@dataclass(frozen=True)
class VolumeConfig:
    """How a volume is fitted: on the schedule of Mitsuba 3's radiance-field tutorial (Jakob et al. 2022), by squared error."""

    # Voxels along the longest side of the box, stage by stage.
    resolutions: tuple[int, ...] = (16, 32, 64)
    # Steps of each stage.
    steps_per_resolution: int = 15
    # Degree of the spherical harmonics, 0 to 2.
    sh_degree: int = 2
    # Adam's rate for the constant coefficients of the colour, at the beginning of a stage.
    rate: float = 0.2
    # Samples a voxel.
    steps_per_voxel: float = 1.0
    # GroupThread samples at random in their steps.
    jitter: bool = False
    # Weight of the total variation of coefficients and of densities (times the longest side), a mean over voxels.
    total_variation: float = 0.0
    # At most about this many rays a step: all photographs, if they have no more, else some of them in turn.
    rays_per_step: int = 1 << 18
    # A kill at any moment loses at most the steps since the last checkpoint.
    checkpoint_every: int = 50
    # Of everything random: jitter, the order of photographs.
    seed: int = 42

    def __post_init__(self) -> None:
        object.__setattr__(self, "resolutions", tuple(self.resolutions))
        if not self.resolutions or not all(2 <= n <= 1022 for n in self.resolutions):
            raise SplatError(f"resolutions is {self.resolutions}; give one or more from 2 to 1022")
        for name in ("steps_per_resolution", "rays_per_step", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise SplatError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.sh_degree not in (0, 1, 2):
            raise SplatError(f"sh_degree is {self.sh_degree}; use 0, 1 or 2")
        for name in ("rate", "steps_per_voxel"):
            if not 0 < getattr(self, name) < float("inf"):
                raise SplatError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not 0 <= self.total_variation < float("inf"):
            raise SplatError(f"total_variation is {self.total_variation}; it must be 0 or more")

    @property
    def steps(self) -> int:
        """Of all stages."""
        return len(self.resolutions) * self.steps_per_resolution


@dataclass(frozen=True)
class VolumeCheckpoint:
    """Everything that a fit needs to go on as if it had not stopped."""

    # Steps done.
    step: int
    config: VolumeConfig
    # grid, m, v: [X, Y, Z, row]; box [2, 3]; background [3]
    state: dict[str, NDArray]

    def save(self, path: Path) -> None:
        """Write to a .safetensors file, atomically."""
        header = {"step": self.step, "config": dataclasses.asdict(self.config)}
        save_tensors(path, "splat_py", header, self.state)

    @classmethod
    def load(cls, path: Path) -> VolumeCheckpoint:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or not the checkpoint of a volume.
        """
        if not path.is_file():
            raise SplatError(f"{path} does not exist; there is no checkpoint to resume from")
        try:
            header, tensors = load_tensors(path, "splat_py")
            state = {name: tensors[name] for name in ("grid", "m", "v", "box", "background")}
            checkpoint = cls(header["step"], VolumeConfig(**header["config"]), state)
        except (SafetensorError, KeyError, TypeError, json.JSONDecodeError, OSError) as error:
            raise SplatError(f"{path} is not the checkpoint of a volume or is damaged; fit without --resume") from error
        if state["grid"].shape[3:] != (row_floats((checkpoint.config.sh_degree + 1) ** 2),):
            raise SplatError(f"{path} was written by another version of splat_py; fit without --resume")
        return checkpoint


@dataclass(frozen=True)
class FitReport:
    """What is known of a finished step."""

    step: int
    # Voxels along x, y, z.
    size: tuple[int, ...]
    # Over the step's photographs, dB.
    psnr: float


class VolumeTrainer:
    """Optimises a voxel grid so that it looks like photographs. Densities may fall below 0, where they count as 0.

    Args:
        views: photographs to fit.
        box: [2, 3] what the grid fills.
        background: [3] rgb behind the box.
        resume: continue from this checkpoint, with its configuration, box and background.
    """

    def __init__(
        self,
        views: Views,
        box: ArrayLike,
        config: VolumeConfig | None = None,
        *,
        background: ArrayLike = (0.0, 0.0, 0.0),
        device: Device | None = None,
        resume: VolumeCheckpoint | None = None,
    ) -> None:
        if len(views) == 0:
            raise SplatError("there is no photograph to fit; give at least one view")
        self.views = views
        self.device = device or get_device()
        self.config = resume.config if resume else config or VolumeConfig()
        # Steps done.
        self.step = resume.step if resume else 0
        self.box = Box.of(resume.state["box"] if resume else box)
        self.background = check_background(resume.state["background"] if resume else background)
        self.profile: Profile | None = None
        self._batches = Batches(self.device, views)
        self._coefficients = (self.config.sh_degree + 1) ** 2
        self._behind = self.device.memory.array(self.background)
        self._images: dict[int, tuple[Image, Image]] = {}
        self._errors = self.device.memory.array(np.zeros(self.config.steps, np.float32))
        self._reported = self.step
        if resume:
            self._hold(resume.state["grid"], resume.state["m"], resume.state["v"])
        else:
            self._hold(self._first_grid())

    def fit(self, on_step: Callable[[FitReport], None] | None = None, checkpoint: Path | None = None) -> RadianceField:
        """Go to the last step and return the field.

        Args:
            on_step: told of finished steps in order: at the end of each stage and at checkpoints, or at once where the host
                can look into device memory.
            checkpoint: file to keep a checkpoint in, also when the user interrupts.
        """
        watched = self.device.software
        try:
            while self.step < self.config.steps:
                self.advance()
                saves = checkpoint is not None and self.step % self.config.checkpoint_every == 0
                if watched or saves or self.step % self.config.steps_per_resolution == 0:
                    self._report(on_step)
                if saves and checkpoint is not None:
                    self.checkpoint().save(checkpoint)
        except KeyboardInterrupt:
            if checkpoint is not None:
                self.checkpoint().save(checkpoint)
            raise
        field = self.field()
        if checkpoint is not None:
            self.checkpoint().save(checkpoint)
        return field

    def field(self) -> RadianceField:
        """A copy of the field as it is now."""
        grid = from_voxel_order(self._volume.grid.tensor())
        k = self._coefficients
        sh = grid[..., 1 : 1 + 3 * k].reshape(*grid.shape[:3], k, 3).contiguous()
        return RadianceField(grid[..., 0].contiguous(), sh, self.box.numpy(), self.background)

    def checkpoint(self) -> VolumeCheckpoint:
        """Everything that a later fit needs to continue from here."""
        state: dict[str, NDArray] = {
            "grid": _natural(self._volume.grid),
            "m": _natural(self._m),
            "v": _natural(self._v),
            "box": self.box.numpy(),
            "background": self.background,
        }
        return VolumeCheckpoint(self.step, self.config, state)

    def advance(self) -> None:
        """Send the next step to the device: every view of it forward, loss and replay, then Adam."""
        config, step, volume = self.config, self.step, self._volume
        stage, age = divmod(step, config.steps_per_resolution)
        if age == 0 and stage > 0:
            self._hold(_resized(_natural(volume.grid), self._size_at(stage)))
            volume = self._volume
        march = March(self.box, self._steps_per_unit, config.jitter, seed=_word(config.seed, step))
        batches = self._batches.of(self._views_at(step))
        scale = 1 / (3 * max(sum(batch.weight for batch in batches), 1e-6))
        recorder = self.device.record(self.profile)
        volume.record_occupancy(recorder, march)
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
                    v_grid=self._v_grid,
                    errors=self._errors,
                    slot=step,
                    first_ray=first_ray,
                ),
            )
            first_ray += batch.rays.count
        self._record_optimiser(recorder, age)
        # Before the wait, in which an interrupt finds the step done.
        self.step += 1
        recorder.submit()

    def _record_optimiser(self, recorder: Recorder, age: int) -> None:
        """Total variation, if asked for, and Adam."""
        config, grid = self.config, self._volume.grid
        rate = config.rate * _LAST_RATE ** (age / max(config.steps_per_resolution - 1, 1))
        side = float(self.box.sides.max())
        settings = {
            "densityRate": rate * _DENSITY_RATE / side,
            "rate": rate,
            "restRate": rate * _REST_RATE,
            "beta1": _BETA1,
            "beta2": _BETA2,
            "epsilon": _EPSILON,
            "correction1": 1 - _BETA1 ** (age + 1),
            "correction2": 1 - _BETA2 ** (age + 1),
            "densityScale": side,
            "variation": config.total_variation / math.prod(grid.shape[:3]),
        }
        if config.total_variation > 0:
            self._volume.record_total_variation(recorder, settings, self._v_grid)
        self._volume.record_adam(recorder, settings, self._v_grid, self._m, self._v)

    def _report(self, on_step: Callable[[FitReport], None] | None) -> None:
        """Tell of the steps done since the last report."""
        if on_step is None:
            return
        errors = self._errors.numpy()
        for step in range(self._reported, self.step):
            size = self._size_at(step // self.config.steps_per_resolution)
            on_step(FitReport(step, size, -10 * float(np.log10(max(float(errors[step]), 1e-10)))))
        self._reported = self.step

    def _views_at(self, step: int) -> list[int]:
        """The views that a step looks at: all, or some of a new random order each time around."""
        count = len(self.views)
        rays = sum(camera.width * camera.height for camera in self.views.cameras)
        if rays <= self.config.rays_per_step:
            return list(range(count))
        each = max(min(self.config.rays_per_step * count // rays, count), 1)
        around, position = divmod(step, count // each)
        order = np.random.default_rng((self.config.seed, around)).permutation(count)
        return [int(view) for view in order[position * each : (position + 1) * each]]

    def _image_for(self, rays: int) -> tuple[Image, Image]:
        """Room for what `rays` rays bring home, and for its adjoint."""
        if rays not in self._images:
            v_image = Image.empty(self.device, rays)
            for array in vars(v_image).values():
                array.write(np.zeros(array.shape, np.float32))
            self._images[rays] = Image.empty(self.device, rays), v_image
        return self._images[rays]

    # Stages

    def _size_at(self, stage: int) -> tuple[int, ...]:
        """Voxels along x, y, z: cubes, as nearly as whole numbers allow."""
        sides = self.box.sides / self.box.sides.max()
        return tuple(max(round(float(side) * self.config.resolutions[stage]), 1) for side in sides)

    def _first_grid(self) -> NDArray[np.float32]:
        grid = np.zeros((*self._size_at(0), row_floats(self._coefficients)), np.float32)
        grid[..., 0] = _FIRST_DENSITY / self.box.sides.max()
        return grid

    def _hold(self, grid: NDArray[np.float32], m: NDArray | None = None, v: NDArray | None = None) -> None:
        """Take a grid onto the device, with Adam's moments: those of a checkpoint, or none."""
        grids = (grid, np.zeros_like(grid) if m is None else m, np.zeros_like(grid) if v is None else v)
        arrays = [self.device.memory.array(to_voxel_order(torch.from_numpy(values)).numpy()) for values in grids]
        self._volume = Volume(self.device, arrays[0], self._coefficients)
        self._m, self._v = arrays[1:]
        self._v_grid = self._volume.empty_gradients()
        self._steps_per_unit = self.config.steps_per_voxel * voxels_per_unit(self.box, grid.shape[:3])
        recorder = self.device.record()
        recorder.clear(self._v_grid)
        recorder.submit()


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
    device: Device | None = None,
    **options: float | int | bool,
) -> RadianceField:
    """Fit a radiance field to posed photographs, from coarse to fine.

    Args:
        images: [V, H, W, 3], float from 0 to 1 or uint8; or a dataset from `load_dataset`, which brings cameras, background
            and, if no `box` is given, a box.
        viewmats: [V, 4, 4] world → camera, OpenCV axes.
        Ks: [V, 3, 3] intrinsics in pixels, pixel centres at +0.5.
        box: [2, 3] lower and upper corner of the grid in the world.
        resolutions: voxels along the longest side, stage by stage.
        steps_per_resolution: steps of each stage; all photographs take part in a step, up to `rays_per_step` rays.
        sh_degree: 0, 1 or 2.
        background: [3] rgb; black by default, or the dataset's.
        on_step: told of every finished step.
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
    return VolumeTrainer(views, box, config, background=background, device=device).fit(on_step)


def _natural(array: Array) -> NDArray[np.float32]:
    """A copy of a grid on the device, [X, Y, Z, row] as it says."""
    return np.array(from_voxel_order(array.tensor()).numpy())


def _resized(grid: NDArray[np.float32], size: tuple[int, ...]) -> NDArray[np.float32]:
    """The same field on another number of voxels, looked up at their centres."""
    channels_first = torch.from_numpy(grid).movedim(-1, 0)[None]
    resized = torch.nn.functional.interpolate(channels_first, size, mode="trilinear", align_corners=False)
    return np.ascontiguousarray(resized[0].movedim(0, -1).numpy())


def _word(*seeds: int) -> int:
    """32 well mixed bits."""
    return int(np.random.SeedSequence(seeds).generate_state(1)[0])
