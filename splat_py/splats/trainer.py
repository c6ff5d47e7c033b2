"""The training loop: everything of a step on the device, one command buffer a step, no host read in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splat_py.fit.checkpoint import kept_checkpoint
from splat_py.fit.finiteness import check_finite, diverged
from splat_py.fit.in_flight import Overflow, StepsInFlight
from splat_py.fit.photographs import Photographs, views_at
from splat_py.gpu.accumulation import accumulation
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, Operator, get_device
from splat_py.gpu.kernels import UserType
from splat_py.gpu.profiling import Profile
from splat_py.scene.dataset import Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.shaders import ShaderModule
from splat_py.splats.budget import budget_for, growth_limit
from splat_py.splats.camera_arrays import camera_model, device_camera
from splat_py.splats.capture_file import LearntCapture
from splat_py.splats.capture_model import CaptureModel, is_of_capture
from splat_py.splats.checkpoint import Checkpoint, gaussians_of
from splat_py.splats.colors import harmonics
from splat_py.splats.config import TrainConfig
from splat_py.splats.contribution import Removal, prune
from splat_py.splats.data import COLOR_OFFSET, Cameras, Settings, SplatGradients, Splats, StridedView
from splat_py.splats.densification import reset_opacities
from splat_py.splats.depth_supervision import CHANNELS, DepthSupervision, DepthTarget
from splat_py.splats.filter_3d import FILTER, Filter3D
from splat_py.splats.gaussian_rows import check_parameters
from splat_py.splats.initial import initial_gaussians
from splat_py.splats.loss import SUMS, LossValues, PhotometricLoss, pack
from splat_py.splats.own_types import CAMERA, COLOR, SPLAT
from splat_py.splats.parameters import Parameters, State
from splat_py.splats.project import Projection
from splat_py.splats.rasterize import Image, Rasterization
from splat_py.splats.rendering import through
from splat_py.splats.resolution import coarse_camera, coarse_photograph, divisor_at, largest_divisor
from splat_py.splats.shade import Shading
from splat_py.splats.spatial_order import in_spatial_order
from splat_py.splats.splat_types import with_parameters
from splat_py.splats.strategies import record_update, refine
from splat_py.splats.tiles import ANY_LENGTH, Binning, TileGrid, segments_for
from splat_py.splats.training_colors import model_of, with_sizes
from splat_py.splats.validation import SPLATS

# Capacity of tile lists to begin with.
_ISECTS_PER_GAUSSIAN = 4
# What they get beyond what was needed, so that growing scenes rarely exceed it.
_HEADROOM = 1.5


@dataclass(frozen=True)
class StepReport:
    """A finished step."""

    step: int
    gaussians: int
    # Of the photograph at the size that the step compares it at, its sides divided by `divisor`.
    values: LossValues
    divisor: int = 1


@dataclass(frozen=True)
class _Views:
    """Cameras and photographs on the device, at one size, by view."""

    divisor: int
    cameras: dict[int, Cameras]
    photographs: Photographs


@dataclass(frozen=True)
class _Target:
    """Arrays for renders of one size."""

    image: Image
    grid: TileGrid
    loss: PhotometricLoss
    v_alphas: Array
    depth: DepthTarget | None


class Trainer:
    """Optimises Gaussians so that they look like a dataset's photographs.

    Args:
        dataset: from `load_dataset`.
        config: defaults are the field's.
        device: where to train; the default device if None.
        resume: continue from this checkpoint, with its configuration.
        splat: what splats are, in the place of `config.splat`: a name, or a type of one's own, as `rasterization` takes it. A
            checkpoint that carries the source of one is resumed with the same.
        camera, color: what projects, and how colours depend on the direction, in the same way.
        params: initial values of the numbers that each Gaussian has for it, by name: of a type of one's own each, in the order
            of `extras`. Built-in types have theirs.
        trust_source: or compile what the checkpoint carries. It could read and write any memory.

    Raises:
        SplatError: the device cannot train, an option makes no sense or contradicts the checkpoint, or a source cannot be
            compiled or is not trusted.
    """

    def __init__(
        self,
        dataset: Dataset,
        config: TrainConfig | None = None,
        *,
        device: Device | None = None,
        resume: Checkpoint | None = None,
        splat: str | UserType | ShaderModule | None = None,
        camera: str | UserType | ShaderModule | None = None,
        color: str | UserType | ShaderModule | None = None,
        params: Mapping[str, float] | None = None,
        trust_source: bool = False,
    ) -> None:
        self.device = device or get_device()
        self.device.require(Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
        config = resume.config if resume else config or TrainConfig()
        resumed = resume is not None
        config, self.splat = SPLAT.begun_with(config, splat, resumed=resumed, trust_source=trust_source)
        config, model = CAMERA.begun_with(config, camera, resumed=resumed, trust_source=trust_source)
        config, self.color = COLOR.begun_with(config, color, resumed=resumed, trust_source=trust_source)
        self.config = with_parameters(config if resumed else with_sizes(config, self.color), params, resumed)
        self.config.validate()
        self.dataset = through(dataset, model)
        self._color = model_of(self.config, self.color)
        self.profile: Profile | None = None
        # What has been pruned by contribution.
        self.removals: list[Removal] = []
        memory = self.device.memory
        self._settings = Settings(
            self.device.tuning.tile_size,
            raw_params=not self.config.filter_3d,
            antialiased=self.config.antialiased,
            accumulation=accumulation(self.device, self.config.accumulate),
            native_atomics=self.device.native_float_atomics,
            falloff=SPLATS[self.splat][0] if isinstance(self.splat, str) else self.splat,
            extras=len(self.config.parameters()),
            near=dataset.near,
            camera_gradient=self.config.refine_cameras,
        )
        self._depth = DepthSupervision.of(self.device, dataset, self.config)
        self._row = self._settings.row(CHANNELS if self._depth else 3)
        self._steps = StepsInFlight(self.device, resume.step if resume else 0)
        self._sums = [memory.empty(SUMS) for _ in range(self.device.tuning.steps_ahead + 1)]
        # Known depths, and photographs over other backgrounds, are of their own size.
        whole = self._depth is not None or self.config.random_background
        self._largest_divisor = 1 if whole else largest_divisor(self.dataset)
        self._budget = budget_for(self.config, self.dataset)
        self._views: _Views | None = None
        self._targets: dict[tuple[int, int], _Target] = {}
        self._finished: deque[StepReport] = deque()
        self._binning: Binning | None = None
        self._segments = 1
        state = resume.state if resume else None
        self._filter: Filter3D | None = None
        if self.config.filter_3d:
            self._filter = Filter3D(self.device, self._training_cameras, dataset.near, state)
        self._capture = CaptureModel(self.device, self.config, self.dataset, state)
        if resume:
            of_scene = {name: v for name, v in resume.state.items() if name != FILTER and not is_of_capture(name)}
            self.parameters = Parameters(self.device, of_scene)
            self._capacity = resume.capacity
        else:
            fresh = Parameters.fresh(self.device, initial_gaussians(dataset, self.config))
            self.parameters = in_spatial_order(fresh, dataset.bounds)
            self._capacity = _ISECTS_PER_GAUSSIAN * self.parameters.count
        self._reserve()

    # What a user asks of it

    @property
    def step(self) -> int:
        """Steps that have been sent to the device, or after `finish` have been done."""
        return self._steps.step

    def fit(
        self,
        on_step: Callable[[StepReport], None] | None = None,
        checkpoint: Path | None = None,
        between_steps: Callable[[Callable[[], None]], None] | None = None,
    ) -> Gaussians:
        """Train to the last step and return the Gaussians.

        Args:
            on_step: told of finished steps, in order, a little later; of every 32nd where reading from the device costs a copy.
            checkpoint: file to keep a checkpoint in, also when the user interrupts.
            between_steps: called before each step with what acts on a signal that has come, for calls that take long.

        SIGINT, SIGTERM and SIGHUP are acted on between steps, in the main thread.

        Raises:
            SplatError: a parameter is no longer finite, or none of the Gaussians is left. A checkpoint from before stays.
            KeyboardInterrupt: a signal has come, and the checkpoint is written.
        """
        with kept_checkpoint(checkpoint, self.save_checkpoint) as kept:
            while self.step < self.config.steps:
                kept.act_on_interrupt()
                if between_steps is not None:
                    between_steps(kept.act_on_interrupt)
                self.advance()
                if self.step % self.config.checkpoint_every == 0:
                    kept.save()
                self._report(on_step)
            gaussians = self.gaussians()
            check_finite(self.parameters.state(), self.step)
            self._report(on_step)
            kept.save()
            kept.act_on_interrupt()
        return gaussians

    def gaussians(self) -> Gaussians:
        """A copy of the Gaussians as they are now."""
        self.finish()
        state = self.parameters.gaussian_state() | self._filter_state()
        return gaussians_of(state, self.config, self.splat, self.color)

    def learnt_capture(self) -> LearntCapture:
        """What is known now of the capture beside the scene."""
        self.finish()
        return LearntCapture.of(self._capture.state())

    def checkpoint(self) -> Checkpoint:
        """Everything that a later run needs to continue from here."""
        self.finish()
        state = self.parameters.state() | self._filter_state() | self._capture.state()
        return Checkpoint(self.step, self.config, state, self._capacity)

    def save_checkpoint(self, path: Path) -> None:
        """Write `checkpoint()` to a file, atomically.

        Raises:
            SplatError: a parameter is not finite.
        """
        checkpoint = self.checkpoint()
        check_finite(checkpoint.state, checkpoint.step)
        checkpoint.save(path)

    # One step

    def advance(self) -> None:
        """Send the next step to the device, without waiting for it."""
        step = self.step
        self._steps.send(self._submit, self._reserve_lists, self._on_done)
        refines = self.config.densifies_at(step) or self.config.resets_opacities_at(step)
        if refines or self._divisor_at(step + 1) != self._divisor_at(step):
            self.finish()
        if refines:
            self._refine(step)
        if self.config.prunes_contribution_at(step):
            self._prune(step)

    def finish(self) -> None:
        """Wait until every step that was sent has been done, and repeat those whose lists did not fit."""
        self._steps.finish(self._submit, self._reserve_lists, self._on_done)

    def view_at(self, step: int) -> int:
        """The dataset's view that a step renders."""
        (index,) = views_at(step, len(self.dataset.train), 1, self.config.seed)
        return self.dataset.train[index]

    def _submit(self, step: int) -> int:
        view = self.view_at(step)
        recorder, photographs = self.device.record(self.profile), self._views_at(step).photographs
        capture = self._capture.step(recorder, step, view, self._cameras_of(view, step))
        cameras = capture.cameras
        target = self._target_of(cameras)
        parameters, splats, settings = self.parameters, self._splats, self._settings
        model = camera_model(self.dataset.views[view].camera)
        if model != settings.camera_model:
            settings = replace(settings, camera_model=model)
        binning = self._binning_for(target)
        sums, status = self._sums[step % len(self._sums)], self._steps.status

        gaussians = parameters.gaussians
        if self._filter is not None:
            gaussians = self._filter.record(recorder, gaussians, step, status)
        projection = Projection(gaussians, cameras, splats, settings)
        means, degree = parameters.gaussians.means, self.config.degree_at(step)
        color = self._color or harmonics(degree)
        shading = Shading(
            means, parameters.features, cameras, splats.radii, self._colors, color, settings, weights=parameters.weights
        )
        projection.record(recorder)
        shading.record(recorder)
        binning.record_count(recorder)
        binning.record_lists(recorder)
        # No list is longer than there are Gaussians.
        if segments_for(self.device, parameters.count) > self._segments:
            binning.record_max_tile_count(recorder)
        max_list_length = self._segments * (self.device.tuning.segment or ANY_LENGTH)
        binning.record_capacity_check(recorder, status, step, max_list_length)
        features, background, depth = self._colors, capture.background, self._depth
        if depth is not None:
            features, background = depth.record_features(recorder, features, splats.depths), depth.background
        rasterization = Rasterization.of(
            self.device,
            splats,
            features,
            background,
            binning.lists(self._segments),
            target.grid,
            target.image,
            **settings.splat_constants(),
        )
        rasterization.record(recorder)
        shown = target.image
        if depth is not None and target.depth is not None:
            shown = replace(shown, colors=depth.record_colors(recorder, shown, target.depth))
        target.loss.record(recorder, capture.shown(shown), capture.photograph(photographs[view]), sums)
        v_render = target.loss.v_render
        capture.backward(v_render, target.v_alphas)
        if depth is not None and target.depth is not None:
            v_render = depth.record_gradient(recorder, view, target.image, target.depth, v_render, target.v_alphas)
        rasterization.record_backward(recorder, v_render, target.v_alphas, self._v_splats, settings)
        if depth is not None:
            depth.record_splat_gradients(recorder, self._v_splats, self._v_depths)
        v_splats = SplatGradients.of_rows(self._v_splats, self._v_depths)
        v_gaussians = parameters.v_gaussians
        projection.record_backward(recorder, v_splats, v_gaussians, capture.v_projection)
        if self._filter is not None:
            self._filter.record_backward(recorder, v_gaussians)
        v_colors = StridedView(self._v_splats, self._row, COLOR_OFFSET)
        v_features, v_weights = parameters.v_features, parameters.v_weights
        if v_weights is not None:
            recorder.clear(v_weights)
        shading.record_backward(
            recorder, v_colors, v_gaussians.means, v_features, capture.v_shading, add_to_means=True, v_weights=v_weights
        )
        if self.config.strategy == "default":
            parameters.record_statistics(recorder, self._v_splats, splats.radii, cameras.width, cameras.height, status)
        record_update(recorder, parameters, self.config, step, self.dataset.scene_scale, self._v_splats, status)
        capture.update(status)
        return recorder.submit(wait=False)

    def _on_done(self, step: int) -> None:
        loss = self._target_of(self._cameras_of(self.view_at(step), step)).loss
        values = loss.values(self._sums[step % len(self._sums)])
        if not np.isfinite(values.loss):
            self.device.handle.wait_for_idle()
            check_finite(self.parameters.state(), step + 1)
            raise diverged("the loss", step + 1)
        self._finished.append(StepReport(step, self.parameters.count, values, self._divisor_at(step)))

    def _report(self, on_step: Callable[[StepReport], None] | None) -> None:
        while self._finished:
            report = self._finished.popleft()
            if on_step is not None:
                on_step(report)

    # Arrays on the device

    def _reserve(self) -> None:
        """Arrays whose size follows the number of Gaussians."""
        count, memory = self.parameters.count, self.device.memory
        self._splats = replace(Splats.empty(self.device, 1, count), extras=self.parameters.gaussians.extras)
        self._colors = memory.empty((1, count, 3))
        self._v_splats = memory.empty((1, count, self._row))
        self._v_depths = memory.array(np.zeros((1, count), np.float32))
        self._binning = None

    def _reserve_lists(self, overflow: Overflow) -> None:
        """Tile lists that hold what did not fit."""
        self._capacity = max(self._capacity, int(overflow.isect_count * _HEADROOM))
        self._segments = max(self._segments, segments_for(self.device, int(overflow.max_tile_count * _HEADROOM)))
        self._binning = None

    def _binning_for(self, target: _Target) -> Binning:
        if self._binning is None or self._binning.grid != target.grid:
            bounds = self._settings.bounds_constants()
            self._binning = Binning(self.device, self._splats, target.grid, self._settings.per_isect, bounds=bounds)
            self._binning.reserve(self._capacity)
        return self._binning

    def _target_of(self, cameras: Cameras) -> _Target:
        size = cameras.width, cameras.height
        if size not in self._targets:
            device, (width, height) = self.device, size
            self._targets[size] = _Target(
                Image.empty(device, 1, height, width, CHANNELS if self._depth else 3),
                TileGrid.over(cameras, self._settings.tile_size),
                PhotometricLoss(device, width, height, self.config.ssim_lambda),
                device.memory.array(np.zeros((1, height, width, 1), np.float32)),
                self._depth.target(width, height) if self._depth else None,
            )
        return self._targets[size]

    def _divisor_at(self, step: int) -> int:
        return divisor_at(self.config, step, self._largest_divisor)

    def _views_at(self, step: int) -> _Views:
        """Those of a step's size; others are let go of."""
        divisor, dataset = self._divisor_at(step), self.dataset

        def photograph(view: int) -> NDArray[np.uint32]:
            return pack(coarse_photograph(dataset.image(view), coarse_camera(dataset.views[view].camera, divisor)))

        if self._views is None or self._views.divisor != divisor:
            self._views = _Views(divisor, {}, Photographs(self.device.memory, photograph))
            self._targets.clear()
        return self._views

    def _cameras_of(self, view: int, step: int) -> Cameras:
        views = self._views_at(step)
        if view not in views.cameras:
            camera = coarse_camera(self.dataset.views[view].camera, views.divisor)
            views.cameras[view] = device_camera(self.device, camera)
        return views.cameras[view]

    def _training_cameras(self) -> Iterator[tuple[Cameras, str | UserType]]:
        for view in self.dataset.train:
            camera = self.dataset.views[view].camera
            yield device_camera(self.device, camera), camera_model(camera)

    def _filter_state(self) -> State:
        return {} if self._filter is None else self._filter.state(self.parameters.gaussians)

    def _refine(self, step: int) -> None:
        """Densify and reset opacities."""
        before = self.parameters
        check_parameters(before, step + 1)
        if self.config.densifies_at(step):
            limit = growth_limit(self.config, step, before.count, self._budget)
            refined = refine(before, replace(self.config, max_gaussians=limit), step, self.dataset.scene_scale)
            self.parameters = in_spatial_order(refined, self.dataset.bounds)
        if self.config.resets_opacities_at(step):
            reset_opacities(self.parameters, self.config)
        if self.parameters.count != before.count:
            self._capacity = int(self._capacity * self.parameters.count / max(before.count, 1))
        if self.parameters.count != before.count or self._settings.extras:
            self._reserve()

    def _prune(self, step: int) -> None:
        """Remove Gaussians that contribute little, and tell it in `removals`."""
        self.parameters, removal = prune(self.parameters, self.gaussians(), self.dataset, self.config, step)
        self.removals.append(removal)
        self._reserve()
