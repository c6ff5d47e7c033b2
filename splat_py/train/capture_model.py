"""Parts of a capture that training can learn beside the scene, each only if requested: the looks of photographs, poses and
lenses of cameras, and an environment behind the scene, such as a sky (kernels/capture_model.slang)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

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
EXPOSURES, RESPONSE, ENVIRONMENT, POSES, INTRINSICS = "exposures", "response", "environment", "poses", "intrinsics"
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
_ENVIRONMENT_RATES = 1e-2, 1e-3
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


@dataclass(frozen=True)
class LookKind:
    """A way of showing the scene's colours that photographs learn: an `ILook` in Slang (slang/splat/capture_model.slang)."""

    look: str
    # Floats of a row, and the first ones of them, which each photograph has for itself.
    look_floats: int
    own_floats: int
    # Learning rates of own and of shared floats; they fall exponentially from the first to the second.
    rates: tuple[float, float]
    shared_rates: tuple[float, float] = (5e-3, 5e-5)
    # Own floats that change nothing, zeros by default.
    neutral: tuple[float, ...] = ()


AFFINE = LookKind("Exposure", EXPOSURE, EXPOSURE, (0.05, 0.001), neutral=tuple(np.eye(3, 4).ravel()))
PPISP = LookKind("Ppisp", constant("splat/ppisp", "PPISP"), constant("splat/ppisp", "VIGNETTING"), (0.3, 0.006))


def look_of(config: TrainConfig) -> LookKind | None:
    """The look that a run's options ask for."""
    return AFFINE if config.exposure else PPISP if config.ppisp else None


