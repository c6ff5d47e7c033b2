"""The names of `gsplat.rendering`: `rasterization` with gsplat's signature, which calls `splat_py.rasterization`; and types."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import wraps
from inspect import signature
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.base.fields import require_number
from splat_py.gpu.sources import constant
from splat_py.gpu.tensors import check_tensors
from splat_py.gsplat.assertions import ensure_shape
from splat_py.gsplat.cameras import ExternalDistortionModelParameters, checked_cameras
from splat_py.gsplat.checks import refuse
from splat_py.gsplat.torch_impl import own_package
from splat_py.gsplat.unsupported import rasterization_2dgs_inria_wrapper, rasterization_inria_wrapper  # noqa: F401
from splat_py.gsplat.version import by_position, is_1_5, key_bits, max_alpha
from splat_py.render.checks import check_gaussians
from splat_py.render.meta import Later
from splat_py.render.options import UnscentedTransform
from splat_py.render.rasterization import rasterization as _rasterize
from splat_py.render.surfels import rasterization_2dgs as _rasterize_2dgs

CameraModel = Literal["pinhole", "ortho", "fisheye", "ftheta", "lidar"]
RenderMode = Literal["RGB", "d", "Ed", "D", "ED", "RGB-d", "RGB-Ed", "RGB+D", "RGB+ED"]
RasterizeMode = Literal["classic", "antialiased"]
ExternalDistortionModelMeta = Literal["bivariate-windshield"]

_LENS = "radial_coeffs tangential_coeffs thin_prism_coeffs"
# Arguments that 1.6 adds to `_rasterization`.
_ADDED = "with_eval3d with_ut camera_model lidar_coeffs extra_signals extra_signals_sh_degree"
_IGNORED = ("channel_chunk", "segmented", "renderer_config")
# The thresholds of `gsplat.cuda._constants`, from splat_py's shaders.
ALPHA_THRESHOLD: float = constant("splat/blending", "ALPHA_MIN")
TRANSMITTANCE_THRESHOLD = 1e-4
MIN_COMPENSATION: float = constant("splat/projection", "MIN_COMPENSATION")


class RollingShutterType(IntEnum):
    """The readout order of a sensor; GLOBAL reads all pixels at once."""

    ROLLING_TOP_TO_BOTTOM = 0
    ROLLING_LEFT_TO_RIGHT = 1
    ROLLING_BOTTOM_TO_TOP = 2
    ROLLING_RIGHT_TO_LEFT = 3
    GLOBAL = 4


@dataclass
class UnscentedTransformParameters:
    """Sigma points of the unscented transform (`with_ut`): a mutable version of the renderer's `UnscentedTransform`. In 1.6 one
    point on the image is enough by default; in 1.5.3 all must be there."""

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    in_image_margin_factor: float = 0.1
    require_all_sigma_points_valid: bool = field(default_factory=is_1_5)

    def __post_init__(self) -> None:
        UnscentedTransform.of(self)


class FThetaPolynomialType(IntEnum):
    """The polynomial of an f-theta camera that is exact; the other one, about its inverse, has no effect here."""

    PIXELDIST_TO_ANGLE = 0
    ANGLE_TO_PIXELDIST = 1


@dataclass
class FThetaCameraDistortionParameters:
    """An f-theta camera (`ftheta_coeffs` of `splat_py.rasterization`): polynomials by ascending powers, numbers or tensors."""

    reference_poly: int = FThetaPolynomialType.PIXELDIST_TO_ANGLE
    pixeldist_to_angle_poly: Sequence[float] | Tensor = (0.0,) * 6
    angle_to_pixeldist_poly: Sequence[float] | Tensor = (0.0,) * 6
    max_angle: float = 0.0
    linear_cde: Sequence[float] | Tensor = (0.0,) * 3


class RendererConfig:
    """The division of work among gsplat's kernels; ignored here. TypeError unless an instance is of one of its kinds."""

    def __new__(cls, *args: Any, **named: Any) -> Self:
        if cls is RendererConfig:
            raise TypeError("RendererConfig has no instances; use RendererConfig_MixedBatch or RendererConfig_ParallelBatch")
        return super().__new__(cls)


