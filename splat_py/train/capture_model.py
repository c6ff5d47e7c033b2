"""A run's learnt parts of a capture (learnt_parts.py), together in a step, in checkpoints and in the run's folder. Options
choose among looks of photographs, poses and lenses of cameras, and an environment behind the scene, such as a sky."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.base.files import Layout, save_tensors
from splat_py.fit.run_folder import reading, require_layout
from splat_py.fit.steps import with_moments
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.render.cameras import CAMERA_ROW
from splat_py.render.images import Image
from splat_py.scene.camera import Camera, Distortion
from splat_py.scene.dataset import Dataset
from splat_py.scene.environment import Environment, require_pinhole
from splat_py.scene.images import Lens
from splat_py.train.config import TrainConfig
from splat_py.train.learnt_parts import (
    COEFFICIENTS,
    ENVIRONMENT,
    EXPOSURES,
    GRID,
    GRIDS,
    INTRINSICS,
    LENS_CORRECTION,
    OWN_CORRECTION,
    POSE_CORRECTION,
    POSES,
    PPISP,
    RESPONSE,
    SHARED,
    BilateralGrids,
    CameraRefinement,
    LearntEnvironment,
    Looks,
    look_of,
    part_rows,
)
from splat_py.train.parameters import State
from splat_py.train.views import RandomBackgrounds, TrainingViews

# Kind of the files that hold learnt captures.
_CAPTURE = "splat_py.capture"


def corrected(camera: Camera, pose: NDArray, shared: NDArray) -> Camera:
    """Return a camera with the corrections of its pose [6] and of the shared intrinsics [7 or 15] applied (`correctCamera`)."""
    K = camera.K.copy()
    K[(0, 1), (0, 1)] *= np.exp(shared[0])
    K[:2, 2] += shared[1:3] * (camera.width, camera.height)
    lens, params = camera.distortion, camera.params
    if len(shared) == OWN_CORRECTION:
        params = tuple((params + shared[3 : 3 + len(params)]).tolist())
    elif lens is not None:
        k = np.array(lens.coefficients)
        changed = 2 if lens.fisheye else 4
        k[:changed] += shared[3 : 3 + changed]
        lens = Distortion(tuple(k.tolist()), lens.fisheye)
    return replace(camera.moved(pose[:3], pose[3:]), K=K, distortion=lens, params=params)


def cameras_of(dataset: Dataset, response: NDArray[np.float32] | None = None) -> list[int]:
    """Return for each view the index of its camera among those of the training photographs, or their number if none has it.
    All views have one camera if a learnt `response` has only one, as in earlier versions. SplatError for another number."""
    found: dict[Lens, int] = {}
    for view in dataset.train:
        found.setdefault(dataset.views[view].lens, len(found))
    learnt = len(found) if response is None else response.size // SHARED
    if learnt == 1:
        return [0] * len(dataset)
    if learnt != len(found):
        raise SplatError(
            f"the run has learnt the responses of {learnt} cameras, but {dataset.root} trains on {len(found)}; "
            "name the capture that it was trained on with --data"
        )
    return [found.get(view.lens, learnt) for view in dataset.views]


class CaptureModel:
    """The parts that a run's options ask for, and their state in checkpoints. SplatError if a checkpoint has another number of
    photographs or cameras, or an environment is requested with cameras other than pinholes."""

    def __init__(self, device: Device, config: TrainConfig, dataset: Dataset, state: State | None) -> None:
        count = len(dataset.train)
        for name in (EXPOSURES, GRIDS, POSES):
            if state and name in state and len(state[name]) != count:
                raise SplatError(
                    f"the checkpoint holds the {name} of {len(state[name])} photographs, but {dataset.root} trains on "
                    f"{count}; name the capture that the run was begun with"
                )
        self.device, self.config = device, config
        self.places = {view: place for place, view in enumerate(dataset.train)}
        self.looks: Looks | BilateralGrids | None = None
        if kind := look_of(config):
            cameras = cameras_of(dataset, state.get(RESPONSE) if state else None)
            self.looks = Looks(device, kind, [cameras[view] for view in dataset.train], state)
        elif config.bilateral_grid:
            self.looks = BilateralGrids(device, count, state)
        seen = dataset.train_cameras[0]
        numbers = len(seen.params) if seen.coefficients == seen.params else 0
        refinement = device, count, dataset.scene_scale, state, numbers, config.camera_param_lr
        self.cameras = CameraRefinement(*refinement) if config.refine_cameras else None
        for view in dataset.views if config.environment else ():
            require_pinhole(view.camera)
        self.environment = LearntEnvironment(device, state) if config.environment else None
        background = np.zeros_like(dataset.background) if config.environment else dataset.background
        self.backgrounds = RandomBackgrounds(device, dataset, config.seed) if config.random_background else None
        self.background = device.memory.array(background[None])

    def state(self) -> State:
        parts = (self.looks, self.cameras, self.environment)
        return {name: values for part in parts if part for name, values in part.state().items()}


class CaptureStep:
    """One photograph of a step, number `order` in its batch: `shown`, `backward` and `update`, called in this order, record the
    capture's part of the step. The photograph is rendered with `cameras`, captured or refined, over `background`. The gradients
    of `cameras` add up in `v_projection` and `v_shading`, one for each stage.

    All photographs of a batch are rendered with the state before the step. Each then updates its parts as if it were the step's
    only one. `recorder` is None if another process renders the photograph; its gradients then start at 0.
    """

    def __init__(
        self, model: CaptureModel, recorder: Recorder | None, step: int, order: int, view: int, views: TrainingViews
    ) -> None:
        captured = views.cameras_of(view)
        self.step, self.view, self.cameras, self.background = step, view, captured, model.background
        self._model, self._captured, self._place, self._views = model, captured, model.places[view], views
        self._recorder = cast(Recorder, recorder)
        # Number of photographs before this one in the whole run.
        self._before = step * model.config.photographs + order
        self._v_look: Array | None = None
        self._v_environment: Array | None = None
        self.v_projection: Array | None = None
        self.v_shading: Array | None = None
        zeros = model.device.memory.zeros if recorder is None else recorder.zeros

        if model.cameras:
            self.v_projection, self.v_shading = zeros((1, captured.row_length)), zeros((1, CAMERA_ROW))
        if recorder is None:
            pixels = captured.width * captured.height
            self._v_look = zeros(model.looks.parts_shape(pixels)) if model.looks else None
            self._v_environment = zeros((part_rows(pixels), 3 * COEFFICIENTS)) if model.environment else None
            return
        if model.cameras:
            self.cameras = model.cameras.record(recorder, self._place, captured)
        if model.backgrounds:
            self.background = model.backgrounds.at(step)

    def photograph(self, photograph: Array) -> Array:
        """Return the photograph to compare with, as from `pack`, over the step's background."""
        backgrounds = self._model.backgrounds
        return backgrounds.record(self._recorder, self.step, self.view, photograph) if backgrounds else photograph

    def shown(self, image: Image) -> Array:
        """Return the image to compare, [1, H, W, 3]: the render with the environment, as the photograph shows it."""
        environment, looks = self._model.environment, self._model.looks
        self._image, self._over = image, image.colors
        if environment:
            self._over = environment.record(self._recorder, self.cameras, image)
        return looks.record(self._recorder, self._place, self._over) if looks else self._over

    def backward(self, v_shown: Array, v_alphas: Array) -> None:
        """Turn the gradient of `shown`'s result into that of the render, in place; an environment also writes `v_alphas`."""
        environment, looks = self._model.environment, self._model.looks
        if looks:
            self._v_look = looks.record_backward(self._recorder, self._place, self._over, v_shown)
        if environment:
            at = self._recorder, self.cameras, self._image
            self._v_environment = environment.record_backward(*at, v_shown, v_alphas, self._views.surfaces[self.view])

    @property
    def gradients(self) -> list[Array]:
        found = self.v_projection, self.v_shading, self._v_look, self._v_environment
        return [array for array in found if array is not None]

    def update(self, recorder: Recorder, status: Array) -> None:
        """Update the learnt parts, unless `status` says that the step does not count."""
        model, place = self._model, self._place
        epoch = self.step // (len(model.places) // model.config.photographs)
        before, progress = self._before, self.step / model.config.steps
        if model.looks and self._v_look is not None:
            model.looks.record_update(recorder, place, self._v_look, status, epoch, before, progress)
        if model.environment and self._v_environment is not None:
            model.environment.record_update(recorder, self._v_environment, status, before, progress)
        if model.cameras and self.v_projection is not None and self.v_shading is not None:
            v = self.v_projection, self.v_shading
            model.cameras.record_update(recorder, place, self._captured, v, status, epoch=epoch, step=before, progress=progress)


