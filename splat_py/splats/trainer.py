"""The training loop: everything of a step on the device, one command buffer a step, no host read on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import accumulation
from splat_py.gpu.arrays import Array, Bridge
from splat_py.gpu.device import Device, Operator, get_device
from splat_py.gpu.profiling import Profile
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.splats.camera_gradients import CAMERA_ROW
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.config import TrainConfig
from splat_py.splats.data import COLOR_OFFSET, Cameras, Settings, SplatGradients, Splats, StridedView
from splat_py.splats.densification import densify, reset_opacities
from splat_py.splats.loss import LossValues, PhotometricLoss, pack
from splat_py.splats.parameters import Parameters
from splat_py.splats.project import Projection
from splat_py.splats.rasterize import Image, Rasterization
from splat_py.splats.shade import Shading
from splat_py.splats.tiles import ANY_LENGTH, Binning, TileGrid, segments_for

# Photographs that stay on the device; others are uploaded for each step.
_RESIDENT_BYTES = 1 << 30
# How often the host asks whether a step ran out of room, where asking costs a copy.
_STATUS_EVERY = 32
# Room for tile lists to begin with.
_PAIRS_PER_GAUSSIAN = 4
# What they get beyond what was needed, so that growing scenes rarely run out.
_HEADROOM = 1.5


@dataclass(frozen=True)
class StepReport:
    """What is known of a finished step."""

    step: int
    gaussians: int
    values: LossValues


@dataclass(frozen=True)
class _Target:
    """Arrays for renders of one size."""

    image: Image
    grid: TileGrid
    loss: PhotometricLoss
    v_alphas: Array


class Trainer:
    """Optimises Gaussians so that they look like a dataset's photographs.

    Args:
        dataset: from `load_dataset`.
        config: defaults are the field's.
        device: where to train; the default device if None.
        resume: continue from this checkpoint, with its configuration.
    """

    def __init__(
        self,
        dataset: Dataset,
        config: TrainConfig | None = None,
        *,
        device: Device | None = None,
        resume: Checkpoint | None = None,
    ) -> None:
        self.dataset = dataset
        self.device = device or get_device()
        self.device.require(Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
        self.config = resume.config if resume else config or TrainConfig()
        self.config.validate()
        # Steps done.
        self.step = resume.step if resume else 0
        self.profile: Profile | None = None
        memory = self.device.memory
        self._settings = Settings(
            self.device.tuning.tile_size,
            raw_params=True,
            antialiased=self.config.antialiased,
            accumulation=accumulation(self.device, self.config.accumulate),
            native_atomics=self.device.native_float_atomics,
        )
        self._background = memory.array(dataset.background[None])
        self._status = memory.array(np.zeros(3, np.uint32))
        self._sums = [memory.empty(4) for _ in range(self.device.tuning.steps_ahead + 1)]
        self._v_cameras = memory.empty((1, CAMERA_ROW))
        self._cameras: dict[int, Cameras] = {}
        self._photographs: dict[int, Array] = {}
        self._resident_bytes = 0
        self._targets: dict[tuple[int, int], _Target] = {}
        self._in_flight: deque[tuple[int, int]] = deque()
        self._finished: deque[StepReport] = deque()
        self._binning: Binning | None = None
        self._segments = 1
        if resume:
            self.parameters = Parameters(self.device, resume.state)
            self._capacity = resume.capacity
        else:
            self.parameters = Parameters.fresh(self.device, self._initial_gaussians())
            self._capacity = _PAIRS_PER_GAUSSIAN * self.parameters.count
        self._reserve()

    # What a user asks of it

    def fit(self, on_step: Callable[[StepReport], None] | None = None, checkpoint: Path | None = None) -> Gaussians:
        """Train to the last step and return the Gaussians.

        Args:
            on_step: told of finished steps, in order, a little later; of every 32nd where reading from the device costs a copy.
            checkpoint: file to keep a checkpoint in.
        """
        while self.step < self.config.steps:
            self.advance()
            if checkpoint is not None and self.step % self.config.checkpoint_every == 0:
                self.save_checkpoint(checkpoint)
            self._report(on_step)
        gaussians = self.gaussians()
        self._report(on_step)
        if checkpoint is not None:
            self.save_checkpoint(checkpoint)
        return gaussians

    def gaussians(self) -> Gaussians:
        """A copy of the Gaussians as they are now."""
        self.finish()
        return self.parameters.to_gaussians()

    def checkpoint(self) -> Checkpoint:
        """Everything that a later run needs to continue from here."""
        self.finish()
        return Checkpoint(self.step, self.config, self.parameters.state(), self._capacity)

    def save_checkpoint(self, path: Path) -> None:
        """Write `checkpoint()` to a file, atomically."""
        self.checkpoint().save(path)

    # One step

    def advance(self) -> None:
        """Send the next step to the device, without waiting for it."""
        step = self.step
        self._in_flight.append((step, self._submit(step)))
        self.step += 1
        if self.config.densifies_at(step) or self.config.resets_opacities_at(step):
            self.finish()
            self._refine(step)
        else:
            self._retire(self.device.tuning.steps_ahead)

    def finish(self) -> None:
        """Wait until every step that was sent has been done, and repeat those that ran out of room."""
        while True:
            sent = self.step
            self._retire(0)
            if self.step == sent:
                return
            while self.step < sent:
                self._in_flight.append((self.step, self._submit(self.step)))
                self.step += 1

    def view_at(self, step: int) -> int:
        """The dataset's view that a step looks at: a new random order each time around, a function of the seed alone."""
        views = self.dataset.train
        around, position = divmod(step, len(views))
        return views[int(np.random.default_rng((self.config.seed, around)).permutation(len(views))[position])]

    def _submit(self, step: int) -> int:
        view = self.view_at(step)
        cameras = self._cameras_of(view)
        target = self._target_of(cameras)
        parameters, splats, settings = self.parameters, self._splats, self._settings
        binning = self._binning_for(target)
        sums = self._sums[step % len(self._sums)]

        projection = Projection(parameters.gaussians, cameras, splats, settings)
        means, degree = parameters.gaussians.means, self.config.degree_at(step)
        shading = Shading(means, parameters.sh, cameras, splats.radii, self._colors, degree, settings)
        recorder = self.device.record(self.profile)
        projection.record(recorder)
        shading.record(recorder)
        binning.record_count(recorder)
        binning.record_lists(recorder)
        # No list is longer than there are Gaussians.
        if segments_for(self.device, parameters.count) > self._segments:
            binning.record_max_tile_count(recorder)
        recorder.dispatch(
            "status",
            "checkCapacity",
            (1, 1, 1),
            {
                "capacity": binning.capacity,
                "maxListLength": self._segments * (self.device.tuning.segment or ANY_LENGTH),
                "step": step,
            },
            {"isectCount": binning.isect_count, "maxTileCount": binning.max_tile_count, "status": self._status},
        )
        rasterization = Rasterization.of(
            self.device,
            splats,
            self._colors,
            self._background,
            binning.lists(self._segments),
            target.grid,
            target.image,
        )
        rasterization.record(recorder)
        target.loss.record(recorder, target.image.colors, self._photograph_of(view), sums)
        rasterization.record_backward(recorder, target.loss.v_render, target.v_alphas, self._v_splats, settings)
        v_splats = SplatGradients.of_rows(self._v_splats, self._v_depths)
        v_gaussians = parameters.v_gaussians
        projection.record_backward(recorder, v_splats, v_gaussians, self._v_cameras)
        v_colors = StridedView(self._v_splats, settings.row(3), COLOR_OFFSET)
        shading.record_backward(recorder, v_colors, v_gaussians.means, parameters.v_sh, self._v_cameras, add_to_means=True)
        parameters.record_statistics(recorder, self._v_splats, splats.radii, cameras.width, cameras.height, self._status)
        parameters.record_adam(recorder, self.config, step, self.dataset.scene_scale, self._status)
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
        needed, failed, longest = (int(x) for x in self._status.numpy())
        if needed:
            self.device.handle.wait_for_idle()
            self._in_flight.clear()
            self._status.write(np.zeros(3, np.uint32))
            self._capacity = max(self._capacity, int(needed * _HEADROOM))
            self._segments = max(self._segments, segments_for(self.device, int(longest * _HEADROOM)))
            self._binning = None
            self.step = failed
            done = [step for step in done if step < failed]
        for step in done:
            if step % every == 0:
                loss = self._target_of(self._cameras_of(self.view_at(step))).loss
                values = loss.values(self._sums[step % len(self._sums)])
                self._finished.append(StepReport(step, self.parameters.count, values))

    def _report(self, on_step: Callable[[StepReport], None] | None) -> None:
        while self._finished:
            report = self._finished.popleft()
            if on_step is not None:
                on_step(report)

    # Room on the device

    def _reserve(self) -> None:
        """Arrays whose size follows the number of Gaussians."""
        count = self.parameters.count
        if count == 0:
            raise SplatError(
                "no Gaussian is left: every one has been pruned; check that the photographs and the poses belong together"
            )
        memory = self.device.memory
        self._splats = Splats.empty(self.device, 1, count)
        self._colors = memory.empty((1, count, 3))
        self._v_splats = memory.empty((1, count, self._settings.row(3)))
        self._v_depths = memory.array(np.zeros((1, count), np.float32))
        self._binning = None

    def _binning_for(self, target: _Target) -> Binning:
        if self._binning is None or self._binning.grid != target.grid:
            self._binning = Binning(self.device, self._splats, target.grid, self._settings.per_isect)
            self._binning.reserve(self._capacity)
        return self._binning

    def _target_of(self, cameras: Cameras) -> _Target:
        size = cameras.width, cameras.height
        if size not in self._targets:
            device, (width, height) = self.device, size
            self._targets[size] = _Target(
                Image.empty(device, 1, height, width, 3),
                TileGrid.over(cameras, self._settings.tile_size),
                PhotometricLoss(device, width, height, self.config.ssim_share),
                device.memory.array(np.zeros((1, height, width, 1), np.float32)),
            )
        return self._targets[size]

    def _cameras_of(self, view: int) -> Cameras:
        if view not in self._cameras:
            self._cameras[view] = device_cameras(self.device, self.dataset.views[view].camera)
        return self._cameras[view]

    def _photograph_of(self, view: int) -> Array:
        if view in self._photographs:
            return self._photographs[view]
        array = self.device.memory.array(pack(self.dataset.image(view)))
        if self._resident_bytes + array.nbytes <= _RESIDENT_BYTES:
            self._photographs[view] = array
            self._resident_bytes += array.nbytes
        return array

    def _initial_gaussians(self) -> Gaussians:
        config, dataset = self.config, self.dataset
        if config.init == "points" and dataset.points is None:
            raise SplatError(f"{dataset.root} holds no points; use --init random")
        if config.init != "random" and dataset.points is not None:
            return Gaussians.from_points(*dataset.points, sh_degree=config.sh_degree)
        rng = np.random.default_rng(config.seed)
        low, high = dataset.bounds
        points = rng.uniform(low, high, (config.random_points, 3))
        return Gaussians.from_points(points, rng.uniform(0, 1, points.shape), sh_degree=config.sh_degree)

    def _refine(self, step: int) -> None:
        """Densify and reset opacities, on the host."""
        state = self.parameters.state()
        if self.config.densifies_at(step):
            rng = np.random.default_rng((self.config.seed, step))
            state = densify(state, self.config, step, self.dataset.scene_scale, rng)
        if self.config.resets_opacities_at(step):
            state = reset_opacities(state, self.config)
        before = self.parameters.count
        self.parameters = Parameters(self.device, state)
        if self.parameters.count != before:
            self._capacity = int(self._capacity * self.parameters.count / max(before, 1))
            self._reserve()


def device_cameras(device: Device, *cameras: Camera) -> Cameras:
    """Cameras of one image size on the device."""
    viewmats = np.stack([camera.viewmat for camera in cameras]).astype(np.float32)
    Ks = np.stack([camera.K for camera in cameras]).astype(np.float32)
    array = device.memory.array
    return Cameras(array(viewmats), array(Ks), cameras[0].width, cameras[0].height)
