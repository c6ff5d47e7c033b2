"""A dataset's views at one size, on the device: cameras, and photographs as the loss reads them."""

from __future__ import annotations

from numpy.typing import NDArray

from splat_py.fit.photographs import Photographs
from splat_py.gpu.device import Device
from splat_py.scene.dataset import Dataset
from splat_py.splats.camera_arrays import device_camera
from splat_py.splats.data import Cameras
from splat_py.splats.loss import pack
from splat_py.splats.resolution import coarse_camera, coarse_photograph


class TrainingViews:
    """Sides are divided by `divisor`. Photographs stay on the device up to `limit_bytes`."""

    def __init__(self, device: Device, dataset: Dataset, divisor: int, limit_bytes: int) -> None:
        self.divisor = divisor
        self._device, self._dataset = device, dataset
        self._cameras: dict[int, Cameras] = {}

        def load(view: int) -> NDArray:
            return pack(coarse_photograph(dataset.image(view), coarse_camera(dataset.views[view].camera, divisor)))

        self.photographs = Photographs(device.memory, load, limit_bytes)

    def cameras_of(self, view: int) -> Cameras:
        """The view's camera."""
        if view not in self._cameras:
            camera = coarse_camera(self._dataset.views[view].camera, self.divisor)
            self._cameras[view] = device_camera(self._device, camera)
        return self._cameras[view]
