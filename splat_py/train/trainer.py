"""The training loop: each step runs on the device, in one command buffer, without host reads in between."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.fit.distributed import ALONE, Ranks, device_of, joined
from splat_py.fit.process import Interrupts, kept_checkpoint, launch_of
from splat_py.fit.steps import AHEAD, Overflow, StepsInFlight, check_finite, diverged, views_at
from splat_py.gpu.device import Device, Operator, get_device
from splat_py.gpu.kernels import Recorder, UserType
from splat_py.render.cameras import Cameras
from splat_py.render.splats import StridedRows
from splat_py.render.views import through
from splat_py.scene.dataset import Dataset
from splat_py.scene.environment import require_pinhole
from splat_py.scene.gaussians import Gaussians
from splat_py.shaders.custom_types import CAMERA, COLOR, PIXEL_LOSS, SPLAT
from splat_py.shaders.functions import ShaderModule
from splat_py.train import density
from splat_py.train.capture_model import CaptureModel, CaptureStep, LearntCapture
from splat_py.train.checkpoint import Checkpoint, initial_count, initial_gaussians, numbers_of, with_sizes
from splat_py.train.config import TrainConfig
from splat_py.train.hooks import Callback, OwnStrategy, StepTensors
from splat_py.train.memory import plan_memory
from splat_py.train.parameters import Filter3D, ParameterMeans, Parameters, State, first_averaged, gaussians_of, groups_of
from splat_py.train.photometric_loss import SUMS, LossValues
from splat_py.train.step import BatchSums, PhotographGradients, extras_of
from splat_py.train.views import TrainingViews, camera_model, device_camera, largest_divisor


@dataclass(frozen=True)
class StepReport:
    step: int
    gaussians: int
    # Means over the step's photographs, at the size that the step compares: sides divided by `divisor`.
    values: LossValues
    divisor: int = 1


class Trainer(StepsInFlight):
    """Optimises Gaussians to look like a dataset's photographs.

    Args:
        dataset: from `load_dataset`.
        config: options of the run; by default `TrainConfig()`.
        device: where to train; the default device if None.
        resume: continue from this checkpoint, with its configuration.
        splat: the splat type instead of `config.splat`: a name or your own type, as for `rasterization`. If `resume` carries
            the source of your own type, pass it again, or see `trust_source`.
        camera, color, pixel_loss: the camera model, the type of view-dependent colour and a pixel's loss, in the same way.
        splat_params: initial splat parameters by name, a number for all Gaussians or a tensor [N] with one for each of those
            to begin with. Your own type needs all of its fields; built-in types have defaults.
        gaussians: begin with these, in the dataset's frame, in the place of its points. Parameters that `splat_params` does not
            name are their own, if they have them. Harmonics are cut, or continued with zeros, to `config.sh_degree`.
        on_gradients: called in each step with complete gradients, before Adam, as `on_gradients(step, params, info)`. It may
            change values and `.grad` of `params`, torch parameters by gsplat's names: means [N, 3], quats [N, 4] w x y z,
            scales [N, 3] as logarithms, opacities [N] as logits, sh [N, K, 3] or features [N, F] and weights [W], and the splat
            parameters extras [N, E]. `info` has of the last photograph means2d [1, N, 2] with `.grad`, radii [1, N, 2], width
            and height, in pixels; n_cameras, 1; and, unless `config.strategy` is mcmc, what densification has added up:
            gradient_norms, times_seen and max_radii [N].
        on_update: called in the same way after each step's update. Every process calls both.
        strategy: an object with gsplat's `step_post_backward(params, optimizers, state, step, info)`, which adds and removes
            Gaussians in the place of densification: gsplat's, ours of `splat_py.gsplat`, or your own.
        trust_source: compile the source that `resume` carries. It could read and write any memory.
        distributed: True, or `Ranks` from `joined`, if several processes train one scene, started by torchrun or known to
            torch.distributed. Each renders its share of a step's photographs; everything else is the same in all, and the first
            one reports and writes.
        max_memory: bytes that training may use; by default three quarters of the free memory (`plan_memory`).

    Raises:
        SplatError: the device cannot train, training would exceed its memory, an option is invalid or contradicts the
            checkpoint, or a source cannot be compiled or is not trusted.
    """

    def __init__(
        self,
        dataset: Dataset,
        config: TrainConfig | None = None,
        *,
        device: Device | str | None = None,
        resume: Checkpoint | None = None,
        splat: str | UserType | ShaderModule | None = None,
        camera: str | UserType | ShaderModule | None = None,
        color: str | UserType | ShaderModule | None = None,
        pixel_loss: str | UserType | ShaderModule | None = None,
        splat_params: Mapping[str, ArrayLike | Tensor] | None = None,
        gaussians: Gaussians | None = None,
        on_gradients: Callback | None = None,
        on_update: Callback | None = None,
        strategy: Any = None,
        trust_source: bool = False,
        distributed: bool | Ranks = False,
        max_memory: int | None = None,
    ) -> None:
        if distributed is True and isinstance(device, str | None):
            device = device_of(launch_of(), device)
        self.device = get_device(device)
        self.device.require(Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
        begun: TrainConfig = resume.config if resume else config or TrainConfig()
        resumed = resume is not None
        begun, self.splat = SPLAT.begun_with(begun, splat, resumed=resumed, trust_source=trust_source)
        begun, model = CAMERA.begun_with(begun, camera, resumed=resumed, trust_source=trust_source)
        begun, self.color = COLOR.begun_with(begun, color, resumed=resumed, trust_source=trust_source)
        if begun.own_strategy and strategy is None:
            raise SplatError("the run was begun with a strategy object, which a checkpoint does not hold; give strategy again")
        begun = replace(begun, own_strategy=strategy is not None)
        begun, loss = PIXEL_LOSS.begun_with(begun, pixel_loss, resumed=resumed, trust_source=trust_source)
        params = numbers_of(splat_params or {})
        means = {name: float(values.mean()) for name, values in params.items()} if splat_params is not None else None
        self.config = (begun if resumed else with_sizes(begun, self.color)).with_parameters(means, resumed)
        self.ranks = distributed if isinstance(distributed, Ranks) else joined(self.device) if distributed else ALONE
        self.config = replace(self.config, batch=self.ranks.batch_of(self.config.batch))
        self.config.validate()
        if self.config.batch > len(dataset.train):
            raise SplatError(
                f"batch is {self.config.batch}, but {dataset.root} has {len(dataset.train)} photographs to train on; "
                + ("start fewer processes" if self.config.batch == self.ranks.size > 1 else "choose a smaller batch")
            )
        self.dataset = through(dataset, model, self.config.camera_params)
        for seen in self.dataset.train_cameras if self.config.has_surfels else ():
            require_pinhole(seen, "splat Surfel")
        if resume and gaussians is not None:
            raise SplatError("gaussians begin a run, and a checkpoint to resume has its own; leave out one")
        given = 0 if gaussians is None else len(gaussians)
        count = len(resume.state["means"]) if resume else given
        self.memory = plan_memory(self.dataset, self.config, self.device, max_memory, count, self.ranks.local_size)
        # Prunings by contribution.
        self.removals: list[density.Removal] = []
        super().__init__(self.device, resume.step if resume else 0)
        # Loss sums of each photograph of the steps in flight, and loss values over all processes.
        each = self.config.photographs // self.ranks.size
        ahead = self.device.tuning.steps_ahead + 1
        self._sums = [[self.device.memory.empty(SUMS) for _ in range(each)] for _ in range(ahead)]
        self._values: dict[int, LossValues] = {}
        self._interrupts = Interrupts()
        self._stopped_by = 0
        self._budget = self.config.budget_of(self.dataset.pixels, given or initial_count(self.config, self.dataset))
        if given:
            # A resumed run does not know how many Gaussians it began with.
            self.config = replace(self.config, budget=self._budget)
        self._views: TrainingViews | None = None
        self._finished: deque[StepReport] = deque()
        state = resume.state if resume else None
        self._filter = Filter3D(self.device, self._training_cameras, dataset.near, state) if self.config.filter_3d else None
        self._capture = CaptureModel(self.device, self.config, self.dataset, state)
        if resume:
            self.parameters = Parameters(self.device, resume.parameters())
        else:
            fresh = Parameters.fresh(self.device, initial_gaussians(dataset, self.config, gaussians, params))
            self.parameters = density.in_spatial_order(fresh, dataset.bounds)
        self._means = ParameterMeans(self.device, first_averaged(self.config, len(dataset.train)), self.step, state)
        types, capacity = (self.splat, self.color, loss), resume.capacity if resume else None
        self._gradients = PhotographGradients(self.device, self.dataset, self.config, *types, self.parameters, capacity)
        self._on_gradients, self._on_update = on_gradients, on_update
        self._strategy = None if strategy is None else OwnStrategy(strategy, dataset.scene_scale)
        self._hooked = any(hook is not None for hook in (on_gradients, on_update, strategy))
        # Gradients of harmonics exist only if Adam takes its step apart from the shading.
        self._gradients.learns_in_shading &= not self._hooked
        self._v_extras: StridedRows | None = None
        self._batch = BatchSums(self.parameters) if self.config.photographs > 1 else None
        # Known depths and photographs over random backgrounds exist only at full size.
        whole = self.config.depth_lambda > 0 or self.config.random_background
        self._largest_divisor = 1 if whole else largest_divisor(self.dataset)

    # Public interface

    def fit(
        self,
        on_step: Callable[[StepReport], None] | None = None,
        checkpoint: Path | None = None,
        between_steps: Callable[[Callable[[], None]], None] | None = None,
    ) -> Gaussians:
        """Train to the last step and return the Gaussians.

        Args:
            on_step: called for finished steps, in order, a little later; for every 32nd if reading the device costs a copy.
            checkpoint: file to keep a checkpoint in, also when the user interrupts.
            between_steps: called before each step with a function that long calls use to act on a signal.

        SIGINT, SIGTERM and SIGHUP are acted on between steps, in the main thread.

        Raises:
            SplatError: a parameter is no longer finite, or no Gaussian is left. An earlier checkpoint stays.
            KeyboardInterrupt: a process has received a signal; the checkpoint is written, unless a second signal or a handler
                of the caller's own has interrupted a step.
            RankLostError: another process has ended; the checkpoint is written.
        """
        if not self.ranks.first:
            on_step = checkpoint = between_steps = None
        with kept_checkpoint(checkpoint, self.save_checkpoint) as (interrupts, save):
            self._interrupts = interrupts
            while self.step < self.config.steps:
                # Several processes end once all know of the signal.
                if self.ranks.alone or self._stopped_by:
                    interrupts.act(self._stopped_by)
                if between_steps is not None:
                    between_steps(interrupts.act)
                self.advance()
                if self.step % self.config.checkpoint_every == 0:
                    save()
                self._report(on_step)
            gaussians = self.gaussians()
            check_finite(self.parameters.state(), self.step)
            self._require_equal()
            self._report(on_step)
            save()
            interrupts.act()
        return gaussians

    def gaussians(self) -> Gaussians:
        """Return a copy of the Gaussians as they are now, or, in the last epochs, of their means over these steps."""
        self.finish()
        state = self.parameters.gaussian_state() | self._means.state() | self._filter_state()
        return gaussians_of(state, self.config, self.splat, self.color)

    def learnt_capture(self) -> LearntCapture:
        """Return the present looks, cameras and environment."""
        self.finish()
        return LearntCapture.of(self._capture.state())

    def checkpoint(self) -> Checkpoint:
        """Return everything that a later run needs to continue from here."""
        self.finish()
        state = self.parameters.state() | self._means.state() | self._filter_state() | self._capture.state()
        return Checkpoint(self.step, self.config, state, self._gradients.capacity)

    def save_checkpoint(self, path: Path) -> None:
        """Write `checkpoint()` to a file, atomically; SplatError if a parameter is not finite."""
        checkpoint = self.checkpoint()
        check_finite(checkpoint.state, checkpoint.step)
        checkpoint.save(path)

    # One step

    def advance(self) -> None:
        """Send the next step to the device without waiting for it, and densify or prune after it if that is due."""
        step = self.step
        self._send()
        if self._hooked:
            self._call_after(step)
        refines = self.config.densifies_at(step) or self.config.resets_opacities_at(step)
        if refines or self._divisor_at(step + 1) != self._divisor_at(step):
            self.finish()
        if refines:
            self._refine(step)
        if self.config.prunes_at(step):
            shown = self.gaussians()
            self.parameters, removal = density.prune(self.parameters, shown, self.dataset, self.config, step, self.ranks)
            self.removals.append(removal)
            self._reserve()
        if refines:
            self._require_equal()

    def views_of(self, step: int) -> list[int]:
        """Return the dataset's views that a step renders, over all processes."""
        train = self.dataset.train
        return [train[index] for index in views_at(step, len(train), self.config.photographs, self.config.seed)]

    def _own_views(self, step: int) -> list[int]:
        views = self.views_of(step)
        return views[self.ranks.own(len(views))]

    def _submit(self, step: int) -> int:
        while True:
            recorder = self.device.record()
            captures = self._record_photographs(recorder, step)
            if self.ranks.alone and not self._hooked:
                break
            recorder.submit()
            if self._fitted():
                if not self.ranks.alone:
                    self._exchange(step, captures)
                recorder = self.device.record()
                break
        self._record_sums(recorder, captures)
        if self._on_gradients is not None:
            recorder.submit()
            self._tensors(step).call(self._on_gradients, step)
            recorder = self.device.record()
        self._record_update(recorder, step, captures)
        return recorder.submit(wait=False)

    def _record_photographs(self, recorder: Recorder, step: int) -> list[CaptureStep]:
        """Record the gradients of this process's photographs. Returns the capture's part of every photograph of the step."""
        parameters, gradients, batch, status = self.parameters, self._gradients, self._batch, self._status
        sums, own = iter(self._sums[step % len(self._sums)]), self._own_views(step)
        photographs = self._views_at(step).photographs
        ahead = range(step, min(step + 1 + AHEAD, self.config.steps))
        same_size = (at for at in ahead if self._divisor_at(at) == self._divisor_at(step))
        photographs.prefetch(view for at in same_size for view in self._own_views(at))
        gaussians = parameters.gaussians
        if self._filter is not None:
            gaussians = self._filter.record(recorder, gaussians, step, status)
        if batch is not None:
            batch.begin(recorder)
        captures = []
        for order, view in enumerate(self.views_of(step)):
            # A view is in a batch only once; other processes render the views that are not in `own`.
            renders = recorder if view in own else None
            capture = CaptureStep(self._capture, renders, step, order, view, self._views_at(step))
            captures.append(capture)
            if renders is None:
                continue
            gradients.record(recorder, parameters, gaussians, capture, photographs[view], next(sums), status)
            if self._filter is not None:
                self._filter.record_backward(recorder, parameters.v_gaussians)
            if self.config.strategy == "default":
                of_batch = None if batch is None else batch.statistics
                size, splats = (capture.cameras.width, capture.cameras.height), gradients.splats
                more = gradients.more_of_means(self.dataset.views[view].camera, self._divisor_at(step))
                parameters.record_statistics(recorder, gradients.v_splats, splats.radii, *size, status, of_batch, more)
            if batch is not None:
                batch.add(recorder, gradients.v_splats)
        return captures

    def _record_sums(self, recorder: Recorder, captures: list[CaptureStep]) -> None:
        """Record what completes the gradients of a step's photographs: means over them, and regularisers."""
        self._v_extras, extras = None, len(self.config.parameters())
        if self._batch is not None:
            self._v_extras = self._batch.end(recorder, len(captures), self._status)
        elif extras:
            self._v_extras = extras_of(self._gradients.v_splats, extras)
        opacity_reg, scale_reg = self.config.regularizers
        if opacity_reg > 0 or scale_reg > 0:
            density.record_prior(recorder, self.parameters, opacity_reg, scale_reg)

    def _record_update(self, recorder: Recorder, step: int, captures: list[CaptureStep]) -> None:
        """Record the updates of all parameters."""
        config, status, in_shading = self.config, self._status, self._gradients.learns_in_shading
        self.parameters.record_adam(recorder, config, step, self.dataset.scene_scale, self._v_extras, status, in_shading)
        if config.strategy == "mcmc" and self._strategy is None:
            density.record_noise(recorder, self.parameters, config, step, self.dataset.scene_scale, status)
        self._means.record(recorder, self.parameters, step, status)
        for capture in captures:
            capture.update(recorder, status)

    def _reserve_lists(self, overflow: Overflow) -> None:
        self._gradients.reserve_lists(overflow)

    def _on_done(self, step: int) -> None:
        values = self._values.pop(step, None) or LossValues.mean(self._own_values(step))
        if not np.isfinite(values.loss):
            self.device.handle.wait_for_idle()
            check_finite(self.parameters.state(), step + 1)
            raise diverged("the loss", step + 1)
        self._finished.append(StepReport(step, self.parameters.count, values, self._divisor_at(step)))

    def _own_values(self, step: int) -> list[LossValues]:
        own = zip(self._own_views(step), self._sums[step % len(self._sums)], strict=True)
        return [self._gradients.target_of(self._views_at(step).cameras_of(view)).loss.values(sums) for view, sums in own]

    def _report(self, on_step: Callable[[StepReport], None] | None) -> None:
        while self._finished:
            report = self._finished.popleft()
            if on_step is not None:
                on_step(report)

    # Callbacks and strategies of one's own

    def _tensors(self, step: int) -> StepTensors:
        view = self._own_views(step)[-1]
        more = self._gradients.more_of_means(self.dataset.views[view].camera, self._divisor_at(step))
        cameras = self._views_at(step).cameras_of(view)
        info = {"width": cameras.width, "height": cameras.height, "n_cameras": 1, "gaussian_ids": None}
        return StepTensors(self.parameters, self._v_extras, self._gradients, more, info, self.config.strategy == "default")

    def _call_after(self, step: int) -> None:
        self.finish()
        if self._on_update is not None:
            self._tensors(step).call(self._on_update, step)
        if self._strategy is None:
            return
        changed = self._strategy.changed(self._tensors(step), step, self.config.means_lr_at(step, self.dataset.scene_scale))
        if changed is not None:
            count, self.parameters = self.parameters.count, changed
            self._scale_capacity(count)
            self._means.restart(step + 1)

    # Several processes

    def _fitted(self) -> bool:
        """True if the lists of all processes were long enough; otherwise enlarge them, and all processes repeat the step."""
        overflow = Overflow(*map(int, self._status.numpy()))
        missing, self._stopped_by = self.ranks.largest([overflow.isect_count, self._interrupts.number or 0])
        if overflow.isect_count:
            self._status.write(np.zeros(3, np.uint32))
            self._gradients.reserve_lists(overflow)
        return missing == 0

    def _exchange(self, step: int, captures: list[CaptureStep]) -> None:
        """Add up losses and gradients over the processes."""
        assert self._batch is not None
        self._values.pop(step - len(self._sums), None)
        self._values[step] = LossValues.mean(self._own_values(step), self.ranks.total)
        self.ranks.add_up([*self._batch.sums, *(array for capture in captures for array in capture.gradients)])
        self.ranks.take_largest(self._batch.largest)

    def _require_equal(self) -> None:
        self.ranks.require_equal([self.parameters.arrays[name] for name in groups_of(self.parameters.arrays)], self.step)

    # Arrays on the device

    def _divisor_at(self, step: int) -> int:
        return self.config.divisor_at(step, self._largest_divisor)

    def _views_at(self, step: int) -> TrainingViews:
        """Return the views at a step's size, and release those of other sizes."""
        divisor = self._divisor_at(step)
        if self._views is None or self._views.divisor != divisor:
            self._views = TrainingViews(self.device, self.dataset, divisor, self.memory.photographs)
            self._gradients.targets.clear()
        return self._views

    def _training_cameras(self) -> Iterator[tuple[Cameras, str | UserType]]:
        for view in self.dataset.train:
            camera = self.dataset.views[view].camera
            yield device_camera(self.device, camera), camera_model(camera)

    def _filter_state(self) -> State:
        return {} if self._filter is None else self._filter.state(self.parameters.gaussians)

    def _refine(self, step: int) -> None:
        before = self.parameters.count
        density.check_parameters(self.parameters, step + 1)
        # It holds the arrays of the previous Gaussians.
        self._batch = None
        if self.config.densifies_at(step):
            limited = replace(self.config, max_gaussians=self.config.growth_limit(step, before, self._budget))
            if limited.strategy == "mcmc":
                self.parameters = density.relocate_and_grow(self.parameters, limited, step)
            else:
                self.parameters = density.densify(self.parameters, limited, step, self.dataset.scene_scale)
            # Releases the previous Gaussians, so that at most two copies exist at once.
            self._gradients.reserve(self.parameters)
            self.parameters = density.in_spatial_order(self.parameters, self.dataset.bounds)
        if self.config.resets_opacities_at(step):
            density.reset_opacities(self.parameters, self.config)
        self._scale_capacity(before)

    def _scale_capacity(self, before: int) -> None:
        """Reserve what the number of Gaussians needs, which was another one before."""
        if self.parameters.count != before:
            self._gradients.capacity = int(self._gradients.capacity * self.parameters.count / max(before, 1))
        self._reserve()

    def _reserve(self) -> None:
        self._gradients.reserve(self.parameters)
        self._batch = BatchSums(self.parameters) if self.config.photographs > 1 else None
