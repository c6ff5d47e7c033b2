"""Checks of what `rasterization` is given: each ends in one sentence that names the argument."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.kernels import UserType
from splat_py.shaders import ShaderModule
from splat_py.splats.cameras import CAMERA_MODELS, UnscentedTransform
from splat_py.splats.colors import color_model
from splat_py.splats.data import STOPS
from splat_py.splats.tensors import check_shape

RenderMode = Literal["RGB", "D", "ED", "RGB+D", "RGB+ED"]
_TILE_SIZES = (4, 8, 16)
_COEFFICIENTS = ("radial_coeffs", "tangential_coeffs", "thin_prism_coeffs")
# What the lens of each has, and how many numbers.
_LENSES: dict[str, dict[str, tuple[int, ...]]] = {
    "pinhole": {"radial_coeffs": (6, 4), "tangential_coeffs": (2,), "thin_prism_coeffs": (4,)},
    "fisheye": {"radial_coeffs": (4,)},
}


@dataclass(frozen=True)
class Inputs:
    """The tensors that `rasterization` is given. `...` are scenes."""

    means: Tensor
    quats: Tensor | None
    scales: Tensor | None
    opacities: Tensor
    colors: Tensor | None
    viewmats: Tensor
    Ks: Tensor
    backgrounds: Tensor | None = None
    covars: Tensor | None = None
    extra_signals: Tensor | None = None
    radial_coeffs: Tensor | None = None
    tangential_coeffs: Tensor | None = None
    thin_prism_coeffs: Tensor | None = None
    extras: Tensor | None = None
    weights: Tensor | None = None
    viewmats_rs: Tensor | None = None
    camera_params: Tensor | None = None

    def lenses(self) -> Tensor | None:
        """[..., C, 12] the coefficients of all kinds, zero where they are not given; None where none are."""
        if self.camera_params is not None:
            return torch.nn.functional.pad(self.camera_params, (0, 12 - self.camera_params.shape[-1]))
        given = self.radial_coeffs, self.tangential_coeffs, self.thin_prism_coeffs
        if all(part is None for part in given):
            return None
        lead = self.viewmats.shape[:-2]
        parts = [self.means.new_zeros(*lead, n) if p is None else p for p, n in zip(given, (6, 2, 4), strict=True)]
        parts[0] = torch.nn.functional.pad(parts[0], (0, 6 - parts[0].shape[-1]))
        return torch.cat(parts, -1)

    def named(self) -> dict[str, Tensor]:
        """Those that there are, by name."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


@dataclass(frozen=True)
class Options:
    """Its other arguments."""

    width: int
    height: int
    near_plane: float
    far_plane: float
    radius_clip: float
    eps2d: float
    sh_degree: int | None
    packed: bool
    tile_size: int | None
    render_mode: RenderMode
    sparse_grad: bool
    absgrad: bool
    rasterize_mode: str
    camera_model: str | UserType | ShaderModule
    extra_signals_sh_degree: int | None
    accumulate: Accumulate
    max_alpha: float
    falloff: str | UserType
    unscented: UnscentedTransform | None = None
    shutter: str | None = None
    color: str | UserType = "SphericalHarmonics"

    @property
    def has_features(self) -> bool:
        """Whether `colors` are features, of which a type makes rgb."""
        return self.color != "SphericalHarmonics"

    def channels(self, inputs: Inputs) -> int:
        """Of the images, depth included."""
        own, more = (0 if part is None else part.shape[-1] for part in (inputs.colors, inputs.extra_signals))
        return (3 if own and self.has_features else own) + more + ("D" in self.render_mode)


# How splats may fade: the type in slang/splat, and its parameters.
SPLATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Gaussian": ("GaussianFalloff", ()),
    "GeneralizedExponential": ("GeneralizedExponential", ("beta",)),
    "BetaKernel": ("BetaKernel", ("b",)),
}