class RendererConfig_MixedBatch(RendererConfig):
    """gsplat's mixed batch; ignored here."""


class RendererConfig_ParallelBatch(RendererConfig):
    """gsplat's parallel batch; ignored here."""


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
    """True if depths are expectations: sums divided by alpha."""
    return "E" in mode


def render_mode_has_only_color(mode: RenderMode) -> bool:
    """True if the image has only colours."""
    return mode == "RGB"


def render_mode_has_only_depth_channel(mode: RenderMode) -> bool:
    """True if the image has only depths or distances."""
    return not mode.startswith("RGB")


@by_position("1.5.3", 28, f"{_LENS} ftheta_coeffs rolling_shutter viewmats_rs")
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
    rays: Tensor | None = None,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: Any = None,
    lidar_coeffs: Any = None,
    external_distortion_coeffs: ExternalDistortionModelParameters | None = None,
    rolling_shutter: Any = None,
    viewmats_rs: Tensor | None = None,
    ut_params: Any = None,
    extra_signals: Tensor | None = None,
    extra_signals_sh_degree: int | None = None,
    renderer_config: Any = None,
    **own: Any,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Render Gaussians from C cameras: `splat_py.rasterization` with the signature of gsplat 1.6 and 1.5.3. NotImplementedError
    if an argument requests an unsupported feature; SplatError as in `splat_py.rasterization`.

    Args:
        channel_chunk, segmented, renderer_config: ignored; they do not affect results.
        lidar_coeffs: only None is supported.
        external_distortion_coeffs: a windshield before the lens (`BivariateWindshieldModelParameters`), with `with_ut`.
        own: further arguments of `splat_py.rasterization`, which also documents all others.

    Returns:
        Images [..., C, H, W, D'], alphas [..., C, H, W, 1] and a dictionary, as in `splat_py.rasterization`.
    """
    arguments = dict(locals())
    arguments |= {"max_alpha": max_alpha()} | arguments.pop("own")
    for name in _IGNORED:
        del arguments[name]
    if external_distortion_coeffs is not None:
        if not with_ut:
            raise SplatError("external_distortion_coeffs needs with_ut=True, as in gsplat; give both or neither")
        cameras = checked_cameras("rasterization", arguments)
        arguments |= dict.fromkeys((*_LENS.split(), "ftheta_coeffs"))
        arguments |= {"camera_model": cameras.model, "camera_params": cameras.lenses}
    del arguments["external_distortion_coeffs"]
    refuse("rasterization", lidar_coeffs=arguments.pop("lidar_coeffs"))
    check_config(renderer_config, with_eval3d)
    if tile_size is None and with_ut and with_eval3d:
        # Tiles decide how far Gaussians reach.
        arguments["tile_size"] = _tile_size(width, height, with_eval3d)
    arguments["ut_params"] = sigma_points(ut_params)
    if isinstance(rays, Tensor) and isinstance(viewmats, Tensor):
        require_number(width=width, height=height)
        arguments["rays"] = ensure_shape("rays", rays, (*viewmats.shape[:-2], int(height), int(width), 6))
    if with_ut is True and covars is None:
        arguments["means"] = without_degenerate(means, quats, scales)
    images, alphas, meta = _rasterize(**arguments)
    return images, alphas, _with_keys(meta)


def _with_keys(meta: dict[str, Any]) -> dict[str, Any]:
    """Give `isect_ids` the bits of the version in force; the renderer's are those of 1.5.3."""
    tiles = meta.get("tile_width", 0) * meta.get("tile_height", 0)
    low = 32 + key_bits(tiles)
    if low < 32 + tiles.bit_length():
        older = dict.__getitem__(meta, "isect_ids")
        meta["isect_ids"] = Later(lambda: (older() >> low + 1 << low) | (older() & (1 << low) - 1))
    return meta


def _tile_size(width: int, height: int, with_eval3d: Any) -> int:
    """gsplat's own choice."""
    require_number(width=width, height=height)
    return 8 if with_eval3d and not is_1_5() and min(width, height) < 1080 else 16


def sigma_points(ut_params: Any) -> UnscentedTransform:
    """Sigma points with gsplat's defaults, which a rolling shutter reads at the times of whole rows."""
    return replace(UnscentedTransform.of(ut_params or UnscentedTransformParameters()), whole_rows=True)


def without_degenerate(means: Tensor, quats: Any, scales: Any) -> Tensor:
    """Means that are NaN, and so culled, for a quaternion of 0 or a scale of 0, as gsplat 1.6 culls them if `with_ut`."""
    if is_1_5():
        return means
    check_tensors({"means": means, "quats": quats, "scales": scales}, needed=("means", "quats", "scales"))
    check_gaussians(means, quats, scales, means[..., 0])
    least = torch.finfo(torch.float32).eps
    sound = (quats.square().sum(-1) > least) & (scales > least).all(-1)
    return torch.where(sound[..., None], means, torch.nan)


def check_config(config: Any, with_eval3d: bool) -> None:
    """Raise an error for a `renderer_config` that gsplat refuses."""
    kind = type(config).__name__
    if not isinstance(config, RendererConfig | None):
        raise TypeError(f"renderer_config is a {kind}; give a RendererConfig or None")
    if not isinstance(config, RendererConfig_MixedBatch | RendererConfig_ParallelBatch | None):
        raise NotImplementedError(f"renderer_config is a {kind}, which is not supported; leave renderer_config out")
    if isinstance(config, RendererConfig_ParallelBatch) and not with_eval3d:
        raise SplatError(f"renderer_config is a {kind}, which needs with_eval3d=True; leave renderer_config out")


def _refuse_distances(render_mode: Any) -> None:
    if render_mode in get_args(RenderMode) and render_mode_has_hit_distance(render_mode):
        wanted = render_mode.replace("d", "D").replace("-", "+")
        raise NotImplementedError(f"render_mode={render_mode!r}, distances along rays, is not supported; use {wanted!r}")


@wraps(_rasterize_2dgs)
def rasterization_2dgs(*args: Any, **named: Any) -> Any:
    _refuse_distances(args[17] if len(args) > 17 else named.get("render_mode"))
    *images, meta = _rasterize_2dgs(*args, **{"max_alpha": max_alpha()} | named)
    return *images, _with_keys(meta)


@by_position("1.6.0", 14, f"rays backgrounds render_mode rasterize_mode channel_chunk batch_per_iter {_ADDED}")
def _rasterization(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    tile_size: int | None = None,
    backgrounds: Tensor | None = None,
    render_mode: Any = "RGB",
    rasterize_mode: Any = "classic",
    channel_chunk: int = 32,
    batch_per_iter: int = 100,
    **added: Any,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Render by `_rasterization` of gsplat's own package, whose "distances" are depths. NotImplementedError for arguments that
    the installed one lacks."""
    arguments = dict(locals())
    render = own_package("rendering")._rasterization
    known = signature(render).parameters
    if "with_eval3d" not in known:
        _refuse_distances(render_mode)
    for name, value in arguments.pop("added").items():
        if name in known:
            arguments[name] = value
        elif isinstance(value, Tensor) or value not in (None, False, "pinhole"):
            raise NotImplementedError(f"_rasterization of the installed gsplat does not support {name}; leave {name} out")
    if sh_degree is not None and colors.dim() == 3 and "with_ut" not in known:
        arguments["colors"] = colors.expand(*means.shape[:-2], *colors.shape)
    return render(**arguments | {"tile_size": tile_size or _tile_size(width, height, arguments.get("with_eval3d"))})
