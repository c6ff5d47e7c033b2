"""Radiance fields: differentiable rendering of voxel and hash grids by path replay, and fitting them to photographs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splat_py.volume.config import VolumeConfig as VolumeConfig
    from splat_py.volume.fitting import FitReport as FitReport
    from splat_py.volume.fitting import VolumeCheckpoint as VolumeCheckpoint
    from splat_py.volume.fitting import VolumeTrainer as VolumeTrainer
    from splat_py.volume.fitting import fit as fit
    from splat_py.volume.grid import RadianceField as RadianceField
    from splat_py.volume.grid import render as render
    from splat_py.volume.hash_grid import HashRadianceField as HashRadianceField
    from splat_py.volume.slang_field import SlangField as SlangField
else:
    from splat_py.base.lazy import lazy

    _HOMES = {
        "FitReport": "splat_py.volume.fitting",
        "HashRadianceField": "splat_py.volume.hash_grid",
        "SlangField": "splat_py.volume.slang_field",
        "RadianceField": "splat_py.volume.grid",
        "VolumeCheckpoint": "splat_py.volume.fitting",
        "VolumeConfig": "splat_py.volume.config",
        "VolumeTrainer": "splat_py.volume.fitting",
        "fit": "splat_py.volume.fitting",
        "render": "splat_py.volume.grid",
    }
    __getattr__, __dir__ = lazy(__name__, _HOMES)
    __all__ = [*_HOMES]
