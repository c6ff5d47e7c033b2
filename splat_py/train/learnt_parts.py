"""The parts of a capture that can be learnt beside the scene: looks of photographs, an environment, and corrections of cameras.
Each records its forward pass, its backward pass and its step (kernels/capture_model.slang, kernels/refined_cameras.slang)."""

import math
from collections.abc import Mapping, Sequence
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
GRIDS = "grids"
EXPOSURE: int = constant("splat/capture_model", "EXPOSURE")
# The shape of a photograph's bilateral grid.
GRID: tuple[int, ...] = (*(constant("splat/bilateral_grid", name) for name in ("LEVELS", "ROWS", "COLUMNS")), EXPOSURE)
# Coefficients of the environment per channel.
COEFFICIENTS: int = constant("splat/capture_model", "ENVIRONMENT")
POSE_CORRECTION, LENS_CORRECTION, OWN_CORRECTION = (
    int(constant("splat/capture_model", f"{name}_CORRECTION")) for name in ("POSE", "LENS", "OWN")
)
# Threads of a workgroup, and pixels per workgroup in backward passes.
_THREADS: int = constant("parallel/threads", "THREADS")
_PIXELS: int = _THREADS * constant("kernels/capture_model", "RUN")
# A photograph learns once an epoch, and a run may have only twenty epochs: its moments average few gradients.
_ADAM_OF_PHOTOGRAPHS, _ADAM = Adam(epsilon=1e-15, beta1=0.5, beta2=0.9), Adam(epsilon=1e-15)
# Learning rates fall exponentially from the first to the second.
_ENVIRONMENT_RATES = 1e-2, 1e-3
# gsplat's 2e-3 is for grids that all move in every step; its fall to a hundredth, and the share of a run with rising rates.
_GRID_RATES, _GRID_WARM_UP = (5e-2, 5e-4), 1 / 30
# Weight of the transmittance at pixels that show a surface, in the loss.
_SURFACE_WEIGHT = 0.1
# Initial learning rates of cameras, in radians and shares; the translations' rate is multiplied by the scene's scale. They fall
# quadratically to zero: scenes become sharp, and gradients good, late in a run.
_ROTATION_LR, _TRANSLATION_LR, _FOCAL_LR, _PRINCIPAL_LR, _LENS_LR = 5e-3, 5e-3, 5e-4, 2e-4, 1e-4
# Share of a run before intrinsics learn: earlier, a longer focal length would only close the gaps between the first Gaussians.
_INTRINSICS_START = 0.15


class _Learnt:
    """Parameters on the device with Adam's moments, by their names in checkpoints; read from `state` if there is one."""

    _module = "capture_model"

    def __init__(self, device: Device, values: Mapping[str, NDArray[np.float32]], state: Mapping[str, NDArray] | None) -> None:
        moments = {other: np.zeros_like(array) for name, array in values.items() for other in with_moments(name)[1:]}
        fresh = dict(values) | moments
        self._arrays = {name: device.memory.array(state[name] if state else array) for name, array in fresh.items()}

    def state(self) -> State:
        """Copy everything to the host. No kernel that writes it may still be running."""
        return {name: array.numpy().copy() for name, array in self._arrays.items()}

    def _dispatch(self, recorder: Recorder, entry: str, threads: int, **arguments: Any) -> None:
        learnt: dict[str, Any] = {name: AdamArrays.of(self._arrays, name) for name in self._arrays if "." not in name}
        recorder.dispatch(self._module, entry, linear_groups(threads), **learnt, **arguments)

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
    # Floats of a row, and the first ones of them, which each photograph has for itself. Others are a camera's.
    look_floats: int
    own_floats: int
    # Learning rates of own and of shared floats; they fall exponentially from the first to the second.
    rates: tuple[float, float]
    shared_rates: tuple[float, float] = (5e-3, 5e-5)
    # Own floats that change nothing, zeros by default.
    neutral: tuple[float, ...] = ()


AFFINE = LookKind("Exposure", EXPOSURE, EXPOSURE, (0.05, 0.001), neutral=tuple(np.eye(3, 4).ravel()))
PPISP = LookKind("Ppisp", constant("splat/ppisp", "PPISP"), constant("splat/ppisp", "VIGNETTING"), (0.3, 0.006))
# Floats of a camera.
SHARED = PPISP.look_floats - PPISP.own_floats


