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
    from splat_py.scene import Camera, Dataset, Gaussians, load_dataset, orbit
    from splat_py.splats import evaluation
    from splat_py.splats.config import TrainConfig
    from splat_py.splats.photometric_loss import photometric_loss, ssim
    from splat_py.splats.project import project, project_backward
    from splat_py.splats.rasterization import rasterization, render_backward
    from splat_py.splats.rasterization_2dgs import rasterization_2dgs
    from splat_py.splats.rasterize import rasterize_backward, rasterize_to_pixels
    from splat_py.splats.rendering import render
    from splat_py.splats.shade import shade, shade_backward
    from splat_py.splats.tiles import bin_tiles
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
            "bin_tiles": "splat_py.splats.tiles",
            "capture": "splat_py.capture:",
            "devices": "splat_py.gpu.device:adapters",
            "evaluation": "splat_py.splats.evaluation:",
            "get_device": "splat_py.gpu.device",
            "image": "splat_py.image:",
            "load_dataset": "splat_py.scene.dataset",
            "orbit": "splat_py.scene.camera_paths",
            "photometric_loss": "splat_py.splats.photometric_loss",
            "portable": "splat_py.portable:",
            "project": "splat_py.splats.project",
            "project_backward": "splat_py.splats.project",
            "rasterization": "splat_py.splats.rasterization",
            "rasterization_2dgs": "splat_py.splats.rasterization_2dgs",
            "rasterize_backward": "splat_py.splats.rasterize",
            "rasterize_to_pixels": "splat_py.splats.rasterize",
            "render": "splat_py.splats.rendering",
            "render_backward": "splat_py.splats.rasterization",
            "shade": "splat_py.splats.shade",
            "shade_backward": "splat_py.splats.shade",
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
