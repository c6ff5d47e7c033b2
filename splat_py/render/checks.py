"""Checks of the arguments of `rasterization`: each error is one sentence that names the argument."""

import math
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from operator import index
from typing import Any, get_args

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.base.fields import LARGEST, shown
from splat_py.gpu.kernels import UserType
from splat_py.gpu.tensors import check_shape
from splat_py.render.cameras import CAMERA_MODELS, shutter_of
from splat_py.render.colors import color_model
from splat_py.render.options import SPLATS, STOPS, RenderMode
from splat_py.shaders.declarations import MOST_NUMBERS
from splat_py.shaders.functions import ShaderModule

# Tensors without which nothing can be rendered.
NEEDED = ("means", "opacities", "viewmats", "Ks")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "render_mode": get_args(RenderMode),
    "rasterize_mode": ("classic", "antialiased"),
    "depth_mode": ("expected", "median"),
    "backend": ("auto", "native", "portable"),
    "max_alpha": tuple(STOPS),
    "tile_size": (None, 4, 8, 16),
}
_FLAGS = (
    *("packed", "sparse_grad", "absgrad", "with_ut", "with_eval3d"),
    *("return_normals", "return_medians", "global_z_order", "distloss", "distributed"),
)
_SETTINGS = ("near_plane", "far_plane", "width", "height", "radius_clip", "eps2d", *_CHOICES, *_FLAGS)
# Lens arguments of each camera model, and the numbers of coefficients that each accepts.
_LENSES: dict[str, dict[str, tuple[int, ...]]] = {
    "pinhole": {"radial_coeffs": (6, 4), "tangential_coeffs": (2,), "thin_prism_coeffs": (4,)},
    "fisheye": {"radial_coeffs": (4,)},
}


def check_settings(arguments: Mapping[str, Any]) -> None:
    """Raise SplatError for a setting, among a renderer's arguments, of the wrong type or out of its range."""
    for name in _SETTINGS:
        if name not in arguments:
            continue
        value = arguments[name]
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if name in ("width", "height"):
            require_pixels(**{name: value})
            continue
        if name in _CHOICES:
            names = [str(choice) for choice in _CHOICES[name] if choice is not None]
            right = (is_number or isinstance(value, str | None)) and value in _CHOICES[name]
            wanted = f"use {', '.join(names[:-1])} or {names[-1]}"
        elif name in ("eps2d", "radius_clip"):
            right = is_number and 0 <= value < math.inf
            wanted = "it must be a finite number that is not negative"
        elif name in ("near_plane", "far_plane"):
            right, wanted = is_number and value > 0, "it must be a positive number"
        else:
            right, wanted = isinstance(value, bool), "it must be True or False"
        if not right:
            raise SplatError(f"{name} is {shown(value)}; {wanted}")
    mode = arguments["render_mode"]
    if mode.endswith("d") and not arguments.get("with_eval3d"):
        wanted = mode.replace("d", "D").replace("-", "+")
        raise SplatError(f"render_mode={mode!r}, distances along rays, needs with_eval3d=True; or use {wanted!r}")
    if arguments.get("return_normals") and not arguments["with_eval3d"]:
        raise SplatError("return_normals needs with_eval3d=True, or use rasterization_2dgs, which returns normals")
    if arguments.get("rays") is not None and not arguments["with_eval3d"]:
        raise SplatError("rays need with_eval3d=True, because projected Gaussians have none; leave rays out")
    near, far = arguments["near_plane"], arguments["far_plane"]
    if not near < far:
        raise SplatError(f"near_plane is {near} and far_plane {far}; near_plane must be less than far_plane")
    if arguments["sparse_grad"] and not arguments["packed"]:
        raise SplatError("sparse_grad needs packed=True, which lists the Gaussians with a gradient")


def require_pixels(**sides: Any) -> None:
    """Raise a SplatError that names the first side of an image that is not a whole number of any kind, such as an integer
    tensor's one element."""
    for name, value in sides.items():
        try:
            right = not isinstance(value, bool) and 1 <= index(value) <= LARGEST
        except TypeError:
            right = False
        if not right:
            raise SplatError(f"{name} is {shown(value)}; it must be a whole number of pixels, at least 1")


