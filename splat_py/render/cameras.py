"""Cameras: models, lenses and rolling shutters; their arrays on the device; and their gradients, summed over Gaussians."""

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.base.fields import shown
from splat_py.gpu.arrays import Array, Memory
from splat_py.gpu.autograd import Untransformed, primal
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.gpu.sources import constant
from splat_py.render.options import Options
from splat_py.shaders.functions import ShaderModule
from splat_py.shaders.loading import user_type

# gsplat's camera models and the Slang types for them, without and with a lens (slang/splat/camera_models.slang).
CAMERA_MODELS = {"pinhole": "Pinhole", "ortho": "Orthographic", "fisheye": "Fisheye", "ftheta": "FTheta"}
CAMERA_MODELS |= {"equirectangular": "Equirectangular"}
LENS_MODELS = {"pinhole": "OpenCVPinhole", "fisheye": "Fisheye", "ftheta": "FTheta"}
# Names in gsplat's `RollingShutterType`: the direction along x and y in which columns or rows are read out.
SHUTTERS = {
    "ROLLING_TOP_TO_BOTTOM": (0, 1),
    "ROLLING_LEFT_TO_RIGHT": (1, 0),
    "ROLLING_BOTTOM_TO_TOP": (0, -1),
    "ROLLING_RIGHT_TO_LEFT": (-1, 0),
}
# Floats of a camera's gradient row: [R|t] 12, fx, fy, cx, cy; its lens, if any; with a rolling shutter also the last row's
# [R|t] (kernels/cameras.slang).
CAMERA_ROW: int = constant("kernels/cameras", "CAMERA_ROW")
LENS: int = constant("kernels/cameras", "LENS")
POSE_ROW: int = constant("kernels/cameras", "POSE_ROW")
_THREADS: int = constant("parallel/threads", "THREADS")


@dataclass(frozen=True)
class Cameras:
    """C cameras with images of one size."""

    viewmats: Array  # [C, 4, 4] world → camera; with a rolling shutter [C, 2, 4, 4], at the first and the last row
    Ks: Array  # [C, 3, 3]
    width: int
    height: int
    # All scenes have equally many cameras, and equally many Gaussians.
    scenes: int = 1
    lenses: Array | None = None  # [C, LENS] radial 6, tangential 2, thin prism 4
    shutter: str | None = None

    @classmethod
    def of(
        cls,
        memory: Memory,
        viewmats: Tensor,
        Ks: Tensor,
        width: int,
        height: int,
        lenses: Tensor | None = None,
        viewmats_rs: Tensor | None = None,
        shutter: str | None = None,
    ) -> Self:
        """Make cameras from torch tensors [..., C, ·]."""
        poses, scenes = viewmats.detach().flatten(0, -3), math.prod(viewmats.shape[:-3])
        if viewmats_rs is not None:
            poses = torch.stack([poses, viewmats_rs.detach().flatten(0, -3)], 1)
        coefficients = None if lenses is None else memory.array(lenses.reshape(-1, LENS))
        intrinsics = memory.array(Ks.flatten(0, -3))
        return cls(memory.array(poses), intrinsics, width, height, scenes, coefficients, shutter)

    @property
    def count(self) -> int:
        """C."""
        return self.viewmats.shape[0]

    @property
    def per_scene(self) -> int:
        return self.count // self.scenes

    @property
    def with_lens(self) -> bool:
        """True if cameras have lens coefficients, or those of the caller's own model."""
        return self.lenses is not None

    @property
    def rolling(self) -> bool:
        return self.shutter is not None

    # Readout times: 0 at the centres of the first row or column, 1 at those of the last.

    @property
    def x_rate(self) -> float:
        """Readout time per pixel along x."""
        return SHUTTERS.get(self.shutter or "", (0, 0))[0] / max(self.width - 1, 1)

    @property
    def y_rate(self) -> float:
        """Readout time per pixel along y."""
        return SHUTTERS.get(self.shutter or "", (0, 0))[1] / max(self.height - 1, 1)

    @property
    def read_offset(self) -> float:
        """Readout time at pixel coordinates (0, 0), the image's corner."""
        rate = self.x_rate + self.y_rate
        return 1 - 0.5 * rate if rate < 0 else -0.5 * rate

    @property
    def row_length(self) -> int:
        """Floats of a camera's gradient row."""
        return CAMERA_ROW + (LENS if self.with_lens else 0) + (POSE_ROW if self.rolling else 0)


