"""Radiance fields: differentiable rendering of voxel and hash grids by path replay, and fitting them to photographs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splat_py.volume.config import VolumeConfig
    from splat_py.volume.fitting import FitReport, VolumeCheckpoint, VolumeTrainer, fit
    from splat_py.volume.grid import RadianceField, render
    from splat_py.volume.hash_grid import HashRadianceField
    from splat_py.volume.slang_field import SlangField
else:
    from splat_py.base.lazy import lazy

    __getattr__, __dir__ = lazy(__name__)

__all__ = ["FitReport", "HashRadianceField", "RadianceField", "SlangField"]
__all__ += ["VolumeCheckpoint", "VolumeConfig", "VolumeTrainer", "fit", "render"]