def check_gaussians(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    opacities: Tensor,
    covars: Tensor | None = None,
    with_ut: bool = False,
) -> None:
    """Raise SplatError unless the tensors' shapes fit together."""
    if means.dim() < 2:
        raise SplatError(f"means has shape {list(means.shape)}; expected [..., N, 3]")
    scenes, n = tuple(means.shape[:-2]), means.shape[-2]
    if 0 in scenes:
        raise SplatError(f"means has shape {list(means.shape)} and so no scene; give at least one")
    check_shape("means", means, (*scenes, "N", 3))
    if covars is None:
        for name, tensor, width in (("quats", quats, 4), ("scales", scales, 3)):
            if tensor is None:
                raise SplatError(f"{name} is None; give quats and scales, or covars instead")
            check_shape(name, tensor, (*scenes, n, width))
    else:
        check_shape("covars", covars, (*scenes, n, 3, 3))
        if with_ut:
            raise SplatError("with_ut needs quats and scales, on whose axes the sigma points lie; leave covars out")
    check_shape("opacities", opacities, (*scenes, n))


def check_cameras(
    means: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    camera_model: Any = "pinhole",
    shutter: str | None = None,
    viewmats_rs: Tensor | None = None,
    coefficients: Mapping[str, Tensor | None] | None = None,
) -> None:
    """Raise SplatError unless cameras fit the scenes, poses are finite and focal lengths positive; NotImplementedError for an
    unknown camera model."""
    if isinstance(camera_model, str) and camera_model not in CAMERA_MODELS:
        raise NotImplementedError(
            f"splat_py.rasterization does not support camera_model={camera_model!r}; use {', '.join(CAMERA_MODELS)}"
        )
    _require_type("camera_model", camera_model, CAMERA_MODELS)
    scenes = tuple(means.shape[:-2])
    check_shape("viewmats", viewmats, (*scenes, "C", 4, 4))
    c = viewmats.shape[-3]
    if c == 0:
        raise SplatError("viewmats holds no camera; give at least one")
    check_shape("Ks", Ks, (*scenes, c, 3, 3))
    model = camera_model if isinstance(camera_model, str) else "your own"
    given = {name: numbers for name, numbers in (coefficients or {}).items() if numbers is not None}
    for name, numbers in given.items():
        counts = _LENSES.get(model, {}).get(name)
        if name == "camera_params":
            if isinstance(camera_model, str):
                raise SplatError(
                    f"camera_params mean nothing to camera_model={model!r}; give the coefficients of its lens by name"
                )
            counts = tuple(range(1, 13))
        elif counts is None:
            *unknown, last = (lens for lens in _LENSES["pinhole"] if lens not in _LENSES.get(model, {}))
            lenses = f"{', '.join(unknown)}, or {last}"
            raise SplatError(f"{model} camera model does not support {lenses} parameters; leave {name} out")
        check_shape(name, numbers, *((*scenes, c, count) for count in counts))
    if (shutter is None) != (viewmats_rs is None):
        raise SplatError("rolling_shutter and viewmats_rs belong together; give both or neither")
    if viewmats_rs is not None:
        check_shape("viewmats_rs", viewmats_rs, (*scenes, c, 4, 4))
        given["viewmats_rs"] = viewmats_rs
    for name, numbers in {"viewmats": viewmats, "Ks": Ks, **given}.items():
        if not torch.isfinite(numbers).all():
            raise SplatError(f"{name} holds a number that is not finite; check where the cameras come from")
    if (Ks[..., 0, 0] <= 0).any() or (Ks[..., 1, 1] <= 0).any():
        raise SplatError("Ks holds a focal length that is not positive; Ks[..., 0, 0] and Ks[..., 1, 1] are in pixels")


def check_colors(
    means: Tensor,
    viewmats: Tensor,
    colors: Tensor | None,
    sh_degree: int | None,
    backgrounds: Tensor | None,
    weights: Tensor | None = None,
    color: str | UserType = "SphericalHarmonics",
    render_mode: str = "RGB",
) -> None:
    """Raise SplatError unless colours fit Gaussians and cameras, if `render_mode` has colours."""
    if "RGB" not in render_mode:
        return
    if colors is None:
        raise SplatError(f"colors is None; render_mode={render_mode!r} needs them")
    has_features = color != "SphericalHarmonics"
    if has_features and sh_degree is not None:
        raise SplatError("sh_degree belongs to SphericalHarmonics; leave sh_degree or color out")
    check_features("colors", colors, "sh_degree", sh_degree, means, viewmats)
    if weights is not None:
        check_shape("weights", weights, ("W",))
    if has_features:
        color_model(color, colors.shape[-1], 0 if weights is None else len(weights))
    elif weights is not None:
        raise SplatError("weights are given, but SphericalHarmonics have none; leave weights out")
    if backgrounds is not None:
        check_shape("backgrounds", backgrounds, (*viewmats.shape[:-2], 3 if has_features else colors.shape[-1]))
    for name, shared in {"backgrounds": backgrounds, "weights": weights}.items():
        if shared is not None and not torch.isfinite(shared).all():
            raise SplatError(f"{name} holds a number that is not finite; every pixel would be NaN")


