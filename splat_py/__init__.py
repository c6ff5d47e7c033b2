"""Differentiable Gaussian splatting and radiance fields in Slang, for Metal, Vulkan and CUDA.

import splat_py as splat
colors, alphas, meta = splat.rasterization(means, quats, scales, opacities, colors, viewmats, Ks, width, height)
"""

from typing import TYPE_CHECKING

from splat_py.errors import SplatError

if TYPE_CHECKING:
    from splat_py import image, portable, shaders, volume
    from splat_py.gpu.device import Device, get_device
    from splat_py.gpu.device import adapters as devices
    from splat_py.scene import Camera, Dataset, Gaussians, load_dataset, orbit
    from splat_py.splats.config import TrainConfig
    from splat_py.splats.photometric_loss import photometric_loss, ssim
    from splat_py.splats.rasterization import rasterization
    from splat_py.splats.rendering import render
    from splat_py.splats.trainer import Trainer
else:
    from splat_py.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Camera": "splat_py.scene.camera",
            "Dataset": "splat_py.scene.dataset",
            "Device": "splat_py.gpu.device",
            "Gaussians": "splat_py.scene.gaussians",
            "TrainConfig": "splat_py.splats.config",
            "Trainer": "splat_py.splats.trainer",
            "devices": "splat_py.gpu.device:adapters",
            "get_device": "splat_py.gpu.device",
            "image": "splat_py.image:",
            "load_dataset": "splat_py.scene.dataset",
            "orbit": "splat_py.scene.camera",
            "photometric_loss": "splat_py.splats.photometric_loss",
            "portable": "splat_py.portable:",
            "rasterization": "splat_py.splats.rasterization",
            "render": "splat_py.splats.rendering",
            "shaders": "splat_py.shaders:",
            "ssim": "splat_py.splats.photometric_loss",
            "volume": "splat_py.volume:",
        },
    )

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
    "photometric_loss",
    "portable",
    "rasterization",
    "render",
    "shaders",
    "ssim",
    "volume",
]
