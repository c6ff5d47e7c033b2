"""Fitting a radiance field to posed photographs: Adam, from coarse to fine, every step on the device."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.base.arguments import as_numpy, finite_array
from splat_py.base.errors import SplatError
from splat_py.base.files import Layout, save_tensors
from splat_py.fit.process import kept_checkpoint
from splat_py.fit.run_folder import reading, require_layout, whole_number
from splat_py.fit.steps import Photographs, check_finite, diverged, psnr_of, views_at
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, get_device
from splat_py.gpu.kernels import UserType
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import Dataset
from splat_py.shaders.functions import ShaderModule
from splat_py.volume.config import FIELD, VolumeConfig
from splat_py.volume.device_field import Box, March, RayImage, Rays, camera_rays
from splat_py.volume.grid import GridOptimiser, RadianceField
from splat_py.volume.hash_grid import HashOptimiser, HashRadianceField, HashShape
from splat_py.volume.optimiser import FieldOptimiser, State
from splat_py.volume.slang_field import SlangField, SlangOptimiser

AnyField = RadianceField | HashRadianceField | SlangField


def _optimiser_of(config: VolumeConfig) -> type[FieldOptimiser]:
    if config.is_own:
        return SlangOptimiser
    return HashOptimiser if config.field == "hash" else GridOptimiser


@dataclass(frozen=True)
class Views:
    """Cameras, and a function from a view's index to its photograph [H, W, 4] float32: rgb from 0 to 1 and a weight, 0 to 1."""

    cameras: Sequence[Camera]
    photograph: Callable[[int], NDArray[np.float32]]

    @classmethod
    def of_arrays(cls, images: ArrayLike, viewmats: ArrayLike, Ks: ArrayLike) -> Self:
        """Make views from images [V, H, W, 3] (float from 0 to 1, or uint8), viewmats [V, 4, 4] and Ks [V, 3, 3]."""
        images = np.asarray(images)
        viewmats, Ks = as_numpy("viewmats", viewmats, np.float64), as_numpy("Ks", Ks, np.float64)
        if images.ndim != 4 or images.shape[3] != 3 or 0 in images.shape:
            raise SplatError(f"images has shape {list(images.shape)}; expected [V, H, W, 3]")
        count, height, width, _ = images.shape
        for name, array, shape in (("viewmats", viewmats, (count, 4, 4)), ("Ks", Ks, (count, 3, 3))):
            if array.shape != shape:
                raise SplatError(f"{name} has shape {list(array.shape)}; expected {list(shape)}, one a photograph")
        scale = 1 / 255 if images.dtype == np.uint8 else 1.0
        images = images.astype(np.float32) * np.float32(scale)
        if not np.isfinite(images).all():
            raise SplatError("images holds a number that is not finite; give colours from 0 to 1")
        weighted = np.concatenate([images, np.ones((*images.shape[:3], 1), np.float32)], axis=-1)
        cameras = [Camera(viewmats[i], Ks[i], width, height, f"view {i}") for i in range(count)]
        return cls(cameras, weighted.__getitem__)

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> Self:
        """Make views of the training photographs of a dataset."""
        cameras = dataset.train_cameras
        if any(camera.distortion is not None for camera in cameras):
            raise SplatError(f"the photographs of {dataset.root} are distorted; load them with undistort=True")
        return cls(cameras, lambda index: dataset.image(dataset.train[index]).astype(np.float32) / np.float32(255))

    def __len__(self) -> int:
        return len(self.cameras)


@dataclass(frozen=True)
class Batch:
    """Rays and photographs of views of one size."""

    rays: Rays
    # [rays, 4]
    photographs: Array
    # Sum of the photographs' weights.
    weight: float


class Batches:
    """The views of a step, on the device."""

    def __init__(self, device: Device, views: Views) -> None:
        self._device, self._views = device, views
        weights: dict[int, float] = {}

        def load(view: int) -> NDArray[np.float32]:
            photograph = views.photograph(view)
            weights[view] = float(photograph[..., 3].sum())
            return photograph.reshape(-1, 4)

        self._photographs, self._weights = Photographs(device.memory, load), weights
        self._last: tuple[list[int], list[Batch]] = ([], [])

    def of(self, views: list[int]) -> list[Batch]:
        """Return one batch for each size of the views."""
        if views != self._last[0]:
            sizes: dict[tuple[int, int], list[int]] = {}
            for view in views:
                camera = self._views.cameras[view]
                sizes.setdefault((camera.width, camera.height), []).append(view)
            self._last = views, [self._batch(of_one_size) for of_one_size in sizes.values()]
        return self._last[1]

    def _batch(self, views: list[int]) -> Batch:
        recorder = self._device.record()
        rays = camera_rays(self._device, recorder, [self._views.cameras[view] for view in views])
        photographs = self._device.memory.empty((rays.count, 4))
        weight, end = 0.0, 0
        for view in views:
            photograph = self._photographs[view]
            recorder.copy(photograph, photographs, end)
            weight += self._weights[view]
            end += photograph.nbytes
        recorder.submit()
        return Batch(rays, photographs, weight)


