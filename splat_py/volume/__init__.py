"""Radiance fields: differentiable rendering of voxel grids by path replay, and fitting them to photographs."""

from splat_py.volume.field import RadianceField
from splat_py.volume.fitting import FitReport, VolumeCheckpoint, VolumeConfig, VolumeTrainer, fit
from splat_py.volume.rendering import render

__all__ = [
    "FitReport",
    "RadianceField",
    "VolumeCheckpoint",
    "VolumeConfig",
    "VolumeTrainer",
    "fit",
    "render",
]
