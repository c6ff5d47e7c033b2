"""Images as 2D Gaussians.

from splat_py import image

result = image.fit("photo.jpg", blobs=40_960, steps=1_000)
result.psnr, result.render(1920, 1080), result.save("photo.safetensors")

picture = image.render(params, width, height)  # torch, differentiable
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splat_py.image.fitting import FitReport, ImageFitter, fit
    from splat_py.image.options import Rates
    from splat_py.image.pictures import ImageFit, read_picture
    from splat_py.image.rasterizers import render
else:
    from splat_py.base.lazy import lazy

    __getattr__, __dir__ = lazy(__name__)

__all__ = ["FitReport", "ImageFit", "ImageFitter", "Rates", "fit", "read_picture", "render"]
