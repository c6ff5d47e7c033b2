"""Differentiable Gaussian splatting and radiance fields in Slang, for Metal, Vulkan and CUDA.

import splat_py as splat
colors, alphas, meta = splat.rasterization(means, quats, scales, opacities, colors, viewmats, Ks, width, height)
"""

from typing import TYPE_CHECKING

from splat_py.base.errors import SplatError as SplatError

__version__ = "0.1.0"

if TYPE_CHECKING:
    from splat_py import capture as capture
    from splat_py import image as image
    from splat_py import portable as portable
    from splat_py import shaders as shaders
    from splat_py import volume as volume
    from splat_py.gpu.device import Device as Device
    from splat_py.gpu.device import adapters
    from splat_py.gpu.device import get_device as get_device
    from splat_py.render.project import project as project
    from splat_py.render.project import project_backward as project_backward
    from splat_py.render.rasterization import rasterization as rasterization
    from splat_py.render.rasterization import render_backward as render_backward
    from splat_py.render.rasterize import rasterize_backward as rasterize_backward
    from splat_py.render.rasterize import rasterize_to_pixels as rasterize_to_pixels
    from splat_py.render.shade import shade as shade
    from splat_py.render.shade import shade_backward as shade_backward
    from splat_py.render.surfels import rasterization_2dgs as rasterization_2dgs
    from splat_py.render.tiles import bin_tiles as bin_tiles
    from splat_py.render.views import render as render
    from splat_py.scene.camera import Camera as Camera
    from splat_py.scene.camera_paths import orbit as orbit
    from splat_py.scene.dataset import Dataset as Dataset
    from splat_py.scene.dataset import load_dataset as load_dataset
    from splat_py.scene.gaussians import Gaussians as Gaussians
    from splat_py.train import evaluation as evaluation
    from splat_py.train.config import TrainConfig as TrainConfig
    from splat_py.train.photometric_loss import photometric_loss as photometric_loss
    from splat_py.train.photometric_loss import ssim as ssim
    from splat_py.train.trainer import Trainer as Trainer

    devices = adapters
else:
    from splat_py.base.lazy import lazy

    _HOMES = {
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
    }
    __getattr__, __dir__ = lazy(__name__, _HOMES)
    __all__ = ["SplatError", "__version__", *_HOMES]
