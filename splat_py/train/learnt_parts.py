"""The parts of a capture that can be learnt beside the scene: looks of photographs, an environment, and corrections of cameras.
Each records its forward pass, its backward pass and its step (kernels/capture_model.slang)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.fit.steps import Adam, AdamArrays, with_moments
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.render.cameras import Cameras
from splat_py.render.images import Image
from splat_py.train.config import TrainConfig
from splat_py.train.parameters import State

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
# Weight of the transmittance at pixels that show a surface, in the loss.
_SURFACE_WEIGHT = 0.1
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
        rows = part_rows(pixels)
        parts = recorder.scratch((rows, floats))
        self._dispatch(recorder, entry, rows * _THREADS, pixels=pixels, parts=parts, part_rows=rows, **arguments)
        return parts


def _rate(rates: tuple[float, float], progress: float) -> float:
    first, last = rates
    return first * (last / first) ** progress


def part_rows(pixels: int) -> int:
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
    """The looks of photographs: maps from the scene's colours to each photograph's.

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

    def record_backward(
        self, recorder: Recorder, cameras: Cameras, image: Image, v_shown: Array, v_alphas: Array, surfaces: Array
    ) -> Array:
        """Overwrite `v_alphas` [1, H, W, 1] with the gradient of the alphas, from the gradient of `record`'s result, which is
        also that of the render. Alphas also learn to be 1 at `surfaces`, pixels as from `TrainingViews.surfaces`: otherwise
        the environment stands in for what is pale and near. Returns partial sums of the environment's gradient."""
        recorder.stage("environment")
        arrays: dict[str, Any] = {"final_T": image.final_T, "v_colors": v_shown, "v_alphas": v_alphas, "surfaces": surfaces}
        arrays["surface_weight"] = _SURFACE_WEIGHT
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
