"""The options of a render: all that is not a tensor, in one object from `rasterization` to the kernels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal, Self

from splat_py.base.errors import SplatError
from splat_py.gpu.accumulation import Accumulate, accumulation
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import UserType
from splat_py.gpu.sources import constant
from splat_py.shaders.declarations import SPLAT_INTERFACES, types_of
from splat_py.shaders.functions import ShaderModule
from splat_py.shaders.loading import shape_of, source, user_type, with_numbers

RenderMode = Literal["RGB", "d", "Ed", "D", "ED", "RGB-d", "RGB-Ed", "RGB+D", "RGB+ED"]

# Built-in falloffs by their names in `rasterization`: the type in slang/splat/falloff.slang, and its parameters.
SPLATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Gaussian": ("GaussianFalloff", ()),
    "GeneralizedExponential": ("GeneralizedExponential", ("beta",)),
    "BetaKernel": ("BetaKernel", ("b",)),
    "Surfel": ("GaussianFalloff", ()),
}
# The rule that ends a pixel's blending (slang/splat/splat2d.slang), by `max_alpha`.
STOPS = {0.999: "SceneStop", 0.99: "SceneStop99"}


# Arguments of `rasterization`, and of functions like it, that are options of the same name.
_ARGUMENTS = (
    *("near_plane", "far_plane", "radius_clip", "eps2d", "packed", "sparse_grad", "absgrad"),
    *("render_mode", "sh_degree", "extra_signals_sh_degree"),
)


@dataclass(frozen=True)
class UnscentedTransform:
    """Sigma points (Wan and van der Merwe 2000), with gsplat's names and defaults."""

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    # A Gaussian is culled if any (or all) of its sigma points lie beyond the image by more than this share of its sides.
    in_image_margin_factor: float = 0.1
    require_all_sigma_points_valid: bool = True
    # A rolling shutter reads points at the times of whole rows, and depths halfway between both poses, as in gsplat.
    whole_rows: bool = False

    @classmethod
    def of(cls, params: Any) -> Self:
        """Copy the parameters from any object with these attributes, such as gsplat's; None gives the defaults. SplatError if
        an attribute is missing or out of its range."""
        if params is None:
            return cls()
        numbers = {}
        for name in ("alpha", "beta", "kappa", "in_image_margin_factor"):
            value = getattr(params, name, None)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise SplatError(f"ut_params.{name} is {value!r}; it must be a finite number")
            numbers[name] = float(value)
        if not (numbers["alpha"] > 0 and numbers["kappa"] > -3):
            raise SplatError("ut_params makes all sigma points coincide; alpha must be positive and kappa more than -3")
        return cls(
            **numbers,
            require_all_sigma_points_valid=bool(getattr(params, "require_all_sigma_points_valid", True)),
            whole_rows=bool(getattr(params, "whole_rows", False)),
        )

    # The numbers that kernels read (kernels/project.slang).

    @property
    def spread(self) -> float:
        """Squared distance of the sigma points from the mean, in variances."""
        return self.alpha**2 * (3 + self.kappa)

    @property
    def curvature(self) -> float:
        """Weight in the covariance of the squared shift between the projected mean and the mean of the projected points."""
        return self.beta - self.alpha**2

    margin = property(attrgetter("in_image_margin_factor"))

    @property
    def require_all(self) -> int:
        return int(self.require_all_sigma_points_valid)


