"""An environment behind all Gaussians, learnt with them: a sky (slang/splat/environment.slang, kernels/environment.slang)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.fit.adam import Adam
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.scene.camera import Camera
from splat_py.scene.harmonics import harmonics_basis
from splat_py.splats.data import Cameras
from splat_py.splats.learnt import Learnt
from splat_py.splats.rasterize import Image

ENVIRONMENT = "environment"
# Coefficients of a channel.
COEFFICIENTS: int = constant("splat/environment", "ENVIRONMENT")
_THREADS: int = constant("parallel/threads", "THREADS")
_PIXELS_PER_GROUP: int = _THREADS * constant("kernels/environment", "RUN")
_ADAM = Adam(epsilon=1e-15)
# Of the coefficients. It falls exponentially from the first to the second.
_RATES = (1e-2, 1e-3)


@dataclass(frozen=True, eq=False)
class Environment:
    """What is behind a scene: sh [16, 3] float32, spherical harmonics of the world direction, as Gaussians have them."""

    sh: NDArray[np.float32]

    def colors(self, camera: Camera) -> NDArray[np.float32]:
        """What a camera would see if there was nothing else: [H, W, 3], not below 0.

        Raises:
            SplatError: the camera is no pinhole.
        """
        require_pinhole(camera)
        x = (np.arange(camera.width) + 0.5 - camera.K[0, 2]) / camera.K[0, 0]
        y = (np.arange(camera.height) + 0.5 - camera.K[1, 2]) / camera.K[1, 1]
        rays = np.stack(np.broadcast_arrays(x[None, :], y[:, None], 1.0), -1) @ camera.viewmat[:3, :3]
        basis = harmonics_basis(rays / np.linalg.norm(rays, axis=-1, keepdims=True))
        return np.maximum(basis @ self.sh.astype(np.float64) + 0.5, 0).astype(np.float32)


def require_pinhole(camera: Camera) -> None:
    """Raise SplatError unless the rays of a camera's pixels are those of a pinhole."""
    if camera.distortion is not None or camera.model not in (None, "pinhole"):
        raise SplatError(f"{camera.name or 'a view'} has no pinhole camera; environment needs one, add undistort")


def environment_parts(pixels: int) -> tuple[int, int]:
    """Rows of an environment's gradient that a picture's workgroups leave."""
    return -(-pixels // _PIXELS_PER_GROUP), 3 * COEFFICIENTS


class LearntEnvironment:
    """An environment under training.

    Args:
        state: of a checkpoint, with "environment", [16, 3], and its moments.
    """

    def __init__(self, device: Device, state: Mapping[str, NDArray] | None = None) -> None:
        self._learnt = Learnt(device, ENVIRONMENT, np.zeros((COEFFICIENTS, 3), np.float32), state)
        self.state = self._learnt.state

    def record(self, recorder: Recorder, cameras: Cameras, image: Image) -> Array:
        """A render [1, H, W, 3] that has black behind it, with the environment there."""
        recorder.stage("environment")
        shown = recorder.scratch(image.colors.shape)
        recorder.dispatch(
            "environment",
            "addEnvironment",
            linear_groups(image.final_T.size),
            {"width": cameras.width, "height": cameras.height},
            {**self._inputs(cameras), "colors": image.colors, "finalT": image.final_T, "shown": shown},
        )
        return shown

    def record_backward(self, recorder: Recorder, cameras: Cameras, image: Image, v_shown: Array, v_alphas: Array) -> Array:
        """Of the gradient of what `record` returned, which is the render's too, that of the alphas [1, H, W, 1], overwritten.
        Returns parts of that of the environment."""
        recorder.stage("environment")
        groups, _ = shape = environment_parts(image.final_T.size)
        parts = recorder.scratch(shape)
        recorder.dispatch(
            "environment",
            "addEnvironmentBackward",
            linear_groups(groups * _THREADS),
            {"width": cameras.width, "height": cameras.height, "groups": groups},
            {**self._inputs(cameras), "finalT": image.final_T, "vShown": v_shown, "vAlphas": v_alphas, "parts": parts},
        )
        return parts

    def record_update(self, recorder: Recorder, parts: Array, status: Array, step: int, progress: float) -> None:
        """One step of Adam; `progress` is how much of the run is done, 0 to 1."""
        first, last = _RATES
        recorder.dispatch(
            "environment",
            "updateEnvironment",
            (1, 1, 1),
            {"groups": parts.shape[0], "rate": first * (last / first) ** progress, **_ADAM.uniforms(step)},
            {"environment": self._learnt.values, "parts": parts, "status": status, **self._learnt.moments()},
        )

    def _inputs(self, cameras: Cameras) -> dict[str, Array]:
        return {"viewmats": cameras.viewmats, "Ks": cameras.Ks, "environment": self._learnt.values}
