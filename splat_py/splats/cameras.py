"""What cameras are besides pinholes with a pose: types of their own, rolling shutters, the unscented transform's options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.kernels import UserType
from splat_py.shaders import ShaderModule
from splat_py.user_types import user_type

# gsplat's name of each, and ours without and with a lens (slang/splat/camera_model.slang).
CAMERA_MODELS = {"pinhole": "Pinhole", "ortho": "Orthographic", "fisheye": "Fisheye", "equirectangular": "Equirectangular"}
LENS_MODELS = {"pinhole": "OpenCVPinhole", "fisheye": "Fisheye"}
# gsplat's `RollingShutterType` by name: the axis along which rows (or columns) are read, and whether from the far end.
_SHUTTERS = {
    "ROLLING_TOP_TO_BOTTOM": (1, False),
    "ROLLING_LEFT_TO_RIGHT": (0, False),
    "ROLLING_BOTTOM_TO_TOP": (1, True),
    "ROLLING_RIGHT_TO_LEFT": (0, True),
}


@dataclass(frozen=True)
class UnscentedTransform:
    """Sigma points (Wan and van der Merwe 2000), with gsplat's names and defaults."""

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    # Gaussians are culled unless their sigma points, all or one, lie no further beyond the image than so many of its sides.
    in_image_margin_factor: float = 0.1
    require_all_sigma_points_valid: bool = True

    @classmethod
    def of(cls, params: Any) -> UnscentedTransform:
        """Of anything with attributes of these names, such as gsplat's.

        Raises:
            SplatError: one is missing, or is no number that makes sense.
        """
        if params is None:
            return cls()
        numbers = {}
        for name in ("alpha", "beta", "kappa", "in_image_margin_factor"):
            value = getattr(params, name, None)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise SplatError(f"ut_params.{name} is {value!r}; it must be a finite number")
            numbers[name] = float(value)
        if not (numbers["alpha"] > 0 and numbers["kappa"] > -3):
            raise SplatError("ut_params puts all sigma points into one; alpha must be positive and kappa more than -3")
        return cls(**numbers, require_all_sigma_points_valid=bool(getattr(params, "require_all_sigma_points_valid", True)))

    def uniforms(self) -> dict[str, int | float]:
        """What the kernels are told."""
        return {
            "spread": self.alpha**2 * (3 + self.kappa),
            "curvature": self.beta - self.alpha**2,
            "margin": self.in_image_margin_factor,
            "requireAll": int(self.require_all_sigma_points_valid),
        }


def camera_type(camera_model: str | UserType | ShaderModule, with_lens: bool) -> str | UserType:
    """The type in slang/splat of a name, or a caller's own."""
    if isinstance(camera_model, str):
        return (LENS_MODELS if with_lens else CAMERA_MODELS)[camera_model]
    return user_type(camera_model, "ICameraModel")


def shutter_of(rolling_shutter: Any) -> str | None:
    """The name of a `RollingShutterType`, gsplat's or ours; None where everything is read at once.

    Raises:
        SplatError: it is none.
    """
    name = getattr(rolling_shutter, "name", None)
    if rolling_shutter is None or rolling_shutter is False or name == "GLOBAL":
        return None
    if name not in _SHUTTERS:
        raise SplatError(f"rolling_shutter is {rolling_shutter!r}; use a RollingShutterType: {', '.join(_SHUTTERS)} or GLOBAL")
    return str(name)


def readout(shutter: str | None, width: int, height: int) -> dict[str, int | float]:
    """The uniforms of `Readout` (slang/splat/rolling_shutter.slang): the centres of the first row at 0, of the last at 1."""
    if shutter is None:
        return {"rateX": 0.0, "rateY": 0.0, "readOffset": 0.0}
    axis, backwards = _SHUTTERS[shutter]
    rate = 1 / max((width, height)[axis] - 1, 1)
    rates = [0.0, 0.0]
    rates[axis] = -rate if backwards else rate
    return {"rateX": rates[0], "rateY": rates[1], "readOffset": 1 + 0.5 * rate if backwards else -0.5 * rate}


def midway(viewmats: Tensor, viewmats_rs: Tensor) -> Tensor:
    """[..., C, 4, 4] with the mean of the two poses' centres, for what only depends on where a camera is."""
    centres = [-(pose[..., :3, :3].mT @ pose[..., :3, 3:]) for pose in (viewmats, viewmats_rs)]
    eye = torch.eye(4).to(viewmats).expand_as(viewmats)
    return eye - torch.nn.functional.pad((centres[0] + centres[1]) / 2, (3, 0, 0, 1))