def camera_type(camera_model: str | UserType | ShaderModule, with_lens: bool, by_distance: bool = False) -> str | UserType:
    """The Slang type for the name of a camera model, `by_distance` with distances as f-theta's depths; or the caller's type, a
    camera's or a windshield's."""
    if camera_model == "ftheta" and by_distance:
        return "FThetaByDistance"
    if isinstance(camera_model, str):
        return (LENS_MODELS if with_lens else CAMERA_MODELS)[camera_model]
    return user_type(camera_model, "ICameraModel", "IWindshield")


def shutter_of(rolling_shutter: Any) -> str | None:
    """The name of a `RollingShutterType` of gsplat or splat_py; None for a global shutter; SplatError for anything else."""
    name = getattr(rolling_shutter, "name", None)
    if rolling_shutter is None or rolling_shutter is False or name == "GLOBAL":
        return None
    if name not in SHUTTERS:
        raise SplatError(f"rolling_shutter is {rolling_shutter!r}; use a RollingShutterType: {', '.join(SHUTTERS)} or GLOBAL")
    return str(name)


def lens_coefficients(
    camera_model: Any,
    viewmats: Tensor,
    width: int,
    height: int,
    ftheta_coeffs: Any,
    radial: Tensor | None,
    tangential: Tensor | None,
    thin_prism: Tensor | None,
    camera_params: Tensor | None = None,
) -> Tensor | None:
    """Return lens coefficients, or the caller's own model's, as [..., C, LENS] padded with zeros; None without any. SplatError
    if f-theta's are wrong, or belong to another model."""
    pad = torch.nn.functional.pad
    if (ftheta_coeffs is not None) != (camera_model == "ftheta"):
        raise SplatError("ftheta_coeffs and camera_model='ftheta' belong together; give both or neither")
    if ftheta_coeffs is not None:
        return ftheta_coefficients(ftheta_coeffs, viewmats, width, height)
    if camera_params is not None:
        return pad(camera_params, (0, LENS - camera_params.shape[-1]))
    given = radial, tangential, thin_prism
    if all(part is None for part in given):
        return None
    parts = [viewmats.new_zeros(*viewmats.shape[:-2], n) if p is None else p for p, n in zip(given, (6, 2, 4), strict=True)]
    parts[0] = pad(parts[0], (0, 6 - parts[0].shape[-1]))
    return torch.cat(parts, -1)


def ftheta_coefficients(coeffs: Any, viewmats: Tensor, width: int, height: int) -> Tensor:
    """Return coefficients [..., C, LENS] of `FTheta` for an object with gsplat's attributes, numbers or tensors; SplatError if
    one is wrong, or the polynomial does not rise where it is used."""
    reference = getattr(coeffs, "reference_poly", None)
    if reference not in (0, 1):
        raise SplatError(f"ftheta_coeffs.reference_poly is {shown(reference)}; give an FThetaPolynomialType, 0 or 1")
    gives_angles = reference == 0
    polynomial = "pixeldist_to_angle_poly" if gives_angles else "angle_to_pixeldist_poly"
    shapes: dict[str, tuple[int, ...]] = {polynomial: (6,), "max_angle": (), "linear_cde": (3,)}
    parts = [ftheta_numbers(coeffs, name, shape, viewmats) for name, shape in shapes.items()]
    used: tuple[float, float] = Untransformed.apply(_ftheta_range, polynomial, parts, width + height)
    ends = viewmats.new_tensor([used[0], gives_angles]), viewmats.new_tensor([used[1]])
    return torch.cat([parts[0], ends[0], parts[2], ends[1]]).expand(*viewmats.shape[:-2], LENS)


