"""Radiance fields: differentiable rendering of voxel and hash grids by path replay, and fitting them to photographs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splat_py.volume.checkpoint import VolumeCheckpoint
    from splat_py.volume.config import VolumeConfig
    from splat_py.volume.field import RadianceField
    from splat_py.volume.fitting import FitReport, VolumeTrainer, fit
    from splat_py.volume.hash_field import HashRadianceField
    from splat_py.volume.own_field import OwnRadianceField
    from splat_py.volume.rendering import render
else:
    from splat_py.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "FitReport": "splat_py.volume.fitting",
            "HashRadianceField": "splat_py.volume.hash_field",
            "OwnRadianceField": "splat_py.volume.own_field",
            "RadianceField": "splat_py.volume.field",
            "VolumeCheckpoint": "splat_py.volume.checkpoint",
            "VolumeConfig": "splat_py.volume.config",
            "VolumeTrainer": "splat_py.volume.fitting",
            "fit": "splat_py.volume.fitting",
            "render": "splat_py.volume.rendering",
        },
    )

__all__ = [
    "FitReport",
    "HashRadianceField",
    "OwnRadianceField",
    "RadianceField",
    "VolumeCheckpoint",
    "VolumeConfig",
    "VolumeTrainer",
    "fit",
    "render",
]