def stack_params(splat: str | UserType | ShaderModule, params: Mapping[str, Tensor], means: Tensor) -> Tensor | None:
    """[..., N, E] of E parameters [..., N].

    Raises:
        SplatError: there is no such splat, or its parameters are others.
    """
    if isinstance(splat, str):
        if splat not in SPLATS:
            raise SplatError(f"splat is {splat!r}; use {', '.join(SPLATS)}, or a type from splat_py.shaders.source")
        names = SPLATS[splat][1]
        if set(params) != set(names):
            raise SplatError(f"params has {', '.join(params) or 'nothing'}; {splat} takes {', '.join(names) or 'none'}")
        params = {name: params[name] for name in names}
    elif not isinstance(splat, UserType | ShaderModule):
        raise SplatError(f"splat is a {type(splat).__name__}; use {', '.join(SPLATS)}, or a type from splat_py.shaders.source")
    if len(params) > 4:
        raise SplatError(f"params has {len(params)} parameters; a splat has four at most")
    for name, tensor in params.items():
        if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32 or tensor.device != means.device:
            raise SplatError(f"params[{name!r}] must be a torch.float32 tensor on {means.device}, as means is")
        if tensor.shape != means.shape[:-1]:
            raise SplatError(f"params[{name!r}] has shape {list(tensor.shape)}; expected {list(means.shape[:-1])}")
    return torch.stack(list(params.values()), -1) if params else None


# gsplat's other arguments, and the values at which they ask for nothing that is not done here.
_NEUTRAL: dict[str, Any] = {"global_z_order": True}


def reject_unsupported(arguments: dict[str, Any]) -> None:
    """Raise NotImplementedError for an argument of gsplat's that asks for what is not done here."""
    for name, value in arguments.items():
        if not is_neutral(name, value):
            given = f"={value!r}" if isinstance(value, bool | int | float | str) else ""
            raise NotImplementedError(f"splat_py.rasterization does not support {name}{given}; leave {name} out")


def is_neutral(name: str, value: Any) -> bool:
    """Whether an argument of gsplat's, or what stands in its place by position in another of its versions, asks for nothing."""
    # None and False ask for nothing; what an option may be besides, only its name tells: gsplat's enumerations are its own.
    return value is None or value is _NEUTRAL.get(name, False) or getattr(value, "name", None) == "GLOBAL"


def check_shapes(inputs: Inputs, options: Options) -> None:
    """Raise SplatError unless the tensors belong together."""
    means, viewmats = inputs.means, inputs.viewmats
    if means.dim() < 2:
        raise SplatError(f"means has shape {list(means.shape)}; expected [..., N, 3]")
    scenes, n = tuple(means.shape[:-2]), means.shape[-2]
    if 0 in scenes:
        raise SplatError(f"means has shape {list(means.shape)}, which is no scene at all; give at least one")
    check_shape("means", means, (*scenes, "N", 3))
    check_shape("viewmats", viewmats, (*scenes, "C", 4, 4))
    c = viewmats.shape[-3]
    if c == 0:
        raise SplatError("viewmats holds no camera; give at least one")
    if inputs.covars is None:
        for name, tensor, width in (("quats", inputs.quats, 4), ("scales", inputs.scales, 3)):
            if tensor is None:
                raise SplatError(f"{name} is None; give quats and scales, or covars in their place")
            check_shape(name, tensor, (*scenes, n, width))
    else:
        check_shape("covars", inputs.covars, (*scenes, n, 3, 3))
    check_shape("opacities", inputs.opacities, (*scenes, n))
    check_shape("Ks", inputs.Ks, (*scenes, c, 3, 3))
    model = options.camera_model if isinstance(options.camera_model, str) else "a type of your own"
    for name in _COEFFICIENTS:
        coefficients = getattr(inputs, name)
        if coefficients is not None:
            counts = _LENSES.get(model, {}).get(name)
            if counts is None:
                raise SplatError(f"{name} means nothing to camera_model={model!r}; leave {name} out")
            check_shape(name, coefficients, *((*scenes, c, count) for count in counts))
    if inputs.camera_params is not None:
        if isinstance(options.camera_model, str):
            raise SplatError(f"camera_params mean nothing to camera_model={model!r}; give the coefficients of its lens by name")
        check_shape("camera_params", inputs.camera_params, *((*scenes, c, count) for count in range(1, 13)))
    if (options.shutter is None) != (inputs.viewmats_rs is None):
        raise SplatError("rolling_shutter and viewmats_rs belong together: the order of rows, and poses at the last one")
    if inputs.viewmats_rs is not None:
        check_shape("viewmats_rs", inputs.viewmats_rs, (*scenes, c, 4, 4))
    if options.unscented is not None and inputs.covars is not None:
        raise SplatError("with_ut needs quats and scales, on whose axes the sigma points lie; leave covars out")
    if "RGB" in options.render_mode:
        if inputs.colors is None:
            raise SplatError(f"colors is None; render_mode={options.render_mode!r} needs them")
        if options.has_features and options.sh_degree is not None:
            raise SplatError("sh_degree is of SphericalHarmonics; leave it or color out")
        _check_features("colors", inputs.colors, "sh_degree", options.sh_degree, scenes, c, n)
        _check_color(inputs.colors, inputs.weights, options)
        if inputs.backgrounds is not None:
            channels = 3 if options.has_features else inputs.colors.shape[-1]
            check_shape("backgrounds", inputs.backgrounds, (*scenes, c, channels))
    if inputs.extra_signals is not None:
        degree = options.extra_signals_sh_degree
        _check_features("extra_signals", inputs.extra_signals, "extra_signals_sh_degree", degree, scenes, c, n)


