"""gsplat's camera objects, which have no derivatives: the pixels of points and the rays of pixels, by the renderer's models."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py import shaders
from splat_py.base.errors import SplatError
from splat_py.gpu.kernels import UserType
from splat_py.gpu.tensors import check_shape, check_tensors
from splat_py.gsplat.cameras import model_and_lenses
from splat_py.gsplat.checks import refuse
from splat_py.gsplat.lens_steps import finds_fisheye_ray, finds_pinhole_ray, ftheta_rays
from splat_py.render.cameras import SHUTTERS, shutter_of
from splat_py.render.checks import check_cameras, require_pixels
from splat_py.shaders.functions import ShaderFunction

# Steps from a point's row to the pose at its time, as in gsplat.
_ROW_STEPS = 10


@dataclass(frozen=True)
class BaseCameraModel:
    """Cameras [...] of one kind, with images of one size. Points, rays and pixels [..., M, ·] broadcast over cameras."""

    width: int
    height: int
    principal_points: Tensor  # [..., 2]
    focal_lengths: Tensor | None  # [..., 2]; None for f-theta
    rs_type: Any
    _camera_model: str
    _model: str | UserType
    # Coefficients of a pinhole's or a fisheye's lens, [..., 1, 12], or of an f-theta camera.
    _lens: Any
    # Slang's `Camera`, without a pose; fields [..., 1, ·].
    _camera: dict[str, NDArray[Any]]

    def camera_ray_to_image_point(self, camera_ray: Tensor, margin_factor: float = 0.0) -> tuple[Tensor, Tensor]:
        """Pixels [..., M, 2] of points or directions [..., M, 3] in camera space; and [..., M], True if the camera sees them on
        the image, or outside it by at most `margin_factor` of its sides."""
        pixels, defined = self._vectors(self._pixel_of, "camera_ray", camera_ray, 3)[0].split([2, 1], -1)
        size = pixels.new_tensor([self.width, self.height])
        seen = (pixels >= -size * margin_factor) & (pixels < size + size * margin_factor)
        return pixels, seen.all(-1) & (defined[..., 0] > 0) & self._is_in_view(camera_ray)

    def image_point_to_camera_ray(self, image_points: Tensor) -> tuple[Tensor, Tensor]:
        """Unit directions [..., M, 3] in camera space in which pixels [..., M, 2] look; and [..., M], True if there is one."""
        return self._rays(image_points)[1:]

    def shutter_relative_frame_time(self, image_points: Tensor) -> Tensor:
        """Times [..., M] at which the rows or columns of pixels [..., M, 2] are read: 0 for the first and 1 for the last."""
        shutter = shutter_of(self.rs_type)
        if shutter is None:
            return torch.zeros_like(image_points[..., 0])
        across, down = SHUTTERS[shutter]
        at, size = image_points.unbind(-1)[abs(down)], (self.width, self.height)[abs(down)]
        if size == 1:
            return torch.full_like(at, 0.5)
        return (at.floor() if across + down > 0 else size - at.ceil()) / (size - 1)

    def image_point_to_world_ray_shutter_pose(
        self, image_points: Tensor, pose_start: Tensor, pose_end: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Origins and unit directions [..., M, 3] in the world of the rays of pixels [..., M, 2], 0 without one; and [..., M],
        True if there is one. Poses [..., 7] are those at the first and the last row: translation, and quaternion w x y z."""
        origins, directions, valid = self._rays(image_points)
        pose = _pose_at(pose_start, pose_end, self.shutter_relative_frame_time(image_points))
        inverse = pose[..., 3:] * pose.new_tensor([1, -1, -1, -1])
        origins, directions = _rotated(inverse, origins - pose[..., :3]), _rotated(inverse, directions)
        return origins * valid[..., None], directions * valid[..., None], valid

    def world_point_to_image_point_shutter_pose(
        self, world_points: Tensor, pose_start: Tensor, pose_end: Tensor, margin_factor: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Pixels [..., M, 2] of points [..., M, 3] in the world, each seen when its own row is read; and [..., M], True if the
        camera sees it, as in `camera_ray_to_image_point`. Poses as in `image_point_to_world_ray_shutter_pose`."""

        def seen(times: Tensor) -> tuple[Tensor, Tensor]:
            pose = _pose_at(pose_start, pose_end, times)
            return self.camera_ray_to_image_point(_rotated(pose[..., 3:], world_points) + pose[..., :3], margin_factor)

        times = torch.zeros_like(world_points[..., 0])
        pixels, valid = seen(times)
        if shutter_of(self.rs_type) is None:
            return pixels, valid
        last, valid_at_last = seen(times + 1)
        pixels, begins = torch.where(valid[..., None], pixels, last), valid | valid_at_last
        for _ in range(_ROW_STEPS):
            later, valid = seen(self.shutter_relative_frame_time(pixels))
            pixels = torch.where(begins[..., None], later, pixels)
        return pixels, begins & valid

    def _rays(self, image_points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Origins and unit directions [..., M, 3] in camera space of pixels' rays; and [..., M], True if there is one."""
        if self._model == "FTheta":
            self._shape_of("image_points", image_points, 2)
            directions, found = ftheta_rays(image_points - self.principal_points[..., None, :] - 0.5, self._lens)
            return torch.zeros_like(directions), directions, found
        origins, directions = self._vectors(self._ray_of, "image_points", image_points, 2)
        directions = _unit(directions)
        return origins, directions, (directions != 0).any(-1) & self._finds_ray(image_points)

    # Functions of slang/splat/camera_model.slang, found once.

    @cached_property
    def _pixel_of(self) -> ShaderFunction:
        return shaders.camera_model.pixelOf[self._model]

    @cached_property
    def _ray_of(self) -> ShaderFunction:
        return shaders.camera_model.rayOf[self._model]

    def _vectors(self, function: ShaderFunction, name: str, points: Tensor, numbers: int) -> list[Tensor]:
        """Call a function, which returns vectors of three, for each of the points [..., M, numbers]."""
        shape = self._shape_of(name, points, numbers)
        if 0 in shape:
            return [points.new_zeros(*shape, 3)] * 2
        result = function(self._camera, _as_numpy(points))
        return [torch.from_numpy(v).to(points.device) for v in (result.values() if isinstance(result, dict) else [result])]

    def _shape_of(self, name: str, points: Tensor, numbers: int) -> torch.Size:
        """Return [..., M] of points [..., M, numbers]; SplatError if they do not fit the cameras."""
        check_tensors({name: points})
        cameras = self.principal_points.shape[:-1]
        with suppress(RuntimeError):
            if points.shape[-1:] == (numbers,):
                return torch.broadcast_shapes(points.shape[:-1], (*cameras, 1))
        raise SplatError(f"{name} has shape {list(points.shape)}; expected [..., M, {numbers}] for cameras {list(cameras)}")

    def _finds_ray(self, image_points: Tensor) -> Tensor | bool:
        if self.focal_lengths is None or self._camera_model == "ortho":
            return True
        focal = self.focal_lengths[..., None, :]
        slopes = (image_points - self.principal_points[..., None, :]) / focal
        if self._camera_model == "pinhole":
            return finds_pinhole_ray(slopes, self._lens)
        widest = (focal.new_tensor([self.width, self.height]) / 2 / focal).amax(-1)
        return finds_fisheye_ray(slopes, self._lens, self._largest_angle(focal), widest)

    def _is_in_view(self, rays: Tensor) -> Tensor | bool:
        """True for rays [..., M, 3] up to the angle at which gsplat's fisheyes end."""
        if self._model != "Fisheye" or self.focal_lengths is None:
            return True
        angles = torch.atan2(rays[..., :2].norm(dim=-1), rays[..., 2])
        return angles < self._largest_angle(self.focal_lengths[..., None, :])

    def _largest_angle(self, focal: Tensor) -> Tensor:
        """The angle [..., 1] at which an equidistant lens would see the corner farthest from its axis."""
        size, at = focal.new_tensor([self.width, self.height]), self.principal_points[..., None, :]
        return torch.maximum(at, size - at).norm(dim=-1) / focal.amin(-1)


def _rotated(quats: Tensor, v: Tensor) -> Tensor:
    """Turn vectors [..., 3] by quaternions [..., 4]."""
    real, axis = _unit(quats).split([1, 3], -1)
    across = torch.linalg.cross(axis, v)
    return v + across * (2 * real) + 2 * torch.linalg.cross(axis, across)


def _unit(v: Tensor) -> Tensor:
    """Vectors of length 1, or 0 for 0."""
    squared = v.square().sum(-1, keepdim=True)
    return torch.where(squared > 0, v * squared.rsqrt(), 0.0)


def _pose_at(start: Tensor, end: Tensor, times: Tensor) -> Tensor:
    """Poses [..., M, 7] at times [..., M] between two poses [..., 7]: translations are linear, and rotations follow the
    shortest arc (Shoemake 1985)."""
    for name, pose in (("pose_start", start), ("pose_end", end)):
        if pose.shape[-1:] != (7,):
            raise SplatError(f"{name} has shape {list(pose.shape)}; expected [..., 7], translation and quaternion")
    start, end, times = start[..., None, :], end[..., None, :], times[..., None]
    cosine = (start[..., 3:] * end[..., 3:]).sum(-1, keepdim=True)
    last = torch.where(cosine < 0, -end[..., 3:], end[..., 3:])
    angle = cosine.abs().clamp(max=1.0).acos()
    sine = angle.sin()
    arc = (((1 - times) * angle).sin() * start[..., 3:] + (times * angle).sin() * last) / sine
    turn = torch.where(cosine.abs() > 1 - 1e-6, (1 - times) * start[..., 3:] + times * last, arc)
    return torch.cat([(1 - times) * start[..., :3] + times * end[..., :3], _unit(turn)], -1)


def create_camera_model(
    camera_model: str,
    width: int | None = None,
    height: int | None = None,
    principal_points: Tensor | None = None,
    focal_lengths: Tensor | None = None,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: Any = None,
    external_distortion_coeffs: Any = None,
    rs_type: Any = None,
    lidar_coeffs: Any = None,
) -> BaseCameraModel:
    """Return cameras [...] with principal points and focal lengths [..., 2] in pixels, and lenses as in `rasterization`.

    Raises:
        SplatError: an argument is missing, has the wrong shape, or does not belong to the camera model.
        NotImplementedError: the camera model is a lidar, or unknown.
    """
    refuse("create_camera_model", lidar_coeffs=lidar_coeffs)
    shutter_of(rs_type)
    require_pixels(width=width, height=height)
    assert width is not None and height is not None
    coefficients = {"radial_coeffs": radial_coeffs, "tangential_coeffs": tangential_coeffs}
    coefficients["thin_prism_coeffs"] = thin_prism_coeffs
    tensors = {"principal_points": principal_points, "focal_lengths": focal_lengths, **coefficients}
    check_tensors(tensors, needed=("principal_points", *(() if camera_model == "ftheta" else ("focal_lengths",))))
    assert principal_points is not None
    if camera_model == "ftheta" and focal_lengths is not None:
        raise SplatError("focal_lengths mean nothing to camera_model='ftheta'; leave focal_lengths out")
    lead = principal_points.shape[:-1]
    check_shape("principal_points", principal_points, (*lead, 2))
    focal = torch.ones_like(principal_points) if focal_lengths is None else focal_lengths
    check_shape("focal_lengths", focal, (*lead, 2))
    if not torch.isfinite(principal_points).all():
        raise SplatError("principal_points holds a number that is not finite; check where the cameras come from")
    viewmats = torch.eye(4).to(principal_points).expand(*lead, 1, 4, 4)
    Ks = torch.nn.functional.pad(focal, (0, 1)).diag_embed()[..., None, :, :]
    given: dict[str, Any] = {name: None if numbers is None else numbers[..., None, :] for name, numbers in coefficients.items()}
    check_cameras(viewmats[..., :0, 0, :3], viewmats, Ks, camera_model, coefficients=given)
    given |= {"ftheta_coeffs": ftheta_coeffs, "external_distortion_coeffs": external_distortion_coeffs, "global_z_order": True}
    given |= {"camera_model": camera_model, "viewmats": viewmats, "width": int(width), "height": int(height)}
    model, lenses = model_and_lenses(SimpleNamespace(**given))
    lens = viewmats.new_zeros(*lead, 1, 12) if lenses is None else lenses
    camera = {"rotation": np.eye(3), "translation": np.zeros(3)}
    camera |= {"focal": _as_numpy(focal[..., None, :]), "principal": _as_numpy(principal_points[..., None, :])}
    coefficients_of = np.split(_as_numpy(lens), (3, 6, 8), -1)
    camera |= dict(zip(("radial", "radialMore", "tangential", "thinPrism"), coefficients_of, strict=True))
    bends = ftheta_coeffs if camera_model == "ftheta" else lens
    placed = int(width), int(height), principal_points, focal_lengths, rs_type
    return BaseCameraModel(*placed, camera_model, model, bends, camera)


def _as_numpy(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().numpy()
