"""The names of `gsplat.rendering`: `rasterization` in gsplat's signature over `splat_py.rasterization`, and its options' types.

Most types name what is not supported, so that scripts that mention them load.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from torch import Tensor

from splat_py.gpu.sources import constant
from splat_py.gsplat.torch_impl import own_package
from splat_py.gsplat.unsupported import rasterization_2dgs_inria_wrapper, rasterization_inria_wrapper  # noqa: F401
from splat_py.render.rasterization import rasterization as _rasterize
from splat_py.render.surfels import rasterization_2dgs  # noqa: F401

CameraModel = Literal["pinhole", "ortho", "fisheye", "ftheta", "lidar"]
RenderMode = Literal["RGB", "d", "Ed", "D", "ED", "RGB-d", "RGB-Ed", "RGB+D", "RGB+ED"]
RasterizeMode = Literal["classic", "antialiased"]
ExternalDistortionModelMeta = Literal["bivariate-windshield"]

_IGNORED = ("channel_chunk", "segmented", "renderer_config")
# Arguments that ask for what is not done here, and what they are where they do not.
_REFUSED = dict.fromkeys(
    ("distributed", "return_normals", "rays", "ftheta_coeffs", "lidar_coeffs", "external_distortion_coeffs"), False
) | {"global_z_order": True}
# The thresholds of `gsplat.cuda._constants`, as our shaders have them.
ALPHA_THRESHOLD: float = constant("splat/blending", "ALPHA_MIN")
MIN_COMPENSATION: float = constant("splat/projection", "MIN_COMPENSATION")


class RollingShutterType(IntEnum):
    """Order in which a sensor is read out; GLOBAL is all at once."""

    ROLLING_TOP_TO_BOTTOM = 0
    ROLLING_LEFT_TO_RIGHT = 1
    ROLLING_BOTTOM_TO_TOP = 2
    ROLLING_RIGHT_TO_LEFT = 3
    GLOBAL = 4


class FThetaPolynomialType(IntEnum):
    """The one of an f-theta camera's two polynomials that is exact."""

    PIXELDIST_TO_ANGLE = 0
    ANGLE_TO_PIXELDIST = 1


@dataclass
class FThetaCameraDistortionParameters:
    """An f-theta camera; not supported."""

    reference_poly: FThetaPolynomialType
    pixeldist_to_angle_poly: tuple[float, ...]
    angle_to_pixeldist_poly: tuple[float, ...]
    max_angle: float
    linear_cde: tuple[float, float, float]


@dataclass
class UnscentedTransformParameters:
    """Sigma points of the unscented transform (`with_ut`); `UnscentedTransform` of the renderer, but scripts may change it."""

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    in_image_margin_factor: float = 0.1
    require_all_sigma_points_valid: bool = True


class ExternalDistortionModelParameters:
    """Distortion by what is in front of a camera; not supported."""


class RendererConfig:
    """Division of work among gsplat's kernels; means nothing here."""


class RendererConfig_MixedBatch(RendererConfig):
    """One of gsplat's two ways."""


class RendererConfig_ParallelBatch(RendererConfig):
    """The other."""


def render_mode_has_color(mode: RenderMode) -> bool:
    """True if the image has colours."""
    return mode.startswith("RGB")


def render_mode_has_depth(mode: RenderMode) -> bool:
    """True if the image has a depth along the camera's axis."""
    return mode.endswith("D")


def render_mode_has_hit_distance(mode: RenderMode) -> bool:
    """True if the image has a distance along the ray."""
    return mode.endswith("d")


def render_mode_has_depth_channel(mode: RenderMode) -> bool:
    """True if the image has a depth or a distance."""
    return mode != "RGB"


def render_mode_has_expected_depth(mode: RenderMode) -> bool:
    """True if depths are divided by alpha: expectations, not sums."""
    return "E" in mode


def render_mode_has_only_color(mode: RenderMode) -> bool:
    """True if the image has colours alone."""
    return mode == "RGB"


def render_mode_has_only_depth_channel(mode: RenderMode) -> bool:
    """True if the image has depths or distances alone."""
    return not mode.startswith("RGB")


def rasterization(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    opacities: Tensor,
    colors: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = True,
    tile_size: int | None = None,
    backgrounds: Tensor | None = None,
    render_mode: Any = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    rasterize_mode: Any = "classic",
    channel_chunk: int = 32,
    distributed: bool = False,
    camera_model: Any = "pinhole",
    segmented: bool = False,
    covars: Tensor | None = None,
    with_ut: bool = False,
    with_eval3d: bool = False,
    return_normals: bool = False,
    global_z_order: bool = True,
    rays: Any = None,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: Any = None,
    lidar_coeffs: Any = None,
    external_distortion_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: Tensor | None = None,
    ut_params: Any = None,
    extra_signals: Tensor | None = None,
    extra_signals_sh_degree: int | None = None,
    renderer_config: Any = None,
    **own: Any,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Render Gaussians from C cameras: `splat_py.rasterization` in the signature of gsplat 1.6 and 1.5.3.

    Args:
        channel_chunk, segmented, renderer_config: of no effect on results, and ignored.
        distributed, return_normals, global_z_order, rays, ftheta_coeffs, lidar_coeffs, external_distortion_coeffs: their
            defaults only.
        own: further arguments of `splat_py.rasterization`, which has all others too.

    Returns:
        Images [..., C, H, W, D'], alphas [..., C, H, W, 1] and a dictionary, as of `splat_py.rasterization`.

    Raises:
        SplatError: as of `splat_py.rasterization`.
        NotImplementedError: an argument asks for what is not done here.
    """
    arguments = dict(locals())
    arguments |= arguments.pop("own")
    for name in _IGNORED:
        del arguments[name]
    for name, default in _REFUSED.items():
        value = arguments.pop(name)
        if not _is_neutral(value, default):
            given = f"={value!r}" if isinstance(value, bool | int | float | str) else ""
            raise NotImplementedError(f"splat_py.gsplat.rasterization does not support {name}{given}; leave {name} out")
    # By position, other arguments of 1.5.3 stand in these places.
    for name in ("radial_coeffs", "tangential_coeffs", "thin_prism_coeffs", "rolling_shutter"):
        arguments[name] = None if _is_neutral(arguments[name], False) else arguments[name]
    return _rasterize(**arguments)


def _is_neutral(value: Any, default: bool) -> bool:
    """True if an argument asks for nothing: it is None, its default, or the GLOBAL of any `RollingShutterType`."""
    return value is None or value is default or getattr(value, "name", None) == "GLOBAL"


def __getattr__(name: str) -> Any:
    if name == "_rasterization":
        return own_package("rendering")._rasterization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
