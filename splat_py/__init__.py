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
    from splat_py import testing as testing
    from splat_py import volume as volume
    from splat_py.gpu.device import Device as Device
    from splat_py.gpu.device import adapters as devices  # noqa: F401
    from splat_py.gpu.device import get_device as get_device
    from splat_py.gpu.sources import shader_folder as shader_folder
    from splat_py.render.information import information as information
    from splat_py.render.information import suggest as suggest
    from splat_py.render.information import uncertainty as uncertainty
    from splat_py.render.inspection import Pixel as Pixel
    from splat_py.render.inspection import inspect as inspect
    from splat_py.render.localization import Localization as Localization
    from splat_py.render.localization import localize as localize
    from splat_py.render.mesh import Mesh as Mesh
    from splat_py.render.mesh import mesh as mesh
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
    from splat_py.train.run import RunFolder as RunFolder
    from splat_py.train.trainer import Trainer as Trainer
    from splat_py.viewer.notebook import show as show
else:
    from splat_py.base.lazy import lazy, typed_homes

    __getattr__, __dir__ = lazy(__name__)
    __all__ = ["SplatError", "__version__", *typed_homes(__name__)]