class Looks(_Learnt):
    """How each photograph shows the scene's colours.

    A step updates only its photographs' own floats, and those that all photographs share. The mean of own floats is held where
    it changes nothing, so the scene has the average brightness and tint of the photographs; exports and views without a
    photograph show these. The state in a checkpoint has "exposures", [photographs, `LookKind.own_floats`], "response" with the
    shared floats if there are any, and the moments of both.
    """

    def __init__(self, device: Device, kind: LookKind, photographs: int, state: Mapping[str, NDArray] | None = None) -> None:
        neutral = np.array(kind.neutral or (0.0,) * kind.own_floats, np.float32)
        values = {EXPOSURES: np.tile(neutral, (photographs, 1))}
        if kind.look_floats > kind.own_floats:
            values[RESPONSE] = np.zeros(kind.look_floats - kind.own_floats, np.float32)
        super().__init__(device, values, state)
        self.kind, self._count = kind, photographs

    def record(self, recorder: Recorder, photograph: int, colors: Array) -> Array:
        """Return a render [1, H, W, 3] as the photograph shows it."""
        recorder.stage("exposure")
        shown, pixels = recorder.scratch(colors.shape), colors.size // 3
        of_render = self._look(photograph) | {"width": colors.shape[2], "colors": colors, "shown": shown}
        self._dispatch(recorder, "developPixels", pixels, pixels=pixels, **of_render)
        return shown

    def record_backward(self, recorder: Recorder, photograph: int, colors: Array, v_shown: Array) -> Array:
        """Turn the gradient of `record`'s result into that of `colors`, in place. Returns partial sums for the look."""
        recorder.stage("exposure")
        of_render = self._look(photograph) | {"width": colors.shape[2], "colors": colors, "v_colors": v_shown}
        return self._record_parts(recorder, "developPixelsBackward", colors.size // 3, self.kind.look_floats, **of_render)

    def record_update(
        self, recorder: Recorder, photograph: int, parts: Array, status: Array, epoch: int, step: int, progress: float
    ) -> None:
        """Take one Adam step on the look of a photograph that has learnt `epoch` times before, and on the shared floats, which
        have learnt `step` times. `parts` is from `record_backward`; `progress` is the share of the run that is done, 0 to 1."""
        settings = _ADAM_OF_PHOTOGRAPHS.settings(epoch, _rate(self.kind.rates, progress))
        shared = _ADAM.settings(step, _rate(self.kind.shared_rates, progress))
        gradient = {"parts": parts, "part_rows": parts.shape[0], "status": status}
        of_all = self._look(photograph) | gradient
        self._dispatch(recorder, "updateLook", 1, settings=settings, response_settings=shared, **of_all)

    def _look(self, photograph: int) -> dict[str, Any]:
        # The kernels' defaults are an exposure's; photographs share nothing of it.
        kind: dict[str, Any] = {RESPONSE: None}
        if RESPONSE in self._arrays:
            kind = {"Look": self.kind.look, "LOOK_FLOATS": self.kind.look_floats, "OWN_FLOATS": self.kind.own_floats}
        return {"photograph": photograph, "photographs": self._count, **kind}

    @classmethod
    def develop(cls, device: Device, image: NDArray[np.float32], response: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a render [H, W, 3] as a photograph of mean exposure and tint shows it, by a run's `response`."""
        looks = cls(device, PPISP, 1)
        looks._arrays[RESPONSE] = device.memory.array(response)
        with device.recording() as recorder:
            shown = looks.record(recorder, 0, device.memory.array(image[None]))
        return shown.numpy()[0]


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
    K = camera.K.copy()
    K[(0, 1), (0, 1)] *= np.exp(shared[0])
    K[:2, 2] += shared[1:3] * (camera.width, camera.height)
    lens = camera.distortion
    if lens is not None:
        k = np.array(lens.coefficients)
        changed = 2 if lens.fisheye else 4
        k[:changed] += shared[3 : 3 + changed]
        lens = Distortion(tuple(k.tolist()), lens.fisheye)
    return replace(camera.moved(pose[:3], pose[3:]), K=K, distortion=lens)


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
        kind = look_of(config)
        self.looks = Looks(device, kind, count, state) if kind else None
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
        self, model: CaptureModel, recorder: Recorder | None, step: int, order: int, view: int, captured: Cameras
    ) -> None:
        self.step, self.view, self.cameras, self.background = step, view, captured, model.background
        self._model, self._captured, self._place = model, captured, model.places[view]
        self._recorder = cast(Recorder, recorder)
        # Number of photographs before this one in the whole run.
        self._before = step * model.config.photographs + order
        self._v_look: Array | None = None
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
            self._v_look = zeros((rows, model.looks.kind.look_floats)) if model.looks else None
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
            self._v_environment = environment.record_backward(self._recorder, self.cameras, self._image, v_shown, v_alphas)

    @property
    def gradients(self) -> list[Array]:
        of_cameras = [self.v_projection, self.v_shading] if self._model.cameras else []
        return [*of_cameras, *(array for array in (self._v_look, self._v_environment) if array is not None)]

    def update(self, recorder: Recorder, status: Array) -> None:
        """Update the learnt parts, unless `status` says that the step does not count."""
        model, place = self._model, self._place
        epoch = self.step // (len(model.places) // model.config.photographs)
        before, progress = self._before, self.step / model.config.steps
        if model.looks and self._v_look is not None:
            model.looks.record_update(recorder, place, self._v_look, status, epoch, before, progress)
        if model.environment and self._v_environment is not None:
            model.environment.record_update(recorder, self._v_environment, status, before, progress)
        if model.cameras:
            v = self.v_projection, self.v_shading
            model.cameras.record_update(recorder, place, self._captured, v, status, epoch=epoch, step=before, progress=progress)


def is_of_capture(name: str) -> bool:
    """True if an array of a checkpoint belongs to the capture, not to the scene."""
    return name.partition(".")[0] in (EXPOSURES, RESPONSE, POSES, INTRINSICS, ENVIRONMENT)


def capture_shapes(config: TrainConfig, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the capture's arrays in a checkpoint. KeyError or ValueError if exposures or poses, whose rows count
    the photographs, are missing or empty."""
    shapes: dict[str, tuple[int, ...]] = {}
    kind = look_of(config)
    each = {EXPOSURES: kind.own_floats} if kind else {}
    each |= {POSES: POSE_CORRECTION} if config.refine_cameras else {}
    for name, row in each.items():
        _, (count, *_) = layout[name]
        if count == 0:
            raise ValueError(f"{name} have no rows")
        shapes[name] = (count, row)
    if kind and kind.look_floats > kind.own_floats:
        shapes[RESPONSE] = (kind.look_floats - kind.own_floats,)
    if config.refine_cameras:
        shapes[INTRINSICS] = (LENS_CORRECTION,)
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
        if not (look_of(config) or config.refine_cameras or config.environment):
            return cls({})

        def check(header: dict[str, Any], layout: Layout) -> None:
            shapes = capture_shapes(config, layout)
            require_layout(layout, {name: shape for name, shape in shapes.items() if "." not in name})

        what, advice, absent = "the learnt capture of a run", "train again", "finish the run with --resume"
        with reading(path, _CAPTURE, check, what, advice, absent=absent) as (_, arrays):
            return cls(arrays)

    @property
    def response(self) -> NDArray[np.float32] | None:
        """Vignetting and response of the photographs' camera, for `evaluate`."""
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
