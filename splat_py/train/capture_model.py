"""Parts of a capture that training can learn beside the scene, each only if requested: exposures of photographs, poses and
lenses of cameras, and an environment behind the scene, such as a sky (kernels/capture_model.slang)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.base.files import Layout, save_tensors
from splat_py.fit.run_folder import reading, require_layout
from splat_py.fit.steps import Adam, AdamArrays, with_moments
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.render.cameras import CAMERA_ROW, Cameras
from splat_py.render.rasterize import Image
from splat_py.scene.camera import Camera, Distortion
from splat_py.scene.dataset import Dataset
from splat_py.scene.environment import Environment, require_pinhole
from splat_py.train.config import TrainConfig
from splat_py.train.parameters import State
from splat_py.train.views import RandomBackgrounds

# Kind of the files that hold learnt captures.
_CAPTURE = "splat_py.capture"
# Names of the learnt parts in checkpoints.
EXPOSURES, ENVIRONMENT, POSES, INTRINSICS = "exposures", "environment", "poses", "intrinsics"
EXPOSURE: int = constant("splat/capture_model", "EXPOSURE")
# Coefficients of the environment per channel.
COEFFICIENTS: int = constant("splat/capture_model", "ENVIRONMENT")
POSE_CORRECTION, LENS_CORRECTION = (
    int(constant("splat/capture_model", name)) for name in ("POSE_CORRECTION", "LENS_CORRECTION")
)
# Threads of a workgroup, and pixels per workgroup in backward passes.
_THREADS: int = constant("parallel/threads", "THREADS")
_PIXELS: int = _THREADS * constant("kernels/capture_model", "RUN")
# A photograph learns once an epoch, and a run may have only twenty epochs: its moments average few gradients.
_ADAM_OF_PHOTOGRAPHS, _ADAM = Adam(epsilon=1e-15, beta1=0.5, beta2=0.9), Adam(epsilon=1e-15)
# Learning rates fall exponentially from the first to the second.
_EXPOSURE_RATES, _ENVIRONMENT_RATES = (0.05, 0.001), (1e-2, 1e-3)
# Weight of the exposures' regulariser, which settles what a photograph's pixels leave undetermined.
_EXPOSURE_WEIGHT = 1e-3
# Initial learning rates of cameras, in radians and shares; the translations' rate is multiplied by the scene's scale. They fall
# quadratically to zero: scenes become sharp, and gradients good, late in a run.
_ROTATION_LR, _TRANSLATION_LR, _FOCAL_LR, _PRINCIPAL_LR, _LENS_LR = 5e-3, 5e-3, 5e-4, 2e-4, 1e-4
# Share of a run before intrinsics learn: earlier, a longer focal length would only close the gaps between the first Gaussians.
_INTRINSICS_START = 0.15


class _Learnt:
    """Parameters on the device with Adam's moments, by their names in checkpoints; read from `state` if there is one."""

    def __init__(self, device: Device, values: Mapping[str, NDArray[np.float32]], state: Mapping[str, NDArray] | None) -> None:
        moments = {other: np.zeros_like(array) for name, array in values.items() for other in with_moments(name)[1:]}
        fresh = dict(values) | moments
        self._arrays = {name: device.memory.array(state[name] if state else array) for name, array in fresh.items()}

    def state(self) -> State:
        """Copy everything to the host. No kernel that writes it may still be running."""
        return {name: array.numpy().copy() for name, array in self._arrays.items()}

    def _dispatch(self, recorder: Recorder, entry: str, threads: int, **arguments: Any) -> None:
        learnt: dict[str, Any] = {name: AdamArrays.of(self._arrays, name) for name in self._arrays if "." not in name}
        recorder.dispatch("capture_model", entry, linear_groups(threads), **learnt, **arguments)

    def _record_parts(self, recorder: Recorder, entry: str, pixels: int, floats: int, **arguments: Any) -> Array:
        """Record a backward pass over pixels. Returns the partial sums of its gradient, of so many floats."""
        rows = _part_rows(pixels)
        parts = recorder.scratch((rows, floats))
        self._dispatch(recorder, entry, rows * _THREADS, pixels=pixels, parts=parts, part_rows=rows, **arguments)
        return parts