def ftheta_numbers(coeffs: Any, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return the f-theta coefficients of this name and shape, as a tensor like `like`; SplatError if one is wrong."""
    try:
        given = torch.as_tensor(getattr(coeffs, name, None)).to(like)
    except (TypeError, ValueError, RuntimeError):
        given = torch.empty(0)
    if given.shape != shape or not torch.isfinite(given).all():
        raise SplatError(f"ftheta_coeffs.{name} is missing or wrong; give {math.prod(shape)} finite numbers")
    return given


def _ftheta_range(polynomial: str, parts: list[Tensor], most: float) -> tuple[float, float]:
    """Return the largest angle, and the largest argument of the polynomial, for a camera with all pixels within `most` of the
    axis; SplatError if the camera sees nothing, or the polynomial does not rise that far."""
    p, largest, (c, d, e) = (primal(part).double().cpu().numpy() for part in parts)
    gives_angles, angle = polynomial == "pixeldist_to_angle_poly", min(float(largest), math.pi)
    if abs(c - d * e) < 1e-8 or angle <= 0:
        raise SplatError("ftheta_coeffs must have a max_angle > 0, and a linear_cde c, d, e with c - d e that is not 0")
    x = np.linspace(0, most if gives_angles else angle, 513)[:, None]
    # Distances count up to the largest angle, or as far as an image reaches.
    used = np.cumsum(gives_angles & (x ** np.arange(6) @ p >= angle)) == 0
    if p[0] != 0 or not (x ** np.arange(5) @ (p[1:] * np.arange(1, 6)) > 0)[used].all():
        raise SplatError(
            f"ftheta_coeffs.{polynomial} must be 0 at 0 and rise up to max_angle; check it, and max_angle, which is {largest}"
        )
    return angle, float(x[min(used.sum(), 512), 0])


def midway(viewmats: Tensor, viewmats_rs: Tensor) -> Tensor:
    """Return poses [..., C, 4, 4] at the mean of both centres, unrotated: shading depends only on a camera's centre."""
    centres = [-(pose[..., :3, :3].mT @ pose[..., :3, 3:]) for pose in (viewmats, viewmats_rs)]
    eye = torch.eye(4).to(viewmats).expand_as(viewmats)
    return eye - torch.nn.functional.pad((centres[0] + centres[1]) / 2, (3, 0, 0, 1))


@dataclass(frozen=True)
class SharedRows:
    """Rows of gradients that many threads add to (kernels/shared_rows.slang): the sums, and partial rows of workgroups."""

    sums: Array
    parts: Array | None = None

    # The bits of `sums`, for compare-and-swap.
    sum_bits = property(attrgetter("sums.as_uint32"))

    @classmethod
    def over(cls, recorder: Recorder, sums: Array, gaussians: int, options: Options, scenes: int = 1) -> Self:
        """Make rows that add up in `sums` [rows, floats] or [floats], from `gaussians` Gaussians in each of `scenes` scenes."""
        if not options.per_isect:
            return cls(sums)
        length = sums.shape[-1]
        # Only workgroups with a Gaussian have a row: `linear_groups` rounds large grids up.
        return cls(sums, recorder.zeros((sums.size // length, scenes * -(-gaussians // _THREADS), length)))

    def record_sum(self, recorder: Recorder) -> None:
        """Add the workgroups' partial rows to `sums`."""
        if self.parts is not None:
            count, each, row = self.parts.shape
            recorder.dispatch(
                "row_sums",
                "sumGroups",
                linear_groups(self.sums.size),
                count=count,
                rows=count * each,
                rows_each=each,
                parts=self.parts,
                sums=self.sums,
                ROW=row,
            )


def camera_gradients(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split rows [C, CAMERA_ROW or more] into gradients of viewmats [C, 4, 4], Ks [C, 3, 3] and lenses [C, LENS or 0]."""
    v_Ks = torch.zeros(rows.shape[0], 3, 3, device=rows.device)
    v_Ks[:, 0, 0], v_Ks[:, 1, 1] = rows[:, 12], rows[:, 13]
    v_Ks[:, :2, 2] = rows[:, 14:CAMERA_ROW]
    return pose_gradients(rows[:, :POSE_ROW]), v_Ks, rows[:, CAMERA_ROW : CAMERA_ROW + LENS]


def pose_gradients(rows: Tensor) -> Tensor:
    """Gradients of poses: rows [C, POSE_ROW] → [C, 4, 4]."""
    return torch.nn.functional.pad(rows.reshape(-1, 3, 4), (0, 0, 0, 1))