@dataclass(frozen=True)
class Options:
    """The options of a render.

    Kernels find their numbers and their specialisation here by name: `eps2d` is the number `options.eps2d`, `camera_model` the
    type `CameraModel`, `raw_params` the constant `RAW_PARAMS`.
    """

    tile_size: int
    # PerPixel, PerWave, PerGroup or PerIntersection (parallel/gradient_accumulation.slang); float atomics or compare-and-swap.
    accumulation: str = "PerWave"
    native_atomics: bool = True
    # `Tuning.cpu_driver`.
    cpu_driver: bool = False
    # Gaussians are given as the optimiser stores them: log-scales and opacity logits.
    raw_params: bool = False
    # A type that implements ICameraModel (splat/camera_model.slang), and the name of a `RollingShutterType`.
    camera_model: str | UserType = "Pinhole"
    shutter: str | None = None
    # The pixels' rays are given; they are not the camera's.
    own_rays: bool = False
    # Project by the unscented transform instead of the Jacobian.
    with_ut: bool = False
    ut_params: UnscentedTransform = UnscentedTransform()
    # "Gaussian" is projected; the others are evaluated along rays (splat/ray_splat.slang), surfels only of pinholes.
    primitive: Literal["Gaussian", "Surfel", "GsplatSurfel", "RayGaussian"] = "Gaussian"
    # A type that implements IStoredFalloff (splat/falloff.slang), and the numbers of each Gaussian's own.
    falloff: str | UserType = "GaussianFalloff"
    extras: int = 0
    # A type that implements IHits (splat/ray_gaussian.slang), if colours vary within a splat: `SplatColorHits` of the user's.
    splat_color: str | UserType = "NoHits"
    stop: str = "SceneStop"
    # Arguments of `rasterization` (`same_named`).
    near_plane: float = 0.01
    far_plane: float = 1e10
    radius_clip: float = 0.0
    eps2d: float = 0.3
    packed: bool = False
    sparse_grad: bool = False
    absgrad: bool = False
    render_mode: RenderMode = "RGB"
    # The last four channels are hits: normals, and distances along rays (`RayHits` in slang/splat/ray_gaussian.slang).
    with_hits: bool = False
    sh_degree: int | None = None
    extra_signals_sh_degree: int | None = None
    antialiased: bool = False
    # Lower limit of the factor by which antialiasing dims a splat.
    least_compensation: float = constant("splat/projection", "MIN_COMPENSATION")
    # A splat reaches as far as its opacity before antialiasing is seen.
    undimmed_reach: bool = False
    # True if the gradients of cameras are computed.
    camera_gradient: bool = False
    # False if the splats' rows of gradients have no normals.
    normal_gradient: bool = True
    # A type that implements IColor (splat/color.slang).
    color_type: str | UserType = "SphericalHarmonics"

    @classmethod
    def on(cls, device: Device, tile_size: int | None = None, accumulate: Accumulate = "auto", **others: Any) -> Self:
        """Make options with the device's defaults for `tile_size` and `accumulate`. SplatError if `accumulate` is unknown."""
        ways = accumulation(device, accumulate)
        # PerIntersection adds nothing atomically: one kernel serves devices with and without float atomics.
        native = device.native_float_atomics or ways == "PerIntersection"
        return cls(tile_size or device.tuning.tile_size, ways, native, device.tuning.cpu_driver, **others)

    @staticmethod
    def same_named(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The options among a function's arguments, by name."""
        return {name: arguments[name] for name in _ARGUMENTS if name in arguments}

    @staticmethod
    def of_splat(splat: str | UserType | ShaderModule, numbers: Sequence[str]) -> dict[str, Any]:
        """The options that a splat's type and the names of its parameters decide, by name. SplatError if its source has types
        that exclude each other, or other fields."""
        if isinstance(splat, str):
            kind = {"falloff": SPLATS[splat][0], "extras": len(numbers)}
            return kind | ({"primitive": "Surfel"} if splat == "Surfel" else {})
        found = user_type(splat, *SPLAT_INTERFACES)
        if not types_of(splat.text, "ISplatColor"):
            along = {"primitive": "RayGaussian"} if found.adapter == "Falloff3DAdapter" else {}
            return {"falloff": with_numbers(tuple(numbers), found)[0], "extras": len(numbers)} | along
        if found.adapter == "Falloff2DAdapter":
            raise SplatError(f"{found.name} is of the image and ISplatColor of space; implement IFalloff3D or IFalloff instead")
        color = user_type(source(splat.text) if isinstance(splat, UserType) else splat, "ISplatColor")
        if found == color:
            kinds: tuple[str | UserType, ...] = ("GaussianFalloff", *with_numbers(tuple(numbers), color))
        else:
            kinds = with_numbers(tuple(numbers), found, color)
        return dict(zip(("falloff", "splat_color"), kinds, strict=True)) | {"extras": len(numbers), "primitive": "RayGaussian"}

    # Each dispatch reads these.

    @cached_property
    def per_isect(self) -> bool:
        """True if gradients have a row per intersection, and add up in the same order in each run."""
        return self.accumulation == "PerIntersection"

    @property
    def whole_rows(self) -> bool:
        """True if sigma points have the times of whole rows."""
        return self.with_ut and self.shutter is not None and self.ut_params.whole_rows

    @cached_property
    def along_rays(self) -> bool:
        """True if splats are evaluated along the pixels' rays."""
        return self.primitive != "Gaussian"

    @cached_property
    def with_rays(self) -> bool:
        """True if each pixel's ray is in memory; a pinhole's rays need none, except for hits and with `with_ut`."""
        still = self.camera_model == "Pinhole" and self.shutter is None
        own = self.splat_color != "NoHits" or bool(getattr(self.falloff, "adapter", ""))
        return self.primitive == "RayGaussian" and (self.with_hits or self.with_ut or self.own_rays or own or not still)

    @cached_property
    def shape(self) -> str | UserType:
        """The type that implements IShape (splat/shape.slang)."""
        if isinstance(self.falloff, UserType) and self.falloff.adapter:
            return shape_of(self.falloff)
        return "GeneralRayGaussian" if self.with_rays else self.primitive if self.along_rays else "Ellipse"

    @cached_property
    def shape_floats(self) -> int:
        """Floats of a splat's shape: 3 of a conic, 9 along rays of pinholes, or 15 along any rays."""
        return 15 if self.with_rays else 9 if self.along_rays else 3

    @property
    def has_features(self) -> bool:
        """True if `colors` are features, which a type turns into rgb."""
        return self.color_type != "SphericalHarmonics"

    @property
    def color_offset(self) -> int:
        """Floats before the colours in a splat's gradient."""
        return 2 + self.shape_floats + 1

    def gradient_row_length(self, channels: int) -> int:
        """Floats of a splat's gradient: mean2d 2, shape, opacity 1, colours, extras, and |mean2d| 2 with `absgrad`."""
        return self.color_offset + channels + self.extras + (2 if self.absgrad else 0)