def _rate(rates: tuple[float, float], progress: float) -> float:
    first, last = rates
    return first * (last / first) ** progress


def _part_rows(pixels: int) -> int:
    """Return the number of workgroups of a backward pass; each leaves one row of gradients."""
    return -(-pixels // _PIXELS)


class Exposures(_Learnt):
    """An affine map for each photograph, from the scene's colours to the photograph's.

    A step updates only the maps of its photographs. The mean of all maps is held at the identity, so the scene has the average
    brightness and tint of the photographs; exports and views without a photograph show these. The state in a checkpoint has
    "exposures", [photographs, 12], and its moments.
    """

    def __init__(self, device: Device, photographs: int, state: Mapping[str, NDArray] | None = None) -> None:
        neutral = np.eye(3, 4, dtype=np.float32).reshape(1, EXPOSURE)
        super().__init__(device, {EXPOSURES: np.repeat(neutral, photographs, 0)}, state)
        self._count = photographs

    def record(self, recorder: Recorder, photograph: int, colors: Array) -> Array:
        """Return a render [1, H, W, 3] with the photograph's exposure applied."""
        recorder.stage("exposure")
        shown, pixels = recorder.scratch(colors.shape), colors.size // 3
        self._dispatch(recorder, "exposePixels", pixels, pixels=pixels, photograph=photograph, colors=colors, shown=shown)
        return shown

    def record_backward(self, recorder: Recorder, photograph: int, colors: Array, v_shown: Array) -> Array:
        """Turn the gradient of `record`'s result into that of `colors`, in place. Returns partial sums for the exposure."""
        recorder.stage("exposure")
        of_render: dict[str, Any] = {"photograph": photograph, "colors": colors, "v_colors": v_shown}
        return self._record_parts(recorder, "exposePixelsBackward", colors.size // 3, EXPOSURE, **of_render)

    def record_update(
        self, recorder: Recorder, photograph: int, parts: Array, status: Array, epoch: int, progress: float
    ) -> None:
        """Take one Adam step on the exposure of a photograph that has learnt `epoch` times before. `parts` is from
        `record_backward`; `progress` is the share of the run that is done, 0 to 1."""
        settings = _ADAM_OF_PHOTOGRAPHS.settings(epoch, _rate(_EXPOSURE_RATES, progress))
        photographs = {"photograph": photograph, "photographs": self._count, "weight": _EXPOSURE_WEIGHT}
        gradient = {"parts": parts, "part_rows": parts.shape[0]}
        self._dispatch(recorder, "updateExposure", 1, settings=settings, status=status, **photographs, **gradient)


class LearntEnvironment(_Learnt):
    """An environment under training; starts from "environment", [16, 3], and its moments in a checkpoint if there is one."""

    def __init__(self, device: Device, state: Mapping[str, NDArray] | None = None) -> None:
        super().__init__(device, {ENVIRONMENT: np.zeros((COEFFICIENTS, 3), np.float32)}, state)

    def record(self, recorder: Recorder, cameras: Cameras, image: Image) -> Array:
        """Return a render [1, H, W, 3] over black with the environment added behind it."""
        recorder.stage("environment")
        shown, pixels = recorder.scratch(image.colors.shape), image.final_T.size
        arrays = {"colors": image.colors, "final_T": image.final_T, "shown": shown}
        self._dispatch(recorder, "addEnvironment", pixels, pixels=pixels, cameras=cameras, **arrays)
        return shown

    def record_backward(self, recorder: Recorder, cameras: Cameras, image: Image, v_shown: Array, v_alphas: Array) -> Array:
        """Overwrite `v_alphas` [1, H, W, 1] with the gradient of the alphas, from the gradient of `record`'s result, which is
        also that of the render. Returns partial sums of the environment's gradient."""
        recorder.stage("environment")
        arrays = {"final_T": image.final_T, "v_colors": v_shown, "v_alphas": v_alphas}
        entry, pixels = "addEnvironmentBackward", image.final_T.size
        return self._record_parts(recorder, entry, pixels, 3 * COEFFICIENTS, cameras=cameras, **arrays)

    def record_update(self, recorder: Recorder, parts: Array, status: Array, step: int, progress: float) -> None:
        """Take one Adam step; `progress` is the share of the run that is done, 0 to 1."""
        settings = _ADAM.settings(step, _rate(_ENVIRONMENT_RATES, progress))
        self._dispatch(
            recorder, "updateEnvironment", 1, settings=settings, parts=parts, part_rows=parts.shape[0], status=status
        )


class CameraRefinement(_Learnt):
    """Corrections of each photograph's pose, and of the focal lengths, principal point and lens that all photographs share. A
    checkpoint's `state` has "poses", [photographs, 6], "intrinsics", [7], and their moments."""

    def __init__(
        self, device: Device, photographs: int, scene_scale: float, state: Mapping[str, NDArray] | None = None
    ) -> None:
        self._scene_scale = scene_scale
        poses, intrinsics = np.zeros((photographs, POSE_CORRECTION), np.float32), np.zeros(LENS_CORRECTION, np.float32)
        super().__init__(device, {POSES: poses, INTRINSICS: intrinsics}, state)

    def record(self, recorder: Recorder, photograph: int, cameras: Cameras) -> Cameras:
        """Return the refined camera of a photograph; `cameras` is the captured one."""
        recorder.stage("cameras")
        viewmats, Ks = recorder.scratch(cameras.viewmats.shape), recorder.scratch(cameras.Ks.shape)
        lenses = None if cameras.lenses is None else recorder.scratch(cameras.lenses.shape)
        refined = replace(cameras, viewmats=viewmats, Ks=Ks, lenses=lenses)
        self._dispatch(recorder, "refineCamera", 1, photograph=photograph, cameras=cameras, refined=refined)
        return refined

    def record_update(
        self,
        recorder: Recorder,
        photograph: int,
        cameras: Cameras,
        v_cameras: tuple[Array, Array],
        status: Array,
        *,
        epoch: int,
        step: int,
        progress: float,
    ) -> None:
        """Take one Adam step on the pose of a photograph that has learnt `epoch` times before, and on the shared intrinsics,
        which have learnt `step` times before. `cameras` is the captured camera; `v_cameras` are gradient rows of the refined
        one, [1, CAMERA_ROW or more], from projection and shading; `progress` is the share of the run that is done, 0 to 1."""
        recorder.stage("cameras")
        decay = (1 - progress) ** 2
        of_all = decay if progress >= _INTRINSICS_START else 0.0
        rates = {
            "rotation_rate": _ROTATION_LR * decay,
            "translation_rate": _TRANSLATION_LR * self._scene_scale * decay,
            "focal_rate": _FOCAL_LR * of_all,
            "principal_rate": _PRINCIPAL_LR * of_all,
            "lens_rate": _LENS_LR * of_all,
        }
        adam = {"pose_settings": _ADAM_OF_PHOTOGRAPHS.settings(epoch), "intrinsic_settings": _ADAM.settings(step)}
        v = dict(zip(("v_projection", "v_shading"), v_cameras, strict=True))
        camera = {"photograph": photograph, "cameras": cameras, "status": status}
        self._dispatch(recorder, "updateCamera", 1, **camera, **rates, **adam, **v)


def corrected(camera: Camera, pose: NDArray, shared: NDArray) -> Camera:
    """Return a camera with the corrections of its pose [6] and of the shared intrinsics [7] applied (`correctCamera`)."""
    viewmat, pose, shared = (np.array(values, np.float64) for values in (camera.viewmat, pose, shared))
    K = camera.K.copy()
    K[(0, 1), (0, 1)] *= np.exp(shared[0])
    K[:2, 2] += shared[1:3] * (camera.width, camera.height)
    lens = camera.distortion
    if lens is not None:
        k = np.array(lens.coefficients)
        changed = 2 if lens.fisheye else 4
        k[:changed] += shared[3 : 3 + changed]
        lens = Distortion(tuple(k.tolist()), lens.fisheye)
    return replace(camera, viewmat=moved(torch.from_numpy(viewmat), torch.from_numpy(pose)).numpy(), K=K, distortion=lens)


def moved(viewmat: Tensor, pose: Tensor) -> Tensor:
    """Correct a viewmat [4, 4] by a rotation and a translation [6] in the camera's frame (slang/splat/capture_model.slang).
    Differentiable."""
    x, y, z = pose[:3]
    zero = torch.zeros_like(x)
    turn = torch.linalg.matrix_exp(torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3))
    rows = torch.cat([turn, pose[3:, None]], 1)
    return torch.cat([rows, pose.new_tensor([[0.0, 0, 0, 1]])]) @ viewmat


class CaptureModel:
    """The parts that a run's options ask for, and their state in checkpoints. SplatError if a checkpoint has another number of
    photographs, or an environment is requested with cameras other than pinholes."""

    def __init__(self, device: Device, config: TrainConfig, dataset: Dataset, state: State | None) -> None:
        count = len(dataset.train)
        for name in (EXPOSURES, POSES):
            if state and name in state and len(state[name]) != count:
                raise SplatError(
                    f"the checkpoint holds the {name} of {len(state[name])} photographs, but {dataset.root} trains on "
                    f"{count}; name the capture that the run was begun with"
                )
        self.device, self.config = device, config
        self.places = {view: place for place, view in enumerate(dataset.train)}
        self.exposures = Exposures(device, count, state) if config.exposure else None
        self.cameras = CameraRefinement(device, count, dataset.scene_scale, state) if config.refine_cameras else None
        for view in dataset.views if config.environment else ():
            require_pinhole(view.camera)
        self.environment = LearntEnvironment(device, state) if config.environment else None
        background = np.zeros_like(dataset.background) if config.environment else dataset.background
        self.backgrounds = RandomBackgrounds(device, dataset, config.seed) if config.random_background else None
        self.background = device.memory.array(background[None])
        # Placeholder if cameras are not refined.
        self.no_gradients = device.memory.empty((1, CAMERA_ROW))

    def state(self) -> State:
        parts = (self.exposures, self.cameras, self.environment)
        return {name: values for part in parts if part for name, values in part.state().items()}


class CaptureStep:
    """One photograph of a step, number `order` in its batch: `shown`, `backward` and `update`, called in this order, record the
    capture's part of the step. The photograph is rendered with `cameras`, captured or refined, over `background`. The gradients
    of `cameras` add up in `v_projection` and `v_shading`, one for each stage.

    All photographs of a batch are rendered with the state before the step. Each then updates its parts as if it were the step's
    only one. `recorder` is None if another process renders the photograph; its gradients then start at 0.
    """

    def __init__(
        self, model: CaptureModel, recorder: Recorder | None, step: int, order: int, view: int, captured: Cameras
    ) -> None:
        self.step, self.view, self.cameras, self.background = step, view, captured, model.background
        self._model, self._captured, self._place = model, captured, model.places[view]
        self._recorder = cast(Recorder, recorder)
        # Number of photographs before this one in the whole run.
        self._before = step * model.config.photographs + order
        self._v_exposure: Array | None = None
        self._v_environment: Array | None = None
        self.v_projection = self.v_shading = model.no_gradients

        def zeros(shape: tuple[int, ...]) -> Array:
            if recorder is None:
                return model.device.memory.zeros(shape)
            array = recorder.scratch(shape)
            recorder.clear(array)
            return array

        if model.cameras:
            self.v_projection, self.v_shading = zeros((1, captured.row_length)), zeros((1, CAMERA_ROW))
        if recorder is None:
            rows = _part_rows(captured.width * captured.height)
            self._v_exposure = zeros((rows, EXPOSURE)) if model.exposures else None
            self._v_environment = zeros((rows, 3 * COEFFICIENTS)) if model.environment else None
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
        """Return the image to compare, [1, H, W, 3]: the render with environment and exposure."""
        environment, exposures = self._model.environment, self._model.exposures
        self._image, self._over = image, image.colors
        if environment:
            self._over = environment.record(self._recorder, self.cameras, image)
        return exposures.record(self._recorder, self._place, self._over) if exposures else self._over

    def backward(self, v_shown: Array, v_alphas: Array) -> None:
        """Turn the gradient of `shown`'s result into that of the render, in place; an environment also writes `v_alphas`."""
        environment, exposures = self._model.environment, self._model.exposures
        if exposures:
            self._v_exposure = exposures.record_backward(self._recorder, self._place, self._over, v_shown)
        if environment:
            self._v_environment = environment.record_backward(self._recorder, self.cameras, self._image, v_shown, v_alphas)

    @property
    def gradients(self) -> list[Array]:
        of_cameras = [self.v_projection, self.v_shading] if self._model.cameras else []
        return [*of_cameras, *(array for array in (self._v_exposure, self._v_environment) if array is not None)]

    def update(self, recorder: Recorder, status: Array) -> None:
        """Update the learnt parts, unless `status` says that the step does not count."""
        model, place = self._model, self._place
        epoch = self.step // (len(model.places) // model.config.photographs)
        before, progress = self._before, self.step / model.config.steps
        if model.exposures and self._v_exposure is not None:
            model.exposures.record_update(recorder, place, self._v_exposure, status, epoch, progress)
        if model.environment and self._v_environment is not None:
            model.environment.record_update(recorder, self._v_environment, status, before, progress)
        if model.cameras:
            v = self.v_projection, self.v_shading
            model.cameras.record_update(recorder, place, self._captured, v, status, epoch=epoch, step=before, progress=progress)


def is_of_capture(name: str) -> bool:
    """True if an array of a checkpoint belongs to the capture, not to the scene."""
    return name.partition(".")[0] in (EXPOSURES, POSES, INTRINSICS, ENVIRONMENT)


def capture_shapes(config: TrainConfig, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the capture's arrays in a checkpoint. KeyError or ValueError if exposures or poses, whose rows count
    the photographs, are missing or empty."""
    shapes: dict[str, tuple[int, ...]] = {}
    each = {EXPOSURES: EXPOSURE} if config.exposure else {}
    each |= {POSES: POSE_CORRECTION} if config.refine_cameras else {}
    for name, row in each.items():
        _, (count, *_) = layout[name]
        if count == 0:
            raise ValueError(f"{name} have no rows")
        shapes[name] = (count, row)
    if config.refine_cameras:
        shapes[INTRINSICS] = (LENS_CORRECTION,)
    if config.environment:
        shapes[ENVIRONMENT] = (COEFFICIENTS, 3)
    return {with_moment: shape for name, shape in shapes.items() for with_moment in with_moments(name)}


@dataclass(frozen=True)
class LearntCapture:
    """The exposures, poses, intrinsics and environment that a run has learnt, by their names in checkpoints."""

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
        if not (config.exposure or config.refine_cameras or config.environment):
            return cls({})

        def check(header: dict[str, Any], layout: Layout) -> None:
            shapes = capture_shapes(config, layout)
            require_layout(layout, {name: shape for name, shape in shapes.items() if "." not in name})

        what, advice, absent = "the learnt capture of a run", "train again", "finish the run with --resume"
        with reading(path, _CAPTURE, check, what, advice, absent=absent) as (_, arrays):
            return cls(arrays)

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
