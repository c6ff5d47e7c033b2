"""gsplat's names over splat_py's renderer: `import splat_py.gsplat as gsplat`, and `from splat_py.gsplat.X import Y` for its
`from gsplat.X import Y`.

Names are those of gsplat 1.5.3 and 1.6; those in `unsupported` raise NotImplementedError when called.
"""

from splat_py.gsplat.unsupported import NAMES as _UNSUPPORTED
from splat_py.lazy import lazy

_HERE = "splat_py.gsplat"
_HOMES = {
    **dict.fromkeys(_UNSUPPORTED, f"{_HERE}.unsupported"),
    **dict.fromkeys(
        (
            "CameraModel",
            "ExternalDistortionModelMeta",
            "ExternalDistortionModelParameters",
            "RasterizeMode",
            "RenderMode",
            "RendererConfig",
            "RendererConfig_MixedBatch",
            "RendererConfig_ParallelBatch",
            "RollingShutterType",
        ),
        f"{_HERE}.options",
    ),
    **dict.fromkeys(("DefaultStrategy", "MCMCStrategy", "Strategy"), f"{_HERE}.strategy"),
    **dict.fromkeys(("color_correct_affine", "color_correct_quadratic"), f"{_HERE}.color_correct"),
    **dict.fromkeys(
        (
            "create_ssim_window",
            "depth_l1_loss",
            "gaussian_density_reg",
            "gaussian_scale_reg",
            "gaussian_z_scale_reg",
            "l1_loss",
            "lidar_background_loss",
            "lidar_distance_loss",
            "lidar_intensity_loss",
            "lidar_raydrop_loss",
            "mse_loss",
            "opacity_reg_loss",
            "out_of_bound_loss",
            "scale_reg_loss",
            "ssim_loss",
            "torch_ssim_loss",
            "total_variation_loss",
        ),
        f"{_HERE}.losses",
    ),
    **dict.fromkeys(
        ("has_2dgs", "has_3dgs", "has_3dgut", "has_adam", "has_camera_wrappers", "has_losses", "has_reloc"),
        f"{_HERE}.features",
    ),
    "PngCompression": f"{_HERE}.compression",
    "SelectiveAdam": f"{_HERE}.optimizers",
    "export_splats": f"{_HERE}.exporter",
    "__version__": f"{_HERE}.version",
    "rasterization": "splat_py.splats.rasterization",
    "rasterization_2dgs": "splat_py.splats.rasterization_2dgs",
    "accumulate": f"{_HERE}.indices",
    "fully_fused_projection": f"{_HERE}.projection",
    "fully_fused_projection_2dgs": f"{_HERE}.surfels",
    "isect_offset_encode": f"{_HERE}.intersection",
    "isect_tiles": f"{_HERE}.intersection",
    "proj": f"{_HERE}.cameras",
    "quat_scale_to_covar_preci": f"{_HERE}.covariances",
    "rasterize_to_indices_in_range": f"{_HERE}.indices",
    "rasterize_to_pixels": f"{_HERE}.pixels",
    "rasterize_to_pixels_2dgs": f"{_HERE}.surfels",
    "spherical_harmonics": f"{_HERE}.harmonics",
    "world_to_cam": f"{_HERE}.cameras",
}
_MODULES = (
    "color_correct",
    "compression",
    "cuda",
    "distributed",
    "experimental",
    "exporter",
    "losses",
    "optimizers",
    "profile",
    "relocation",
    "rendering",
    "scene",
    "stage",
    "strategy",
    "utils",
    "version",
)

__getattr__, __dir__ = lazy(__name__, _HOMES | {name: f"{_HERE}.{name}:" for name in _MODULES})

__all__ = list(_HOMES)
