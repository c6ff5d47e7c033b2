"""The names of `gsplat.rendering`."""

from splat_py.gsplat.options import (
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RasterizeMode,
    RendererConfig,
    RendererConfig_MixedBatch,
    RendererConfig_ParallelBatch,
    RenderMode,
    RollingShutterType,
    render_mode_has_color,
    render_mode_has_depth,
    render_mode_has_depth_channel,
    render_mode_has_expected_depth,
    render_mode_has_hit_distance,
    render_mode_has_only_color,
    render_mode_has_only_depth_channel,
)
from splat_py.gsplat.reference import rasterization as _rasterization
from splat_py.gsplat.unsupported import rasterization_2dgs_inria_wrapper, rasterization_inria_wrapper
from splat_py.splats.rasterization import rasterization
from splat_py.splats.rasterization_2dgs import rasterization_2dgs

__all__ = [
    "FThetaCameraDistortionParameters",
    "FThetaPolynomialType",
    "RasterizeMode",
    "RenderMode",
    "RendererConfig",
    "RendererConfig_MixedBatch",
    "RendererConfig_ParallelBatch",
    "RollingShutterType",
    "_rasterization",
    "rasterization",
    "rasterization_2dgs",
    "rasterization_2dgs_inria_wrapper",
    "rasterization_inria_wrapper",
    "render_mode_has_color",
    "render_mode_has_depth",
    "render_mode_has_depth_channel",
    "render_mode_has_expected_depth",
    "render_mode_has_hit_distance",
    "render_mode_has_only_color",
    "render_mode_has_only_depth_channel",
]