def is_of_capture(name: str) -> bool:
    """True if an array of a checkpoint belongs to the capture, not to the scene."""
    return name.partition(".")[0] in (EXPOSURES, RESPONSE, GRIDS, POSES, INTRINSICS, ENVIRONMENT)


def capture_shapes(config: TrainConfig, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the capture's arrays in a checkpoint. KeyError or ValueError if arrays whose rows count photographs
    or cameras are missing or empty."""
    shapes: dict[str, tuple[int, ...]] = {}
    kind = look_of(config)
    each: dict[str, tuple[int, ...]] = {EXPOSURES: (kind.own_floats,)} if kind else {}
    each |= {GRIDS: GRID} if config.bilateral_grid else {}
    each |= {POSES: (POSE_CORRECTION,)} if config.refine_cameras else {}
    for name, row in each.items():
        _, (count, *_) = layout[name]
        if count == 0:
            raise ValueError(f"{name} have no rows")
        shapes[name] = (count, *row)
    if kind is PPISP:
        # Photographs shared one response in earlier versions; each camera has one at most.
        _, shape = layout[RESPONSE]
        cameras = shape[0] if len(shape) == 2 else 0
        shapes[RESPONSE] = (cameras, SHARED) if 0 < cameras <= shapes[EXPOSURES][0] else (SHARED,)
    if config.refine_cameras:
        _, shape = layout[INTRINSICS]
        shapes[INTRINSICS] = (OWN_CORRECTION if shape == (OWN_CORRECTION,) else LENS_CORRECTION,)
    if config.environment:
        shapes[ENVIRONMENT] = (COEFFICIENTS, 3)
    return {with_moment: shape for name, shape in shapes.items() for with_moment in with_moments(name)}


@dataclass(frozen=True)
class LearntCapture:
    """The looks, poses, intrinsics and environment that a run has learnt, by their names in checkpoints."""

    arrays: State

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """Take the parameters from `CaptureModel.state`, without Adam's moments."""
        return cls({name: values for name, values in state.items() if "." not in name})

    def save(self, path: Path) -> None:
        """Write to `path`, atomically; no file if nothing was learnt."""
        if self.arrays:
            save_tensors(path, _CAPTURE, {}, self.arrays)

    @classmethod
    def load(cls, path: Path, config: TrainConfig) -> Self:
        """Read the learnt capture of a run with this configuration; SplatError if the file is damaged, or missing although the
        run learns one."""
        if not (look_of(config) or config.bilateral_grid or config.refine_cameras or config.environment):
            return cls({})

        def check(header: dict[str, Any], layout: Layout) -> None:
            shapes = capture_shapes(config, layout)
            require_layout(layout, {name: shape for name, shape in shapes.items() if "." not in name})

        what, advice, absent = "the learnt capture of a run", "train again", "finish the run with --resume"
        with reading(path, _CAPTURE, check, what, advice, absent=absent) as (_, arrays):
            return cls(arrays)

    @property
    def response(self) -> NDArray[np.float32] | None:
        """Vignetting and response of each camera, [cameras, 27], for `evaluate`; [27] from earlier versions."""
        return self.arrays.get(RESPONSE)

    @property
    def environment(self) -> Environment | None:
        return Environment(self.arrays[ENVIRONMENT]) if ENVIRONMENT in self.arrays else None

    def refined(self, dataset: Dataset) -> Dataset:
        """Return the dataset, with refined cameras if there are any; SplatError if its number of training views differs."""
        if POSES not in self.arrays:
            return dataset
        if len(self.arrays[POSES]) != len(dataset.train):
            raise SplatError(
                f"the run has refined {len(self.arrays[POSES])} cameras, but {dataset.root} trains on {len(dataset.train)}; "
                "name the capture that it was trained on with --data"
            )
        views, poses = list(dataset.views), np.zeros((len(dataset.views), POSE_CORRECTION))
        # Held-out views keep their captured poses.
        poses[dataset.train] = self.arrays[POSES]
        for index, view in enumerate(views):
            views[index] = replace(view, camera=corrected(view.camera, poses[index], self.arrays[INTRINSICS]))
        return replace(dataset, views=views, _images=dataset._images)
