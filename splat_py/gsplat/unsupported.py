"""gsplat's unsupported names: scripts can import them; a call raises NotImplementedError."""

from itertools import chain
from typing import Any, NoReturn

NAMES = (
    # other renderers
    "rasterization_2dgs_inria_wrapper",
    "rasterization_inria_wrapper",
    # lidars
    "LidarTiling",
    "RowOffsetStructuredSpinningLidarModelParameters",
    "RowOffsetStructuredSpinningLidarModelParametersExt",
    "SpinningDirection",
    "compute_lidar_angles_to_columns_map",
    "compute_lidar_tiling",
    "isect_tiles_lidar",
    "lidar_background_loss",
    "lidar_distance_loss",
    "lidar_intensity_loss",
    "lidar_raydrop_loss",
)
# `gsplat.experimental` renders quantised Gaussians without gradients.
EXPERIMENTAL = (
    "GaussianInferenceRenderer",
    "GaussianInferenceScene",
    "RenderOnlyRasterizer",
    "RenderReturn",
    "rasterize_gaussian_inference_scene",
    "render_scene",
)

# Further names by module.
BY_MODULE = {
    "cuda._wrapper": (
        *("FOV", "_make_lazy_cuda_cls", "_make_lazy_cuda_func", "_make_lazy_cuda_obj"),
        *("adam", "persp_proj", "renderer_config_mixed_batch", "renderer_config_parallel_batch"),
    ),
    "distributed": ("all_gather_int32", "all_gather_tensor_list", "all_to_all_int32", "all_to_all_tensor_list"),
    "experimental": EXPERIMENTAL,
    "profile": ("ProfileWorkload", "capture_inputs", "main"),
    "scene": ("SHCompressionMode",),
}
# Modules whose names are all refused: CUDA's, lidars, sensors and their geometry, quantised scenes.
MODULES = (
    *("_lazy_backend", "cuda._backend", "cuda._lidar", "cuda._losses_wrapper", "cuda.build"),
    *(f"experimental.render{part}" for part in ("", ".components", ".functional", ".kernels", ".types")),
    *("geometry", "geometry.functional", "geometry.kernels", "scene.components.gaussian_inference_scene", "scene.functional"),
    *("scene.functional.gaussian_inference", "scene.kernels", "scene.sh_compression", "sensors", "sensors.functional"),
    *("sensors.kernels", "sensors.models", "sensors.models.cameras", "sensors.models.common", "sensors.models.lidars"),
)

# Supported replacements.
_IN_PLACE = {
    "rasterization_2dgs_inria_wrapper": "rasterization_2dgs",
    "rasterization_inria_wrapper": "rasterization",
    **dict.fromkeys(EXPERIMENTAL, "rasterization under torch.inference_mode()"),
}


def _refuse(name: str) -> NoReturn:
    advice = f"; use {_IN_PLACE[name]}" if name in _IN_PLACE else ""
    raise NotImplementedError(f"splat_py.gsplat does not support {name}{advice}")


class _Unsupported(type):
    """A class without instances or attributes. Calls and attribute access raise NotImplementedError; `isinstance` works."""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(cls.__name__)

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        _refuse(cls.__name__)


def refused(name: str) -> type:
    """A class that stands for one of gsplat's names, and raises NotImplementedError when used."""
    return _Unsupported(name, (), {"__doc__": f"gsplat's `{name}`, which is not supported; raises NotImplementedError."})


def __getattr__(name: str) -> Any:
    if name not in (*NAMES, *chain(*BY_MODULE.values())):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return refused(name)


def has_3dgs() -> bool:
    """True: 3D Gaussians, 3DGUT, surfels, camera objects, `SelectiveAdam`, `losses`, `relocation` and `MCMCStrategy` are
    supported."""
    return True


has_2dgs = has_3dgut = has_adam = has_camera_wrappers = has_losses = has_reloc = has_3dgs
