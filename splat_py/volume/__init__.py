"""Radiance fields: differentiable rendering of voxel grids by path replay, and fitting them to photographs."""

from splat_py.volume.checkpoint import VolumeCheckpoint
from splat_py.volume.config import VolumeConfig
from splat_py.volume.field import RadianceField
from splat_py.volume.fitting import FitReport, VolumeTrainer, fit
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
