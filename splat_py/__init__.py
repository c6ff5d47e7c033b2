"""Differentiable Gaussian splatting and radiance fields in Slang, for Metal, Vulkan and CUDA.

import splat_py as splat
colors, alphas, meta = splat.rasterization(means, quats, scales, opacities, colors, viewmats, Ks, width, height)
"""

from splat_py import image, portable, volume
from splat_py.errors import SplatError
from splat_py.gpu.device import Device, get_device
from splat_py.gpu.device import adapters as devices
from splat_py.scene import Camera, Dataset, Gaussians, load_dataset, orbit
from splat_py.splats.config import TrainConfig
from splat_py.splats.rasterization import rasterization
from splat_py.splats.rendering import render
from splat_py.splats.trainer import Trainer

__all__ = [
    "Camera",
    "Dataset",
    "Device",
    "Gaussians",
    "SplatError",
    "TrainConfig",
    "Trainer",
    "devices",
    "get_device",
    "image",
    "load_dataset",
    "orbit",
    "portable",
    "rasterization",
    "render",
    "volume",
]
