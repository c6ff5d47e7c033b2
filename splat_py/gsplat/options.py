"""The types of gsplat's options: most name what is not supported here, so that scripts that mention them load."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

CameraModel = Literal["pinhole", "ortho", "fisheye", "ftheta", "lidar"]
RenderMode = Literal["RGB", "d", "Ed", "D", "ED", "RGB-d", "RGB-Ed", "RGB+D", "RGB+ED"]
RasterizeMode = Literal["classic", "antialiased"]
ExternalDistortionModelMeta = Literal["bivariate-windshield"]


class RollingShutterType(IntEnum):
    """How a sensor is read out; GLOBAL is all at once."""

    ROLLING_TOP_TO_BOTTOM = 0
    ROLLING_LEFT_TO_RIGHT = 1
    ROLLING_BOTTOM_TO_TOP = 2
    ROLLING_RIGHT_TO_LEFT = 3
    GLOBAL = 4


class FThetaPolynomialType(IntEnum):
    """Which of an f-theta camera's two polynomials is exact."""

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
    """Sigma points of the unscented transform (`with_ut`)."""

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    in_image_margin_factor: float = 0.1
    require_all_sigma_points_valid: bool = True


class ExternalDistortionModelParameters:
    """Distortion by what is in front of a camera; not supported."""


class RendererConfig:
    """How gsplat's kernels share out their work; means nothing here."""


class RendererConfig_MixedBatch(RendererConfig):
    """One of gsplat's two ways."""


class RendererConfig_ParallelBatch(RendererConfig):
    """The other."""


def render_mode_has_color(mode: RenderMode) -> bool:
    """Whether there are colours."""
    return mode.startswith("RGB")


def render_mode_has_depth(mode: RenderMode) -> bool:
    """Whether there is a depth along the camera's axis."""
    return mode.endswith("D")


def render_mode_has_hit_distance(mode: RenderMode) -> bool:
    """Whether there is a distance along the ray."""
    return mode.endswith("d")


def render_mode_has_depth_channel(mode: RenderMode) -> bool:
    """Whether there is either of these."""
    return mode != "RGB"


def render_mode_has_expected_depth(mode: RenderMode) -> bool:
    """Whether depths are those of what is seen, and not weighted sums."""
    return "E" in mode


def render_mode_has_only_color(mode: RenderMode) -> bool:
    """Whether there are colours alone."""
    return mode == "RGB"


def render_mode_has_only_depth_channel(mode: RenderMode) -> bool:
    """Whether there are depths or distances alone."""
    return not mode.startswith("RGB")
