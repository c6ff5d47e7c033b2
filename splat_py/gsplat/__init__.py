"""gsplat's interface on top of splat_py's renderer: `import splat_py.gsplat as gsplat`, and `from splat_py.gsplat.X import Y`
instead of `from gsplat.X import Y`.

It has the names of gsplat 1.5.3 and 1.6; those in `unsupported` raise NotImplementedError when called. Where the versions
contradict each other, `use` says which is followed.
"""

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from splat_py.base.lazy import lazy
from splat_py.gsplat import unsupported as _unsupported
from splat_py.gsplat.unsupported import NAMES as _UNSUPPORTED
from splat_py.gsplat.version import __version__, use

_HARMONICS = ("spherical_harmonics", "spherical_harmonics_l0", "spherical_harmonics_l1_plus")
_STAGES = {
    "contributors": (
        *("rasterize_contributing_gaussian_ids", "rasterize_num_contributing_gaussians"),
        "rasterize_top_contributing_gaussian_ids",
    ),
    "intersection": (
        *("accumulate", "accumulate_2dgs", "isect_offset_encode", "isect_tiles"),
        *("rasterize_to_indices_in_range", "rasterize_to_indices_in_range_2dgs"),
    ),
    "pixels": ("rasterize_to_pixels", "rasterize_to_pixels_2dgs"),
    "projection": ("fully_fused_projection", "fully_fused_projection_2dgs", *_HARMONICS),
    "sparse": (
        *("build_sparse_tile_layout", "isect_tiles_sparse", "rasterize_contributing_gaussian_ids_sparse"),
        *("rasterize_num_contributing_gaussians_sparse", "rasterize_to_pixels_sparse"),
        "rasterize_top_contributing_gaussian_ids_sparse",
    ),
    "torch_impl": ("proj", "quat_scale_to_covar_preci", "world_to_cam"),
    "unscented": ("fully_fused_projection_with_ut", "rasterize_to_pixels_eval3d", "rasterize_to_pixels_eval3d_extra"),
}
_BUILD = ("has_2dgs", "has_3dgs", "has_3dgut", "has_adam", "has_camera_wrappers", "has_losses", "has_reloc")
_FTHETA = ("FThetaCameraDistortionParameters", "FThetaPolynomialType")
_CAMERA_TYPES = ("CameraModel", "ExternalDistortionModelMeta", "RollingShutterType", *_FTHETA)
_WINDSHIELDS = ("BivariateWindshieldModelParameters", "ExternalDistortionModelParameters")
_CONFIGS = ("RendererConfig", "RendererConfig_MixedBatch", "RendererConfig_ParallelBatch")
_COLOR_CORRECT = ("color_correct_affine", "color_correct_quadratic")

