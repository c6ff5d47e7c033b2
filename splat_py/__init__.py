"""Differentiable Gaussian splatting and radiance fields in Slang, for Metal, Vulkan and CUDA.

import splat_py as splat
colors, alphas, meta = splat.rasterization(means, quats, scales, opacities, colors, viewmats, Ks, width, height)
"""

from typing import TYPE_CHECKING

from splat_py.errors import SplatError

__version__ = "0.1.0"

if TYPE_CHECKING:
    from splat_py import capture, image, portable, shaders, volume
    from splat_py.gpu.device import Device, get_device
    from splat_py.gpu.device import adapters as devices
    from splat_py.render.project import project, project_backward
    from splat_py.render.rasterization import rasterization, render_backward
    from splat_py.render.rasterize import rasterize_backward, rasterize_to_pixels
    from splat_py.render.shade import shade, shade_backward
    from splat_py.render.surfels import rasterization_2dgs
    from splat_py.render.tiles import bin_tiles
    from splat_py.render.views import render
    from splat_py.scene.camera import Camera
    from splat_py.scene.camera_paths import orbit
    from splat_py.scene.dataset import Dataset, load_dataset
    from splat_py.scene.gaussians import Gaussians
    from splat_py.train import evaluation
    from splat_py.train.config import TrainConfig
    from splat_py.train.photometric_loss import photometric_loss, ssim
    from splat_py.train.trainer import Trainer
else:
    from splat_py.base.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Camera": "splat_py.scene.camera",
            "Dataset": "splat_py.scene.dataset",
            "Device": "splat_py.gpu.device",
            "Gaussians": "splat_py.scene.gaussians",
            "TrainConfig": "splat_py.train.config",
            "Trainer": "splat_py.train.trainer",
            "bin_tiles": "splat_py.render.tiles",
            "capture": "splat_py.capture:",
            "devices": "splat_py.gpu.device:adapters",
            "evaluation": "splat_py.train.evaluation:",
            "get_device": "splat_py.gpu.device",
            "image": "splat_py.image:",
            "load_dataset": "splat_py.scene.dataset",
            "orbit": "splat_py.scene.camera_paths",
            "photometric_loss": "splat_py.train.photometric_loss",
            "portable": "splat_py.portable:",
            "project": "splat_py.render.project",
            "project_backward": "splat_py.render.project",
            "rasterization": "splat_py.render.rasterization",
            "rasterization_2dgs": "splat_py.render.surfels",
            "rasterize_backward": "splat_py.render.rasterize",
            "rasterize_to_pixels": "splat_py.render.rasterize",
            "render": "splat_py.render.views",
            "render_backward": "splat_py.render.rasterization",
            "shade": "splat_py.render.shade",
            "shade_backward": "splat_py.render.shade",
            "shaders": "splat_py.shaders:",
            "ssim": "splat_py.train.photometric_loss",
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
    "__version__",
    "bin_tiles",
    "capture",
    "devices",
    "evaluation",
    "get_device",
    "image",
    "load_dataset",
    "orbit",
    "photometric_loss",
    "portable",
    "project",
    "project_backward",
    "rasterization",
    "rasterization_2dgs",
    "rasterize_backward",
    "rasterize_to_pixels",
    "render",
    "render_backward",
    "shade",
    "shade_backward",
    "shaders",
    "ssim",
    "volume",
]
