"""Cameras of gsplat's functions, and the windshields of 1.6: polynomials that bend rays before they reach the lens, as a camera
model in Slang (slang/splat/windshield.slang)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.kernels import UserType
from splat_py.gpu.tensors import check_tensors
from splat_py.gsplat.checks import refuse
from splat_py.render.cameras import camera_type, lens_coefficients, shutter_of
from splat_py.render.checks import check_cameras, check_gaussians


class ExternalDistortionReferencePolynomial(IntEnum):
    """The polynomials that are exact; the others are about their inverse. Images need both."""

    FORWARD = 1
    BACKWARD = 2


class ExternalDistortionModelParameters:
    """Parameters of glass that bends rays before the lens."""


@dataclass
class BivariateWindshieldModelParameters(ExternalDistortionModelParameters):
    """A windshield: polynomials in the angles φ = asin(x) and θ = asin(y) of a unit vector, tensors of 1, 3, 6, 10, 15 or 21
    numbers for the orders 0 to 5. Powers of φ ascend within those of θ. Not differentiable.

    Attributes:
        horizontal_poly, vertical_poly: the new φ and the new θ of a ray from outside.
        horizontal_poly_inverse, vertical_poly_inverse: the new φ and θ of a ray from the camera, for `with_eval3d`.
    """

    MAX_ORDER: ClassVar[int] = 5
    MAX_COEFFS: ClassVar[int] = 21

    horizontal_poly: Tensor | None = None
    vertical_poly: Tensor | None = None
    horizontal_poly_inverse: Tensor | None = None
    vertical_poly_inverse: Tensor | None = None
    reference_poly: ExternalDistortionReferencePolynomial = ExternalDistortionReferencePolynomial.FORWARD


def make_params(
    h_poly: Sequence[float],
    v_poly: Sequence[float],
    h_inv: Sequence[float] | None = None,
    v_inv: Sequence[float] | None = None,
    ref_poly: ExternalDistortionReferencePolynomial = ExternalDistortionReferencePolynomial.FORWARD,
    device: torch.device | None = None,
) -> BivariateWindshieldModelParameters:
    """A windshield of these polynomials, whose rays from the camera stay as they are by default."""
    polynomials = h_poly, v_poly, h_inv or (0.0, 1.0, 0.0), v_inv or (0.0, 0.0, 1.0)
    h, v, h_back, v_back = (torch.tensor(numbers, dtype=torch.float32, device=device) for numbers in polynomials)
    return BivariateWindshieldModelParameters(h, v, h_back, v_back, ref_poly)


class CheckedCameras(NamedTuple):
    """A function's cameras, as the renderer takes them."""

    shutter: str | None
    lenses: Tensor | None
    model: str | UserType


def checked_cameras(function: str, arguments: dict[str, Any]) -> CheckedCameras:
    """Return the cameras that a function's arguments describe, after checks of them and of its Gaussians."""
    given = SimpleNamespace(**arguments)
    refuse(function, lidar_coeffs=given.lidar_coeffs)
    shutter, rows = shutter_of(given.rolling_shutter), given.viewmats_rs
    coefficients = {name: arguments[name] for name in ("radial_coeffs", "tangential_coeffs", "thin_prism_coeffs")}
    needed = {name: arguments[name] for name in ("means", "quats", "scales", "viewmats", "Ks")}
    check_tensors(needed | {"opacities": given.opacities, "viewmats_rs": rows} | coefficients, needed=needed)
    opacities = given.means[..., 0] if given.opacities is None else given.opacities
    check_gaussians(given.means, given.quats, given.scales, opacities)
    check_cameras(given.means, given.viewmats, given.Ks, given.camera_model, shutter, rows, coefficients)
    model, lenses = model_and_lenses(given)
    return CheckedCameras(shutter, lenses, model)


def model_and_lenses(given: SimpleNamespace) -> tuple[str | UserType, Tensor | None]:
    """Return the Slang type of cameras with these arguments of `rasterization`, and the coefficients of their lenses,
    [..., C, 12]."""
    size = int(given.width), int(given.height)
    coefficients = given.radial_coeffs, given.tangential_coeffs, given.thin_prism_coeffs
    lenses = lens_coefficients(given.camera_model, given.viewmats, *size, given.ftheta_coeffs, *coefficients)
    model = camera_type(given.camera_model, lenses is not None, not given.global_z_order)
    if given.external_distortion_coeffs is not None:
        if not isinstance(model, str):
            raise SplatError("external_distortion_coeffs do not fit a camera model of your own; bend its rays there")
        model = behind_windshield(given.external_distortion_coeffs, model)
    return model, lenses


def behind_windshield(coeffs: Any, lens: str) -> UserType:
    """Make the type of a windshield before a camera of type `lens`. Kernels are compiled for its polynomials. SplatError if
    one is wrong."""
    if not isinstance(coeffs, BivariateWindshieldModelParameters):
        kind = type(coeffs).__name__
        raise SplatError(f"external_distortion_coeffs is a {kind}; give a BivariateWindshieldModelParameters or None")
    x, y, x_inverse, y_inverse = (
        _polynomial(f"external_distortion_coeffs.{name}", getattr(coeffs, name))
        for name in ("horizontal_poly", "vertical_poly", "horizontal_poly_inverse", "vertical_poly_inverse")
    )
    # Kernels import this module, and name `BehindWindshield`.
    text = f"""import splat.camera_model;
import splat.camera_models;
__exported import splat.windshield;
public struct Windshield : IWindshield
{{
    public typealias Lens = {lens};
    [Differentiable]
    public static float2 inwards(float2 a) {{ return float2({x}, {y}); }}
    [Differentiable]
    public static float2 outwards(float2 a) {{ return float2({x_inverse}, {y_inverse}); }}
    public static bool isOrthographic() {{ return {str(lens == "Orthographic").lower()}; }}
}}
"""
    return UserType("Windshield", text, "BehindWindshield")


def _polynomial(name: str, given: Any) -> str:
    """A polynomial in a.x and a.y as Slang, by Horner's rule."""
    orders = {(order + 1) * (order + 2) // 2: order for order in range(BivariateWindshieldModelParameters.MAX_ORDER + 1)}
    try:
        numbers = torch.as_tensor(given).detach().float().cpu()
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(0)
    if numbers.dim() != 1 or len(numbers) not in orders or not torch.isfinite(numbers).all():
        *counts, last = map(str, orders)
        raise SplatError(f"{name} is missing or wrong; give {', '.join(counts)} or {last} finite numbers")
    rows = numbers.split([*range(orders[len(numbers)] + 1, 0, -1)])
    return _horner("a.y", [_horner("a.x", row.tolist()) for row in rows])


def _horner(variable: str, coefficients: list[Any]) -> str:
    first, *rest = coefficients
    return f"{first}" if not rest else f"({first} + {variable} * {_horner(variable, rest)})"
