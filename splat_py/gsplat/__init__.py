"""gsplat's interface on top of splat_py's renderer: `import splat_py.gsplat as gsplat`, and `from splat_py.gsplat.X import Y`
instead of `from gsplat.X import Y`.

It has the names of gsplat 1.5.3 and 1.6; those in `unsupported` raise NotImplementedError when called. Where the versions
contradict each other, `use` says which is followed.
"""

import sys
from types import ModuleType

from splat_py.base.lazy import lazy
from splat_py.gsplat.unsupported import EXPERIMENTAL as _EXPERIMENTAL
from splat_py.gsplat.unsupported import NAMES as _UNSUPPORTED
from splat_py.gsplat.version import __version__

_HARMONICS = ("spherical_harmonics", "spherical_harmonics_l0", "spherical_harmonics_l1_plus")
_STAGES = {
    "intersection": (
        *("accumulate", "accumulate_2dgs", "isect_offset_encode", "isect_tiles"),
        *("rasterize_to_indices_in_range", "rasterize_to_indices_in_range_2dgs"),
    ),
    "pixels": ("rasterize_to_pixels", "rasterize_to_pixels_2dgs"),
    "projection": ("fully_fused_projection", "fully_fused_projection_2dgs", *_HARMONICS),
    "torch_impl": ("proj", "quat_scale_to_covar_preci", "world_to_cam"),
}
_BUILD = ("has_2dgs", "has_3dgs", "has_3dgut", "has_adam", "has_camera_wrappers", "has_losses", "has_reloc")
_CAMERA_TYPES = ("CameraModel", "ExternalDistortionModelMeta", "RollingShutterType")
_CONFIGS = ("RendererConfig", "RendererConfig_MixedBatch", "RendererConfig_ParallelBatch")
_COLOR_CORRECT = ("color_correct_affine", "color_correct_quadratic")

# Public names by the module that defines them.
_PUBLIC = _STAGES | {
    "compression": ("PngCompression",),
    "utils": ("export_splats",),
    "losses": (
        "create_ssim_window",
        "depth_l1_loss",
        "gaussian_density_reg",
        "gaussian_scale_reg",
        "gaussian_z_scale_reg",
        "l1_loss",
        "mse_loss",
        "opacity_reg_loss",
        "out_of_bound_loss",
        "scale_reg_loss",
        "ssim_loss",
        "torch_ssim_loss",
        "total_variation_loss",
    ),
    "strategy.ops": ("SelectiveAdam",),
    "rendering": (*_CAMERA_TYPES, *_CONFIGS, "RasterizeMode", "RenderMode", "rasterization", "rasterization_2dgs"),
    "strategy": ("DefaultStrategy", "MCMCStrategy", "Strategy"),
    "unsupported": (*_UNSUPPORTED, *_BUILD),
    "version": ("use",),
    "splat_py.train.evaluation": _COLOR_CORRECT,
}
# gsplat's modules without a file here: their names are defined in other modules.
_PATHS: dict[str, dict[str, tuple[str, ...]]] = {
    "_helper": {"utils": ("load_test_data",)},
    "color_correct": {"splat_py.train.evaluation": _COLOR_CORRECT},
    "cuda": {},
    "cuda._constants": {"rendering": ("ALPHA_THRESHOLD", "MIN_COMPENSATION")},
    "cuda._torch_impl": {
        "torch_impl": (
            "_eval_sh_bases_fast",
            "_fisheye_proj",
            "_fully_fused_projection",
            "_isect_offset_encode",
            "_isect_tiles",
            "_ortho_proj",
            "_persp_proj",
            "_quat_scale_to_covar_preci",
            "_quat_scale_to_matrix",
            "_quat_to_rotmat",
            "_rasterize_to_pixels",
            "_spherical_harmonics",
            "_world_to_cam",
            "accumulate",
        ),
    },
    "cuda._torch_impl_2dgs": {
        "torch_impl": ("_fully_fused_projection_2dgs", "_rasterize_to_pixels_2dgs", "accumulate_2dgs"),
    },
    "cuda._wrapper": {
        **_STAGES,
        "rendering": (*_CAMERA_TYPES, "UnscentedTransformParameters"),
        "unsupported": (*_UNSUPPORTED, *_BUILD),
    },
    "distributed": {"utils": ("cli",)},
    "exporter": {"utils": ("export_splats", "load_ply_to_splats")},
    "experimental": {"unsupported": _EXPERIMENTAL},
    "optimizers": {"strategy.ops": ("SelectiveAdam",)},
    "profile": {"utils": ("profiler", "timeit")},
    "relocation": {"strategy.ops": ("compute_relocation",)},
    "stage": {"scene": ("Stage",)},
}


def _homes(names: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """The module of each name."""
    return {
        name: home if home.startswith("splat_py") else f"{__name__}.{home}" for home, group in names.items() for name in group
    }


def _register(path: str) -> None:
    """Register a module splat_py.gsplat.PATH for names that are defined elsewhere."""
    name = f"{__name__}.{path}"
    homes = _homes(_PATHS[path])
    module = ModuleType(name, f"The names of `gsplat.{path}`.")
    inside = {child.removeprefix(f"{path}."): f"{__name__}.{child}:" for child in _PATHS if child.startswith(f"{path}.")}
    module.__dict__["__getattr__"], module.__dict__["__dir__"] = lazy(name, homes | inside)
    module.__dict__["__all__"] = list(homes)
    sys.modules[name] = module


for _path in _PATHS:
    _register(_path)

_MODULES = (
    *("compression", "losses", "rendering", "scene", "strategy", "utils", "version"),
    *(path for path in _PATHS if "." not in path),
)
__getattr__, __dir__ = lazy(__name__, _homes(_PUBLIC) | {name: f"{__name__}.{name}:" for name in _MODULES})

__all__ = ["__version__", *_homes(_PUBLIC)]
