"""A capture's camera as kernels take it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import UserType
from splat_py.scene.camera import Camera
from splat_py.splats.cameras import CAMERA_MODELS, LENS_MODELS
from splat_py.splats.data import Cameras


def device_camera(device: Device, camera: Camera) -> Cameras:
    """A camera on the device."""

    def row(values: ArrayLike) -> Array:
        return device.memory.array(np.asarray(values, np.float32)[None])

    lens = camera.distortion
    coefficients = None if lens is None else row([*lens.radial, *lens.tangential, 0, 0, 0, 0])
    return Cameras(row(camera.viewmat), row(camera.K), camera.width, camera.height, lenses=coefficients)


def camera_model(camera: Camera) -> str | UserType:
    """The type in slang/splat that projects as a camera does, or the user's own."""
    lens, model = camera.distortion, camera.model
    if model is not None and not isinstance(model, str):
        return model
    name = model or ("fisheye" if lens and lens.fisheye else "pinhole")
    return (CAMERA_MODELS if lens is None else LENS_MODELS)[name]