def _check_features(
    name: str, features: Tensor, degree_name: str, degree: int | None, scenes: tuple[int, ...], c: int, n: int
) -> None:
    """Colours, or with a degree coefficients, of Gaussians or of each camera's Gaussians."""
    if degree is None:
        check_shape(name, features, (*scenes, n, "D"), (*scenes, c, n, "D"))
    else:
        if isinstance(degree, bool) or degree not in (0, 1, 2, 3, 4):
            raise SplatError(f"{degree_name} is {degree!r}; use 0, 1, 2, 3, 4, or None for plain {name}")
        check_shape(name, features, (*scenes, n, "K", "D"), (*scenes, c, n, "K", "D"), (n, "K", "D"))
        if features.shape[-2] < (degree + 1) ** 2:
            raise SplatError(
                f"{name} holds {features.shape[-2]} coefficients a Gaussian, but {degree_name}={degree} needs "
                f"{(degree + 1) ** 2}; lower {degree_name} or give more"
            )
    if features.shape[-1] == 0:
        raise SplatError(f"{name} has no channels; give at least one")


def _check_color(colors: Tensor, weights: Tensor | None, options: Options) -> None:
    if weights is not None:
        check_shape("weights", weights, ("W",))
    if options.has_features:
        color_model(options.color, colors.shape[-1], 0 if weights is None else len(weights))
    elif weights is not None:
        raise SplatError("weights are given, which SphericalHarmonics do not have; leave weights out")


def check_options(options: Options) -> None:
    """Raise SplatError for a value that makes no sense."""
    if options.render_mode not in ("RGB", "D", "ED", "RGB+D", "RGB+ED"):
        raise SplatError(f"render_mode is {options.render_mode!r}; use RGB, D, ED, RGB+D or RGB+ED")
    if isinstance(options.camera_model, str) and options.camera_model not in CAMERA_MODELS:
        raise NotImplementedError(
            f"splat_py.rasterization does not support camera_model={options.camera_model!r}; use {', '.join(CAMERA_MODELS)}"
        )
    if options.max_alpha not in STOPS:
        raise SplatError(f"max_alpha is {options.max_alpha!r}; use {' or '.join(map(str, STOPS))}")
    if options.sparse_grad and not options.packed:
        raise SplatError("sparse_grad needs packed=True, as only then it is known which Gaussians have a gradient")
    if options.rasterize_mode not in ("classic", "antialiased"):
        raise SplatError(f"rasterize_mode is {options.rasterize_mode!r}; use classic or antialiased")
    for name in ("width", "height"):
        side = getattr(options, name)
        if not isinstance(side, Integral) or side < 1:
            raise SplatError(f"{name} is {side!r}; it must be a whole number of pixels, at least 1")
    if options.tile_size not in (None, *_TILE_SIZES):
        raise SplatError(f"tile_size is {options.tile_size!r}; use 4, 8 or 16")
    for name in ("eps2d", "radius_clip"):
        if not 0 <= getattr(options, name) < math.inf:
            raise SplatError(f"{name} is {getattr(options, name)!r}; it must be a finite number that is not negative")
    near, far = options.near_plane, options.far_plane
    if not 0 < near < far:
        raise SplatError(f"near_plane is {near} and far_plane {far}; they must satisfy 0 < near_plane < far_plane")


def check_cameras(inputs: Inputs) -> None:
    """Raise SplatError unless poses are finite and focal lengths positive."""
    Ks = inputs.Ks
    for name in ("viewmats", "Ks", "viewmats_rs", "camera_params", *_COEFFICIENTS):
        tensor = getattr(inputs, name)
        if tensor is not None and not torch.isfinite(tensor).all():
            raise SplatError(f"{name} holds a number that is not finite; check where the cameras come from")
    if (Ks[..., 0, 0] <= 0).any() or (Ks[..., 1, 1] <= 0).any():
        raise SplatError("Ks holds a focal length that is not positive; Ks[..., 0, 0] and Ks[..., 1, 1] are in pixels")