@dataclass(frozen=True)
class VolumeCheckpoint:
    """Everything that a fit needs to continue as if it had not stopped."""

    # Steps done.
    step: int
    config: VolumeConfig
    # The optimiser's state, with box [2, 3] and background [3].
    state: State

    def save(self, path: Path) -> None:
        """Write to a .safetensors file, atomically."""
        save_tensors(path, "splat_py", {"step": self.step, "config": asdict(self.config)}, self.state)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        what, advice, absent = "the checkpoint of a volume", "fit without --resume", "there is no checkpoint to resume from"
        with reading(path, "splat_py", _check_layout, what, advice, absent=absent) as (header, state):
            Box.of(state["box"])
            config = VolumeConfig.from_dict(header["config"])
            if config.field == "hash" and (floats := HashShape.of_arrays(state).floats) != len(state["parameters"]):
                raise ValueError(f"parameters has {len(state['parameters'])} numbers, and its levels take {floats}")
            return cls(header["step"], config, state)


def _check_layout(header: dict[str, Any], layout: Layout) -> None:
    """Raise an error unless this is what `VolumeCheckpoint.save` writes."""
    config = VolumeConfig.from_dict(header["config"])
    step = whole_number(header, "step", 0, config.steps)
    shapes, dtypes = _optimiser_of(config).layout(config, step, layout)
    require_layout(layout, {**shapes, "box": (2, 3), "background": (3,)}, {**dtypes, "box": "F64"})


@dataclass(frozen=True)
class FitReport:
    """The result of a finished step."""

    step: int
    # Voxels along x, y, z.
    size: tuple[int, ...]
    # PSNR over the step's photographs, dB.
    psnr: float