# Public names by the module that defines them.
_PUBLIC = _STAGES | {
    "cameras": _WINDSHIELDS,
    "compression": ("PngCompression",),
    "utils": ("export_splats",),
    "losses": (
        *("FusedGaussianLosses", "create_ssim_window", "depth_l1_loss", "gaussian_density_reg", "gaussian_scale_reg"),
        *("gaussian_z_scale_reg", "l1_loss", "mse_loss", "opacity_reg_loss", "out_of_bound_loss", "scale_reg_loss"),
        *("ssim_loss", "torch_ssim_loss", "total_variation_loss"),
    ),
    "strategy.ops": ("SelectiveAdam",),
    "rendering": (*_CAMERA_TYPES, *_CONFIGS, "RasterizeMode", "RenderMode", "rasterization", "rasterization_2dgs"),
    "strategy": ("DefaultStrategy", "MCMCStrategy", "Strategy"),
    "unsupported": (*_UNSUPPORTED, *_BUILD),
    "version": ("use",),
    "splat_py.train.evaluation": _COLOR_CORRECT,
}
_Homes = dict[str, tuple[str, ...]]
_ADAM: _Homes = {"strategy.ops": ("SelectiveAdam",)}
_SCHEDULES: _Homes = {"schedules": ("TwoStageScheduleStep", "TwoStageScheduler")}
_STAGE: _Homes = {"scene": ("Stage",)}
# gsplat's modules without a file here: their names are defined in other modules.
_PATHS: dict[str, _Homes] = {
    "_helper": {
        "assertions": (
            *("assert_shape", "ensure_shape", "expand_named_params", "expect_call", "expect_group", "expect_true"),
            *("assert_close", "assert_close_with_boundary_band", "assert_grad_reference_close", "assert_grad_sparsity"),
            *("assert_mismatch_ratio", "expect_close", "expect_close_with_boundary_band", "expect_grad_reference_close"),
            *("expect_grad_sparsity", "expect_mismatch_ratio", "get_inlier_abserror_mask"),
        ),
        "utils": ("load_test_data",),
    },
    "color_correct": {"splat_py.train.evaluation": _COLOR_CORRECT},
    "compression.png_compression": {"compression": ("PngCompression",)},
    "compression.sort": {"compression": ("sort_splats",)},
    "cuda": {},
    "cuda._constants": {"rendering": ("ALPHA_THRESHOLD", "MIN_COMPENSATION", "TRANSMITTANCE_THRESHOLD")},
    "cuda._wrapper": {
        **_STAGES,
        "camera_models": ("create_camera_model",),
        "cameras": (*_WINDSHIELDS, "ExternalDistortionReferencePolynomial"),
        "rendering": (*_CAMERA_TYPES, "UnscentedTransformParameters"),
        "unsupported": (*_UNSUPPORTED, *_BUILD),
    },
    "distributed": {"utils": ("cli",)},
    "exporter": {"utils": ("export_splats", "load_ply_to_splats")},
    "experimental": {},
    "losses_fused": {"losses": ("FusedGaussianLosses",)},
    "optimizers": _ADAM,
    "optimizers.selective_adam": _ADAM,
    "profile": {"utils": ("profiler", "timeit")},
    "relocation": {"strategy.ops": ("compute_relocation",)},
    "scene.components": {"scene": ("GaussianInferenceScene", "GaussianScene", "Scene")},
    "scene.components.base": {"scene": ("Scene",)},
    "scene.components.gaussian_scene": {"scene": ("GaussianScene",)},
    "stage": _STAGE,
    "stage.components": _STAGE,
    "stage.components.stage": _STAGE,
    "strategy.base": {"strategy": ("Strategy",)},
    "strategy.default": {"strategy": ("DefaultStrategy",)},
    "strategy.mcmc": {"strategy": ("MCMCStrategy",)},
    "training": _SCHEDULES,
    "training.schedulers": _SCHEDULES,
}
# gsplat's deformations, which are plain torch; refused where its own package lacks them.
_DEFORMATIONS = (
    *("contrib", "contrib.dynamic", "contrib.dynamic.deformation", "contrib.dynamic.hexplane"),
    *("contrib.dynamic.regulation", "contrib.dynamic.strategy"),
)
# gsplat's torch references, which stay its own, so that its tests compare with it.
_OWN = (
    *("cuda._math", "cuda._torch_cameras", "cuda._torch_external_distortion", "cuda._torch_impl", "cuda._torch_impl_2dgs"),
    *("cuda._torch_impl_eval3d", "cuda._torch_impl_lidar", "cuda._torch_impl_ut", "cuda._torch_lidars"),
)


def _homes(names: _Homes) -> dict[str, str]:
    """The module of each name."""
    return {
        name: home if home.startswith("splat_py") else f"{__name__}.{home}" for home, group in names.items() for name in group
    }


def _own(path: str, name: str) -> Any:
    from splat_py.gsplat.torch_impl import own_package

    if name == "make_params":
        # gsplat's makes CUDA's class.
        from splat_py.gsplat.cameras import make_params

        return make_params
    return getattr(own_package(path), name)


def _own_or_refused(path: str, name: str) -> Any:
    try:
        return _own(path, name)
    except ImportError:
        return _unsupported.refused(name)


def _register(path: str, find: Callable[[str], Any], names: tuple[str, ...] = ()) -> None:
    """Register a module splat_py.gsplat.PATH for names that are defined elsewhere, where `find` finds them."""
    name = f"{__name__}.{path}"
    module = sys.modules[name] = ModuleType(name, f"The names of `gsplat.{path}`.")

    def attribute(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        return sys.modules.get(f"{name}.{wanted}") or find(wanted)

    module.__dict__.update(__getattr__=attribute, __all__=list(names), __dir__=lambda: sorted({*vars(module), *names}))


for _path, _names in _PATHS.items():
    _known = _homes(_names | {"unsupported": (*_names.get("unsupported", ()), *_unsupported.BY_MODULE.get(_path, ()))})
    _register(_path, lazy(f"{__name__}.{_path}", _known)[0], tuple(_known))
for _path in _OWN:
    _register(_path, partial(_own, _path))
for _path in _DEFORMATIONS:
    _register(_path, partial(_own_or_refused, _path))
for _path in _unsupported.MODULES:
    _register(_path, _unsupported.refused)
use(__version__)

_MODULES = (
    *("compression", "init_utils", "losses", "regularizers", "rendering", "scene", "strategy", "trace", "utils", "version"),
    *(path for path in (*_PATHS, *_DEFORMATIONS, *_unsupported.MODULES) if "." not in path),
)
__getattr__, __dir__ = lazy(__name__, _homes(_PUBLIC) | {name: f"{__name__}.{name}:" for name in _MODULES})

__all__ = ["__version__", *_homes(_PUBLIC)]
