"""Posed photographs for fitting a volume, and the rays of their cameras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.fit.photographs import Photographs
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import Dataset
from splat_py.volume.marching import Rays


@dataclass(frozen=True)
class Views:
    """Cameras, and a function from a view's index to its photograph [H, W, 4] float32: rgb from 0 to 1 and a weight, 0 to 1."""

    cameras: Sequence[Camera]
    photograph: Callable[[int], NDArray[np.float32]]

    @classmethod
    def of_arrays(cls, images: ArrayLike, viewmats: ArrayLike, Ks: ArrayLike) -> Views:
        """From images [V, H, W, 3] (float from 0 to 1, or uint8), viewmats [V, 4, 4] and Ks [V, 3, 3]."""
        images = np.asarray(images)
        viewmats, Ks = np.asarray(viewmats, np.float64), np.asarray(Ks, np.float64)
        if images.ndim != 4 or images.shape[3] != 3 or 0 in images.shape:
            raise SplatError(f"images has shape {list(images.shape)}; expected [V, H, W, 3]")
        count, height, width, _ = images.shape
        for name, array, shape in (("viewmats", viewmats, (count, 4, 4)), ("Ks", Ks, (count, 3, 3))):
            if array.shape != shape:
                raise SplatError(f"{name} has shape {list(array.shape)}; expected {list(shape)}, one a photograph")
        scale = 1 / 255 if images.dtype == np.uint8 else 1.0
        images = images.astype(np.float32) * np.float32(scale)
        if not np.isfinite(images).all():
            raise SplatError("images holds a number that is not finite; give colours from 0 to 1")
        weighted = np.concatenate([images, np.ones((*images.shape[:3], 1), np.float32)], axis=-1)
        cameras = [Camera(viewmats[i], Ks[i], width, height, f"view {i}") for i in range(count)]
        return cls(cameras, weighted.__getitem__)

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> Views:
        """The training photographs of a dataset.

        Raises:
            SplatError: they are distorted.
        """
        cameras = [dataset.views[i].camera for i in dataset.train]
        if any(camera.distortion is not None for camera in cameras):
            raise SplatError(f"the photographs of {dataset.root} are distorted; load them with undistort=True")
        return cls(
            cameras,
            lambda index: dataset.image(dataset.train[index]).astype(np.float32) / np.float32(255),
        )

    def __len__(self) -> int:
        return len(self.cameras)


@dataclass(frozen=True)
class Batch:
    """Views of one size, in one piece."""

    rays: Rays
    # [rays, 4]
    photographs: Array
    # The sum of the photographs' weights.
    weight: float


class Batches:
    """The views of a step, on the device."""

    def __init__(self, device: Device, views: Views) -> None:
        self._device, self._views = device, views
        weights: dict[int, float] = {}

        def load(view: int) -> NDArray[np.float32]:
            photograph = views.photograph(view)
            weights[view] = float(photograph[..., 3].sum())
            return photograph.reshape(-1, 4)

        self._photographs, self._weights = Photographs(device.memory, load), weights
        self._last: tuple[list[int], list[Batch]] = ([], [])

    def of(self, views: list[int]) -> list[Batch]:
        """A batch for each size."""
        if views != self._last[0]:
            sizes: dict[tuple[int, int], list[int]] = {}
            for view in views:
                camera = self._views.cameras[view]
                sizes.setdefault((camera.width, camera.height), []).append(view)
            self._last = views, [self._batch(of_one_size) for of_one_size in sizes.values()]
        return self._last[1]

    def _batch(self, views: list[int]) -> Batch:
        recorder = self._device.record()
        rays = camera_rays(self._device, recorder, [self._views.cameras[view] for view in views])
        photographs = self._device.memory.empty((rays.count, 4))
        weight, end = 0.0, 0
        for view in views:
            photograph = self._photographs[view]
            recorder.copy(photograph, photographs, end)
            weight += self._weights[view]
            end += photograph.nbytes
        recorder.submit()
        return Batch(rays, photographs, weight)


def camera_rays(device: Device, recorder: Recorder, cameras: Sequence[Camera]) -> Rays:
    """The rays through the pixels of cameras of one size, row by row and camera by camera."""
    width, height = cameras[0].width, cameras[0].height
    count = width * height
    origins, directions = (device.memory.empty((len(cameras) * count, 3)) for _ in range(2))
    recorder.stage("rays")
    for i, camera in enumerate(cameras):
        pose: dict[str, int | float] = {}
        for row, axis in enumerate("xyz"):
            pose |= {f"r{row}{column}": float(camera.viewmat[row, column]) for column in range(3)}
            pose[f"t{axis}"] = float(camera.viewmat[row, 3])
        K = camera.K
        recorder.dispatch(
            "volume_rays",
            "cameraRays",
            linear_groups(count),
            {
                "width": width,
                "height": height,
                "first": i * count,
                "fx": float(K[0, 0]),
                "fy": float(K[1, 1]),
                "cx": float(K[0, 2]),
                "cy": float(K[1, 2]),
                **pose,
            },
            {"origins": origins, "directions": directions},
        )
    return Rays(origins, directions, width, height)