class VolumeTrainer:
    """Optimises a field to look like photographs.

    Args:
        views: photographs to fit.
        box: [2, 3] lower and upper corner of the field.
        background: [3] rgb behind the box.
        resume: continue from this checkpoint, with its configuration, box and background.
        field: what to fit, a built-in field's name or your own Slang; by default `config.field`. If `resume` carries the source
            of your own field, pass it again, or see `trust_source`.
        trust_source: compile the source that `resume` carries. It could read and write any memory.

    Raises:
        SplatError: `views` is empty, a source cannot be compiled or is not trusted, or there is too little memory.
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
        behind = resume.state["background"] if resume else background
        self.background = finite_array("background", behind, (3,)).astype(np.float32)
        self._batches = Batches(self.device, views)
        self._behind = self.device.memory.array(self.background)
        self._images: dict[int, tuple[RayImage, RayImage]] = {}
        self._errors = self.device.memory.array(np.zeros(self.config.steps, np.float32))
        self._reported = self.step
        state = resume.state if resume else None
        self._optimiser = _optimiser_of(self.config)(self.device, self.config, self.box, state, self.step, kind)

    def fit(self, on_step: Callable[[FitReport], None] | None = None, checkpoint: Path | None = None) -> AnyField:
        """Train to the last step and return the field.

        Args:
            on_step: called for finished steps in order: at the end of each stage and at checkpoints, or at once on software
                devices.
            checkpoint: file to keep a checkpoint in, also when the user interrupts: SIGINT, SIGTERM and SIGHUP act between
                steps, in the main thread.

        Raises:
            SplatError: the field is no longer finite. An earlier checkpoint stays.
            KeyboardInterrupt: a signal was received; the checkpoint is written, unless a second one has interrupted a step.
        """
        with kept_checkpoint(checkpoint, self.save_checkpoint) as (interrupts, save):
            while self.step < self.config.steps:
                interrupts.act()
                self.advance()
                due = checkpoint is not None and self.step % self.config.checkpoint_every == 0
                if due or self.device.software or self.step % self.config.steps_per_resolution == 0:
                    self._report(on_step)
                if due:
                    save()
            check_finite(self._optimiser.parts(self._optimiser.state()), self.step)
            field = self.field()
            save()
            interrupts.act()
        return field

    def field(self) -> AnyField:
        """Return a copy of the field as it is now."""
        return self._optimiser.field(self.background)

    def checkpoint(self) -> VolumeCheckpoint:
        """Return everything that a later fit needs to continue from here."""
        state = {**self._optimiser.state(), "box": self.box.numpy(), "background": self.background}
        return VolumeCheckpoint(self.step, self.config, state)

    def save_checkpoint(self, path: Path) -> None:
        """Write `checkpoint()` to a file, atomically."""
        checkpoint = self.checkpoint()
        check_finite(self._optimiser.parts(checkpoint.state), self.step)
        checkpoint.save(path)

    def advance(self) -> None:
        """Do one step: forward, loss and replay of its views, then Adam."""
        config, step, optimiser = self.config, self.step, self._optimiser
        stage, age = divmod(step, config.steps_per_resolution)
        if age == 0 and stage > 0:
            optimiser.begin_stage(stage)
        (seed,) = map(int, np.random.SeedSequence((config.seed, step)).generate_state(1))
        march = March(self.box, optimiser.steps_per_unit, config.jitter, seed, contracted=config.contract)
        batches = self._batches.of(self._views_at(step))
        scale = 1 / (3 * max(sum(batch.weight for batch in batches), 1e-6))
        recorder = self.device.record()
        optimiser.record_occupancy(recorder, march, step)
        first_ray = 0
        for batch in batches:
            image, v_image = self._image_for(batch.rays.count)
            work = recorder, march, batch.rays, self._behind, image, v_image, optimiser.gradients
            loss = {"photographs": batch.photographs, "scale": scale, "errors": self._errors, "slot": step}
            optimiser.volume.record_training(*work, **loss, first_ray=first_ray)
            first_ray += batch.rays.count
        optimiser.record(recorder, step)
        # Count the step before the wait, so that an interrupt in it finds the step done.
        self.step += 1
        recorder.submit()

    def _report(self, on_step: Callable[[FitReport], None] | None) -> None:
        """Report the steps done since the last report."""
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
        """Return the views of a step: all, or some in turn."""
        count = len(self.views)
        rays = sum(camera.width * camera.height for camera in self.views.cameras)
        if rays <= self.config.rays_per_step:
            return list(range(count))
        each = max(min(self.config.rays_per_step * count // rays, count), 1)
        return views_at(step, count, each, self.config.seed)

    def _image_for(self, rays: int) -> tuple[RayImage, RayImage]:
        """Return arrays for the results of so many rays, and for their adjoint."""
        if rays not in self._images:
            zeros = self.device.memory.zeros
            v_image = RayImage(zeros((rays, 3)), zeros((rays,)), zeros((rays,)))
            self._images[rays] = RayImage.empty(self.device, rays), v_image
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
            and, unless `box` is given, a box.
        viewmats: [V, 4, 4] world → camera, OpenCV axes.
        Ks: [V, 3, 3] intrinsics in pixels, pixel centres at +0.5.
        box: [2, 3] lower and upper corner of the grid in the world.
        resolutions, steps_per_resolution, sh_degree, options: the fields of `VolumeConfig`.
        background: [3] rgb; black by default, or the dataset's.
        on_step: called for every finished step.
        field: "grid", "hash" for a hash grid, or your own Slang from `splat_py.shaders.source` or `load`, a type that
            implements `IFieldFunction`.

    Raises:
        SplatError: an argument has the wrong shape or value, or photographs and cameras do not belong together.
    """
    try:
        config = VolumeConfig(tuple(resolutions), steps_per_resolution, sh_degree, **options)  # type: ignore[arg-type]
    except TypeError as error:
        raise SplatError(f"volume.fit: {error}; see VolumeConfig for the options") from error
    if isinstance(images, Dataset):
        views = Views.of_dataset(images)
        box = images.bounds if box is None else box
        background = images.background if background is None else background
    else:
        if viewmats is None or Ks is None or box is None:
            raise SplatError("volume.fit needs viewmats, Ks and box with images, or a dataset alone")
        views = Views.of_arrays(images, viewmats, Ks)
    background = (0.0, 0.0, 0.0) if background is None else background
    return VolumeTrainer(views, box, config, background=background, device=device, field=field).fit(on_step)