def look_of(config: TrainConfig) -> LookKind | None:
    """The look that a run's options ask for, if it is not a bilateral grid."""
    return AFFINE if config.exposure else PPISP if config.ppisp else None


class Looks(_Learnt):
    """The looks of photographs: maps from the scene's colours to each photograph's.

    A step updates only its photographs' own floats, and those of their `cameras`, one index for each photograph. The mean of
    own floats is held where it changes nothing, so the scene has the average brightness and tint of the photographs; exports
    and views without a photograph show these. The state in a checkpoint has "exposures", [photographs, `LookKind.own_floats`],
    "response", [cameras, `SHARED`], if cameras have any, and the moments of both.
    """

    def __init__(
        self, device: Device, kind: LookKind, cameras: Sequence[int], state: Mapping[str, NDArray] | None = None
    ) -> None:
        neutral = np.array(kind.neutral or (0.0,) * kind.own_floats, np.float32)
        values = {EXPOSURES: np.tile(neutral, (len(cameras), 1))}
        if kind.look_floats > kind.own_floats:
            values[RESPONSE] = np.zeros((max(cameras) + 1, kind.look_floats - kind.own_floats), np.float32)
        super().__init__(device, values, state)
        self.kind, self._cameras = kind, cameras

    def parts_shape(self, pixels: int) -> tuple[int, int]:
        """Return the shape of `record_backward`'s result, for an image of so many pixels."""
        return part_rows(pixels), self.kind.look_floats

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
        """Take one Adam step on the look of a photograph that has learnt `epoch` times before, and on the floats of its camera,
        after `step` steps of all cameras. `parts` is from `record_backward`; `progress` is the share of the run that is done,
        0 to 1."""
        settings = _ADAM_OF_PHOTOGRAPHS.settings(epoch, _rate(self.kind.rates, progress))
        of_camera = step * self._cameras.count(self._cameras[photograph]) // len(self._cameras)
        shared = _ADAM.settings(of_camera, _rate(self.kind.shared_rates, progress))
        gradient = {"parts": parts, "part_rows": parts.shape[0], "status": status}
        of_all = self._look(photograph) | gradient
        self._dispatch(recorder, "updateLook", 1, settings=settings, response_settings=shared, **of_all)

    def _look(self, photograph: int) -> dict[str, Any]:
        # The kernels' defaults are an exposure's; photographs share nothing of it.
        kind: dict[str, Any] = {RESPONSE: None}
        if RESPONSE in self._arrays:
            kind = {"Look": self.kind.look, "LOOK_FLOATS": self.kind.look_floats, "OWN_FLOATS": self.kind.own_floats}
        return {"photograph": photograph, "photographs": len(self._cameras), "camera": self._cameras[photograph], **kind}

    @classmethod
    def develop(cls, device: Device, image: NDArray[np.float32], response: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a render [H, W, 3] as a photograph of mean exposure and tint shows it, by a camera's `response` [27]."""
        looks = cls(device, PPISP, [0])
        looks._arrays[RESPONSE] = device.memory.array(response)
        with device.recording() as recorder:
            shown = looks.record(recorder, 0, device.memory.array(image[None]))
        return shown.numpy()[0]


class BilateralGrids(_Learnt):
    """Looks as bilateral grids (slang/splat/bilateral_grid.slang). A step updates only its photographs' grids. The state in a
    checkpoint has "grids", [photographs, 8, 16, 16, 12], and their moments."""

    def __init__(self, device: Device, photographs: int, state: Mapping[str, NDArray] | None = None) -> None:
        neutral = np.array(AFFINE.neutral, np.float32)
        super().__init__(device, {GRIDS: np.tile(neutral, (photographs, *GRID[:3], 1))}, state)

    def parts_shape(self, pixels: int) -> tuple[int, int]:
        """Return the shape of `record_backward`'s result."""
        return math.prod(GRID[:3]), EXPOSURE

    def record(self, recorder: Recorder, photograph: int, colors: Array) -> Array:
        """Return a render [1, H, W, 3] as the photograph shows it."""
        recorder.stage("exposure")
        shown = recorder.scratch(colors.shape)
        self._over_pixels(recorder, "sliceGrid", colors.size // 3, photograph, colors, shown=shown)
        return shown

    def record_backward(self, recorder: Recorder, photograph: int, colors: Array, v_shown: Array) -> Array:
        """Turn the gradient of `record`'s result into that of `colors`, in place. Returns the gradient of the grid, also by its
        total variation."""
        recorder.stage("exposure")
        v_grid = recorder.scratch(self.parts_shape(colors.size // 3))
        sums = {"v_colors": v_shown, "parts": v_grid, "part_rows": v_grid.shape[0]}
        self._over_pixels(recorder, "gatherGrid", v_grid.shape[0] * _THREADS, photograph, colors, **sums)
        self._over_pixels(recorder, "sliceGridBackward", colors.size // 3, photograph, colors, v_colors=v_shown)
        return v_grid

    def record_update(
        self, recorder: Recorder, photograph: int, parts: Array, status: Array, epoch: int, step: int, progress: float
    ) -> None:
        """Take one Adam step on a photograph's grid, as `Looks.record_update`; once an epoch, centre the mean of all maps."""
        settings = _ADAM_OF_PHOTOGRAPHS.settings(epoch, min(progress / _GRID_WARM_UP, 1) * _rate(_GRID_RATES, progress))
        self._dispatch(recorder, "updateGrid", parts.size, photograph=photograph, parts=parts, status=status, settings=settings)
        if photograph == 0:
            all_grids = self._arrays[GRIDS]
            sums = recorder.scratch((_THREADS, EXPOSURE))
            of_all = {"photographs": all_grids.shape[0], "parts": sums, "part_rows": sums.shape[0], "status": status}
            self._dispatch(recorder, "sumGrids", _THREADS**2, **of_all)
            self._dispatch(recorder, "centreGrids", all_grids.size, **of_all)

    def _over_pixels(self, recorder: Recorder, entry: str, threads: int, photograph: int, colors: Array, **arrays: Any) -> None:
        image = {"colors": colors, "width": colors.shape[2], "pixels": colors.size // 3}
        self._dispatch(recorder, entry, threads, photograph=photograph, **image, **arrays)


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
    checkpoint's `state` has "poses", [photographs, 6], "intrinsics", [7], and their moments. If a user's camera has `numbers`,
    these are learnt in the place of a lens, with the initial rate `numbers_lr`, and "intrinsics" is [15]."""

    _module = "refined_cameras"

    def __init__(
        self,
        device: Device,
        photographs: int,
        scene_scale: float,
        state: Mapping[str, NDArray] | None = None,
        numbers: int = 0,
        numbers_lr: float = 0.0,
    ) -> None:
        self._scene_scale, self._lens_lr = scene_scale, numbers_lr if numbers else _LENS_LR
        intrinsics = np.zeros(OWN_CORRECTION if numbers else LENS_CORRECTION, np.float32)
        super().__init__(device, {POSES: np.zeros((photographs, POSE_CORRECTION), np.float32), INTRINSICS: intrinsics}, state)
        # A damaged checkpoint may hold fewer.
        self._numbers = min(numbers, self._arrays[INTRINSICS].size - 3)

    def record(self, recorder: Recorder, photograph: int, cameras: Cameras) -> Cameras:
        """Return the refined camera of a photograph; `cameras` is the captured one."""
        recorder.stage("cameras")
        viewmats, Ks = recorder.scratch(cameras.viewmats.shape), recorder.scratch(cameras.Ks.shape)
        lenses = None if cameras.lenses is None else recorder.scratch(cameras.lenses.shape)
        refined = replace(cameras, viewmats=viewmats, Ks=Ks, lenses=lenses)
        self._dispatch(recorder, "refineCamera", 1, **self._at(photograph, cameras), refined=refined)
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
            "lens_rate": self._lens_lr * of_all,
        }
        adam = {"pose_settings": _ADAM_OF_PHOTOGRAPHS.settings(epoch), "intrinsic_settings": _ADAM.settings(step)}
        v = dict(zip(("v_projection", "v_shading"), v_cameras, strict=True))
        self._dispatch(recorder, "updateCamera", 1, **self._at(photograph, cameras), status=status, **rates, **adam, **v)

    def _at(self, photograph: int, cameras: Cameras) -> dict[str, Any]:
        return {"photograph": photograph, "cameras": cameras, "numbers": self._numbers}
