"""Checks of what `rasterization` is given: each ends in one sentence that names the argument."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import Accumulate

RenderMode = Literal["RGB", "D", "ED", "RGB+D", "RGB+ED"]
_TILE_SIZES = (4, 8, 16)


@dataclass(frozen=True)
class Inputs:
    """The tensors that `rasterization` is given."""

    means: Tensor
    quats: Tensor
    scales: Tensor
    opacities: Tensor
    colors: Tensor
    viewmats: Tensor
    Ks: Tensor
    backgrounds: Tensor | None = None

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
    tile_size: int | None
    render_mode: RenderMode
    absgrad: bool
    rasterize_mode: str
    accumulate: Accumulate


# gsplat's other arguments, and the values at which they ask for nothing that is not done here.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "packed": (False,),
    "sparse_grad": (False,),
    "camera_model": ("pinhole",),
    "segmented": (False,),
    "distributed": (False,),
    "global_z_order": (True,),
    "with_ut": (False,),
    "with_eval3d": (False,),
    **dict.fromkeys(
        (
            "covars",
            "radial_coeffs",
            "tangential_coeffs",
            "thin_prism_coeffs",
            "ftheta_coeffs",
            "lidar_coeffs",
            "external_distortion_coeffs",
            "rolling_shutter",
            "viewmats_rs",
        ),
        (None,),
    ),
}


def reject_unsupported(arguments: dict[str, Any]) -> None:
    """Raise NotImplementedError for an argument of gsplat's that asks for what is not done here, TypeError for any other."""
    for name, value in arguments.items():
        # How many channels go in one pass is no business of the caller's here.
        if name == "channel_chunk":
            continue
        if name not in _NEUTRAL:
            raise TypeError(f"rasterization() got an unexpected keyword argument {name!r}")
        if not any(value is neutral or value == neutral for neutral in _NEUTRAL[name] if isinstance(value, type(neutral))):
            given = f"={value!r}" if isinstance(value, bool | int | float | str) else ""
            raise NotImplementedError(f"splat_py.splats.rasterization does not support {name}{given}; leave {name} out")


def check_tensors(inputs: Inputs) -> None:
    """Raise SplatError unless all are float32 tensors on one torch device."""
    for name, tensor in inputs.named().items():
        if not isinstance(tensor, Tensor):
            raise SplatError(f"{name} is a {type(tensor).__name__}; give a torch tensor")
        if tensor.dtype != torch.float32:
            raise SplatError(f"{name} has dtype {tensor.dtype}; convert it to torch.float32")
        if tensor.device != inputs.means.device:
            raise SplatError(f"{name} is on {tensor.device} and means on {inputs.means.device}; move them to one device")


def check_shapes(inputs: Inputs, options: Options) -> None:
    """Raise SplatError unless the tensors, without batch dimensions, belong together."""
    means, colors, viewmats, sh_degree = inputs.means, inputs.colors, inputs.viewmats, options.sh_degree

    def check(name: str, tensor: Tensor, *expected: tuple[int | str, ...]) -> None:
        for shape in expected:
            if tensor.dim() == len(shape) and all(
                isinstance(want, str) or have == want for have, want in zip(tensor.shape, shape, strict=True)
            ):
                return
        wanted = " or ".join(f"[{', '.join(map(str, shape))}]" for shape in expected)
        raise SplatError(f"{name} has shape {list(tensor.shape)}; expected {wanted}")

    check("means", means, ("N", 3))
    check("viewmats", viewmats, ("C", 4, 4))
    n, c = means.shape[0], viewmats.shape[0]
    if c == 0:
        raise SplatError("viewmats holds no camera; give at least one")
    check("quats", inputs.quats, (n, 4))
    check("scales", inputs.scales, (n, 3))
    check("opacities", inputs.opacities, (n,))
    check("Ks", inputs.Ks, (c, 3, 3))
    if sh_degree is None:
        check("colors", colors, (n, "D"), (c, n, "D"))
        if colors.shape[-1] == 0:
            raise SplatError("colors has no channels; give at least one")
    else:
        if sh_degree not in (0, 1, 2, 3):
            raise SplatError(f"sh_degree is {sh_degree!r}; use 0, 1, 2, 3, or None for plain colours")
        check("colors", colors, (n, "K", 3))
        if colors.shape[1] < (sh_degree + 1) ** 2:
            raise SplatError(
                f"colors holds {colors.shape[1]} coefficients a Gaussian, but sh_degree={sh_degree} needs "
                f"{(sh_degree + 1) ** 2}; lower sh_degree or give more"
            )
    if inputs.backgrounds is not None and "RGB" in options.render_mode:
        check("backgrounds", inputs.backgrounds, (c, 3 if sh_degree is not None else colors.shape[-1]))


def check_options(options: Options) -> None:
    """Raise SplatError for a value that makes no sense."""
    if options.render_mode not in ("RGB", "D", "ED", "RGB+D", "RGB+ED"):
        raise SplatError(f"render_mode is {options.render_mode!r}; use RGB, D, ED, RGB+D or RGB+ED")
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
    viewmats, Ks = inputs.viewmats, inputs.Ks
    for name, tensor in (("viewmats", viewmats), ("Ks", Ks)):
        if not torch.isfinite(tensor).all():
            raise SplatError(f"{name} holds a number that is not finite; check where the cameras come from")
    if (Ks[:, 0, 0] <= 0).any() or (Ks[:, 1, 1] <= 0).any():
        raise SplatError("Ks holds a focal length that is not positive; Ks[..., 0, 0] and Ks[..., 1, 1] are in pixels")
