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

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "FitReport": "splat_py.volume.fitting",
            "HashRadianceField": "splat_py.volume.hash_grid",
            "SlangField": "splat_py.volume.slang_field",
            "RadianceField": "splat_py.volume.grid",
            "VolumeCheckpoint": "splat_py.volume.fitting",
            "VolumeConfig": "splat_py.volume.config",
            "VolumeTrainer": "splat_py.volume.fitting",
            "fit": "splat_py.volume.fitting",
            "render": "splat_py.volume.grid",
        },
    )

__all__ = [
    "FitReport",
    "HashRadianceField",
    "RadianceField",
    "SlangField",
    "VolumeCheckpoint",
    "VolumeConfig",
    "VolumeTrainer",
    "fit",
    "render",
]