def refuse(by: str, unsupported: Mapping[str, bool]) -> None:
    """Raise NotImplementedError for the first unsupported option that is in use."""
    for asked, is_asked in unsupported.items():
        if is_asked:
            raise NotImplementedError(f"{by} does not support {asked}; leave one of them out")


def refuse_distributed(arguments: Mapping[str, Any]) -> None:
    """Raise NotImplementedError for what `rasterization` does not support in several processes, among its arguments."""
    given = {name for name, value in arguments.items() if isinstance(value, Tensor)}
    dimensions = {"colors": 2 + (arguments["sh_degree"] is not None)}
    dimensions["extra_signals"] = 2 + (arguments["extra_signals_sh_degree"] is not None)
    flags = ("with_eval3d", "with_ut", "sparse_grad", "absgrad", "return_normals")
    refuse(
        "distributed=True",
        {"batch dimensions": "means" in given and arguments["means"].dim() > 2}
        | {f"{flag}=True": arguments[flag] is True for flag in flags}
        | {"a rolling shutter": shutter_of(arguments["rolling_shutter"]) is not None or "viewmats_rs" in given}
        | {"camera distortion": bool(given & {*_LENSES["pinhole"], "camera_params"})}
        | {"a camera_model other than 'pinhole'": arguments["camera_model"] != "pinhole"}
        | {"global_z_order=False": arguments["global_z_order"] is False, "rays": "rays" in given}
        | {"the portable backend": arguments["backend"] == "portable"}
        | {
            f"{name} of each camera, only per-Gaussian {name}": name in given and arguments[name].dim() > count
            for name, count in dimensions.items()
        },
    )


def stack_params(splat: str | UserType | ShaderModule, params: Mapping[str, Tensor], means: Tensor) -> Tensor | None:
    """Stack E parameters [..., N] to [..., N, E]; None without parameters. SplatError if the splat is unknown, or the
    parameters do not fit it."""
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise SplatError(f"splat_params is {shown(params)}; give a dictionary of tensors by name")
    _require_type("splat", splat, SPLATS)
    if isinstance(splat, str):
        names = SPLATS[splat][1]
        if set(params) != set(names):
            raise SplatError(f"splat_params has {', '.join(params) or 'nothing'}; {splat} takes {', '.join(names) or 'none'}")
        params = {name: params[name] for name in names}
    if len(params) > MOST_NUMBERS:
        raise SplatError(f"splat_params has {len(params)} parameters; a splat has {MOST_NUMBERS} at most")
    for name, tensor in params.items():
        if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32 or tensor.device != means.device:
            raise SplatError(f"splat_params[{name!r}] must be a torch.float32 tensor on {means.device}, as means is")
        if tensor.shape != means.shape[:-1]:
            raise SplatError(f"splat_params[{name!r}] has shape {list(tensor.shape)}; expected {list(means.shape[:-1])}")
    return torch.stack(list(params.values()), -1) if params else None


def _require_type(name: str, value: Any, names: Collection[str]) -> None:
    """Raise SplatError unless a value is one of the names, or a type of Slang."""
    if not isinstance(value, UserType | ShaderModule) and not (isinstance(value, str) and value in names):
        raise SplatError(f"{name} is {shown(value)}; use {', '.join(names)}, or a type from splat_py.shaders.source")


def check_features(name: str, features: Tensor, degree_name: str, degree: int | None, means: Tensor, viewmats: Tensor) -> None:
    """Raise SplatError unless colours, or with `degree` coefficients, fit Gaussians and cameras: one set for all cameras, or
    one per camera."""
    scenes, n, c = tuple(means.shape[:-2]), means.shape[-2], viewmats.shape[-3]
    if degree is None:
        check_shape(name, features, (*scenes, n, "D"), (*scenes, c, n, "D"))
    else:
        if isinstance(degree, bool) or not isinstance(degree, Integral) or not 0 <= degree <= 4:
            raise SplatError(f"{degree_name} is {shown(degree)}; use 0, 1, 2, 3, 4, or None for plain {name}")
        check_shape(name, features, (*scenes, n, "K", "D"), (*scenes, c, n, "K", "D"), (n, "K", "D"))
        if features.shape[-2] < (degree + 1) ** 2:
            raise SplatError(
                f"{name} holds {features.shape[-2]} coefficients per Gaussian, but {degree_name}={degree} needs "
                f"{(degree + 1) ** 2}; lower {degree_name} or give more"
            )
    if features.shape[-1] == 0:
        raise SplatError(f"{name} has no channels; give at least one")
