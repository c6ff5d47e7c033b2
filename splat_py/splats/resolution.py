"""At which size photographs are compared: small ones first, whose steps take less time and settle what is large."""

from __future__ import annotations

import cv2
import numpy as np

from splat_py.scene.camera import Camera
from splat_py.scene.dataset import Dataset
from splat_py.scene.images import UInt8Array
from splat_py.splats.config import TrainConfig

# By what sides are divided at most, and the pixels that the shorter one keeps.
_LARGEST_DIVISOR, _FEWEST_PIXELS = 4, 64


def largest_divisor(dataset: Dataset) -> int:
    """By what the sides of the training photographs may be divided: 1, 2 or 4."""
    side = min(min(dataset.views[i].camera.width, dataset.views[i].camera.height) for i in dataset.train)
    divisor = 1
    while 2 * divisor <= _LARGEST_DIVISOR and side >= 2 * divisor * _FEWEST_PIXELS:
        divisor *= 2
    return divisor


def divisor_at(config: TrainConfig, step: int, largest: int) -> int:
    """By what sides are divided in a step: `largest` at first, halved in steps of equal length, 1 from `coarse_end` on."""
    end, levels = config.coarse_end, largest.bit_length() - 1
    return largest >> step * levels // end if step < end else 1


def coarse_camera(camera: Camera, divisor: int) -> Camera:
    """The same view, its sides divided and rounded."""
    return camera if divisor == 1 else camera.scaled(1 / divisor)


def coarse_photograph(photograph: UInt8Array, camera: Camera) -> UInt8Array:
    """A photograph [H, W, 4] (rgb, weight) at the size of a coarse camera, by averaging areas. A pixel counts if all count that
    it is made of; others are left out of what it is compared with."""
    size = camera.width, camera.height
    if photograph.shape[1::-1] == size:
        return photograph
    rgb = cv2.resize(np.ascontiguousarray(photograph[..., :3]), size, interpolation=cv2.INTER_AREA)
    ignored = cv2.resize((photograph[..., 3] < 255).astype(np.float32), size, interpolation=cv2.INTER_AREA)
    return np.dstack([rgb, np.where(ignored > 0, 0, 255).astype(np.uint8)])
