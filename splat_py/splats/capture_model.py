"""What training learns of a capture beside its scene, each part only where it is asked for: how photographs were
exposed, where and with what they were taken, and what is behind the scene."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splat_py.errors import SplatError
from splat_py.files import Layout
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.scene.dataset import Dataset
from splat_py.splats.camera_gradients import CAMERA_ROW, row_length
from splat_py.splats.camera_refinement import INTRINSICS, LENS_CORRECTION, POSE_CORRECTION, POSES, CameraRefinement
from splat_py.splats.config import TrainConfig
from splat_py.splats.data import Cameras
from splat_py.splats.environment import COEFFICIENTS, ENVIRONMENT, LearntEnvironment, environment_parts, require_pinhole
from splat_py.splats.exposure import EXPOSURE, EXPOSURES, Exposures, exposure_parts
from splat_py.splats.parameters import MOMENTS, State
from splat_py.splats.random_background import RandomBackgrounds
from splat_py.splats.rasterize import Image


class CaptureModel:
    """The parts that a run's options ask for, and their state in checkpoints.

    Raises:
        SplatError: a checkpoint is of another number of photographs, or an environment is asked for behind cameras that are no
            pinholes.
    """

    def __init__(self, device: Device, config: TrainConfig, dataset: Dataset, state: State | None) -> None:
        count = len(dataset.train)
        for name in (EXPOSURES, POSES):
            if state and name in state and len(state[name]) != count:
                raise SplatError(
                    f"the checkpoint knows the {name} of {len(state[name])} photographs, but {dataset.root} trains on "
                    f"{count}; name the capture that the run was begun with"
                )
        self._device, self._config = device, config
        self._places = {view: place for place, view in enumerate(dataset.train)}
        self._exposures = Exposures(device, count, state) if config.exposure else None
        self._cameras = CameraRefinement(device, count, dataset.scene_scale, state) if config.refine_cameras else None
        self._environment: LearntEnvironment | None = None
        background = dataset.background
        if config.environment:
            for view in dataset.views:
                require_pinhole(view.camera)
            self._environment = LearntEnvironment(device, state)
            background = np.zeros_like(background)
        self._backgrounds = RandomBackgrounds(device, dataset, config.seed) if config.random_background else None
        self._background = device.memory.array(background[None])
        # Of cameras, where nobody wants them.
        self._no_gradients = device.memory.empty((1, CAMERA_ROW))

    def state(self) -> State:
        """A copy of everything, on the host. Nothing that writes it may still be running."""
        parts = (self._exposures, self._cameras, self._environment)
        return {name: values for part in parts if part for name, values in part.state().items()}

    def step(self, recorder: Recorder, step: int, order: int, view: int, cameras: Cameras) -> CaptureStep:
        """What there is to do for a view's photograph in a step, the `order`-th of its batch; `cameras` is the view's as
        captured."""
        place, gradients = self._places[view], (self._no_gradients, self._no_gradients)
        captured = cameras
        if self._cameras:
            cameras = self._cameras.record(recorder, place, captured)
            gradients = recorder.scratch((1, row_length(captured))), recorder.scratch((1, CAMERA_ROW))
            for array in gradients:
                recorder.clear(array)
        background = self._backgrounds.at(step) if self._backgrounds else self._background
        return CaptureStep(self, recorder, step, order, view, place, captured, cameras, background, *gradients)

    def absent(self, step: int, order: int, view: int, cameras: Cameras) -> CaptureStep:
        """The same of a photograph that another process renders, with gradients of 0."""
        place, pixels, zeros = self._places[view], cameras.width * cameras.height, self._device.memory.zeros
        gradients = self._no_gradients, self._no_gradients
        if self._cameras:
            gradients = zeros((1, row_length(cameras))), zeros((1, CAMERA_ROW))
        step_of = CaptureStep(self, None, step, order, view, place, cameras, cameras, self._background, *gradients)
        if self._exposures:
            step_of._v_exposure = zeros(exposure_parts(pixels))
        if self._environment:
            step_of._v_environment = zeros(environment_parts(pixels))
        return step_of


@dataclass
class CaptureStep:
    """One photograph of a step: `shown`, `backward` and `update` record what comes where the trainer calls them, in this order.

    Photographs of a batch are rendered with what is known before the step, and then each is learnt from as if it were a step's
    only one: most of this is its own.

    Attributes:
        cameras, background: to render with.
        v_projection, v_shading: where the gradients of `cameras` add up, of each of the two stages.
    """

    model: CaptureModel
    recorder: Recorder | None
    step: int
    order: int
    view: int
    place: int
    captured: Cameras
    cameras: Cameras
    background: Array
    v_projection: Array
    v_shading: Array
    _image: Image | None = None
    _over: Array | None = None
    _v_exposure: Array | None = None
    _v_environment: Array | None = None

    @property
    def _recorder(self) -> Recorder:
        assert self.recorder is not None
        return self.recorder

    def photograph(self, photograph: Array) -> Array:
        """What is compared with: the photograph as from `pack`, over the background of the step."""
        backgrounds = self.model._backgrounds
        return backgrounds.record(self._recorder, self.step, self.view, photograph) if backgrounds else photograph

    def shown(self, image: Image) -> Array:
        """What is compared, [1, H, W, 3]: the render, what is behind it added, as the photograph shows it."""
        environment, exposures = self.model._environment, self.model._exposures
        self._image = image
        self._over = environment.record(self._recorder, self.cameras, image) if environment else image.colors
        return exposures.record(self._recorder, self.place, self._over) if exposures else self._over

    def backward(self, v_shown: Array, v_alphas: Array) -> None:
        """The gradient of what `shown` returned becomes that of the render in place, and, if that has one, of its alphas."""
        environment, exposures = self.model._environment, self.model._exposures
        if exposures:
            assert self._over is not None
            self._v_exposure = exposures.record_backward(self._recorder, self.place, self._over, v_shown)
        if environment:
            assert self._image is not None
            self._v_environment = environment.record_backward(self._recorder, self.cameras, self._image, v_shown, v_alphas)

    @property
    def gradients(self) -> list[Array]:
        """What `update` learns from."""
        of_cameras = [self.v_projection, self.v_shading] if self.model._cameras else []
        return [*of_cameras, *(array for array in (self._v_exposure, self._v_environment) if array is not None)]

    def update(self, recorder: Recorder, status: Array) -> None:
        """Learn, unless `status` says that the step does not count."""
        model, place, batch = self.model, self.place, self.model._config.photographs
        epoch, progress = self.step // (len(model._places) // batch), self.step / model._config.steps
        # Photographs before this one, of the whole run.
        before = self.step * batch + self.order
        if model._exposures:
            assert self._v_exposure is not None
            model._exposures.record_update(recorder, place, self._v_exposure, status, epoch, progress)
        if model._environment:
            assert self._v_environment is not None
            model._environment.record_update(recorder, self._v_environment, status, before, progress)
        if model._cameras:
            gradients = self.v_projection, self.v_shading
            model._cameras.record_update(
                recorder, place, self.captured, gradients, status, epoch=epoch, step=before, progress=progress
            )


def is_of_capture(name: str) -> bool:
    """Whether an array of a checkpoint is the capture's and not the scene's."""
    return name.partition(".")[0] in (EXPOSURES, POSES, INTRINSICS, ENVIRONMENT)


def capture_shapes(config: TrainConfig, layout: Layout) -> dict[str, tuple[int, ...]]:
    """The shapes of those arrays.

    Raises:
        KeyError, ValueError: one that says how many photographs there are is missing, or has none.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    each = {EXPOSURES: EXPOSURE} if config.exposure else {}
    each |= {POSES: POSE_CORRECTION} if config.refine_cameras else {}
    for name, row in each.items():
        _, (count, *_) = layout[name]
        if count == 0:
            raise ValueError(f"{name} are of no photograph")
        shapes[name] = (count, row)
    if config.refine_cameras:
        shapes[INTRINSICS] = (LENS_CORRECTION,)
    if config.environment:
        shapes[ENVIRONMENT] = (COEFFICIENTS, 3)
    return {f"{name}{suffix}": shape for name, shape in shapes.items() for suffix in ("", *(f".{m}" for m in MOMENTS))}
