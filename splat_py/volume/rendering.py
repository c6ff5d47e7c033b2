"""Differentiable rendering of radiance fields for torch: `render`, one autograd function around the march and its replay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import alert_not_deterministic
from splat_py.gpu.autograd import first_derivative, keep, kept, opaque
from splat_py.gpu.device import Device, device_for
from splat_py.scene.camera import Camera
from splat_py.splats.tensors import as_tensor, check_tensors
from splat_py.volume.box import Box
from splat_py.volume.config import MOST_VOXELS
from splat_py.volume.half_storage import stored
from splat_py.volume.marching import COEFFICIENTS, Image, March, Marched, Rays, Volume, row_floats, to_voxel_order
from splat_py.volume.views import camera_rays

if TYPE_CHECKING:
    from splat_py.volume.hash_field import HashRadianceField
    from splat_py.volume.own_field import OwnRadianceField


@opaque
def render(
    density: Tensor | HashRadianceField | OwnRadianceField,
    sh: Tensor | None,
    rays_o: Tensor,
    rays_d: Tensor,
    box: Any = None,
    *,
    background: Tensor | None = None,
    steps_per_unit: float | None = None,
    jitter: bool = False,
    seed: int = 0,
    skip_empty: bool = True,
    contracted: bool = False,
    device: Device | str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Render a radiance field along rays, by emission and absorption (Vicini et al. 2021, Path Replay Backpropagation).

    A ray's chord through the box is cut into N = ⌈length · steps_per_unit⌉ equal steps δ, sampled in their middles or, with
    `jitter`, at random places in them. With α_i = 1 - exp(-σ_i δ), T_i = Π_{j<i} (1 - α_j) and w_i = T_i α_i, the results are
    Σ w_i c_i + T_N background, T_N and Σ w_i t_i. Density and coefficients are interpolated trilinearly between the centres of
    voxels, and stay constant from the outermost centres to the faces of the box; then σ = max(0, density) and
    c = max(0, Σ_k Y_k(d) sh_k + ½). A ray stops where T falls to 1e-6: what is left sees the background, and the gradient is
    that of the shorter sum.

    Differentiable in density, sh, background, rays_o and rays_d, through all three results, in memory that does not depend on
    N: nothing but the results is saved, the backward pass marches again. Gradients of rays are those of the sums above: samples
    move with the ray and with the places where it enters and leaves the box, and δ changes. What is piecewise constant is held:
    N, the random places in steps, the empty bricks, and where a ray stops. Where a sample passes a plane of voxels' centres,
    trilinear interpolation has a kink.

    Args:
        density: [X, Y, Z] per world unit; voxel (i, j, k) has its centre at
            low + (i + ½, j + ½, k + ½) / (X, Y, Z) · (high - low). float32, or float16 like sh: then the device stores halves
            and computes with float32, and gradients become float16 when they are complete. Or another field,
            whose `march` says how it is sampled: then sh is None and box is the field's.
        sh: [X, Y, Z, K, 3], K = 1, 4 or 9 coefficients for degree 0, 1 or 2, as for Gaussians.
        rays_o: [..., 3] origins in the world, which may lie in the box.
        rays_d: [..., 3] directions of any length above 0.
        box: [2, 3] lower and upper corner in the world.
        background: [3] rgb; black by default.
        steps_per_unit: samples a world unit; by default one a voxel, along the axis where voxels are smallest.
        jitter: sample at random places; the same `seed` gives the same ones.
        skip_empty: pass over bricks of 8³ voxels without a positive density, which changes neither result nor gradient.
        contracted: go on to infinity, through space that is contracted around the box (Barron et al. 2022, Mip-NeRF 360): x,
            from the middle in half sides, is where it is for m = max |x| ≤ 1, and else at (2 - 1/m) x/m; voxels divide the box
            twice as large. δ is equal in distances from where the ray is closest to the middle, contracted likewise beyond half
            the longest side, and densities are per such distances.

    Returns:
        Colours [..., 3], transmittances [...] and depths [...] (from the ray's origin, in world units, weighted by w).

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value; in the backward pass, if torch is to be
            deterministic and the device adds up gradients atomically.
    """
    if not isinstance(density, Tensor) and hasattr(density, "march"):
        if sh is not None or box is not None or contracted:
            raise SplatError(
                "sh and box belong to a grid of voxels, as does contracted; give sh=None and no box with other fields"
            )
        how: dict[str, Any] = {"steps_per_unit": steps_per_unit, "jitter": jitter, "seed": seed, "skip_empty": skip_empty}
        return density.march(rays_o, rays_d, background=background, device=device, **how)
    tensors: dict[str, Any] = {"density": density, "sh": sh, "rays_o": rays_o, "rays_d": rays_d}
    if background is not None:
        tensors["background"] = background
    check_rays(tensors, features=("density", "sh"))
    bounds = Box.of(box)
    assert isinstance(density, Tensor) and isinstance(sh, Tensor)
    check_grid(density, sh)
    if steps_per_unit is None:
        steps_per_unit = voxels_per_unit(bounds, tuple(density.shape), contracted)
    march = March(bounds, steps_of(steps_per_unit), jitter, seed, skip_empty, contracted)
    coefficients = sh.shape[3]
    return march_rays(
        [pack(density, sh)], rays_o, rays_d, background, march, device, lambda device, grid: Volume(device, grid, coefficients)
    )


def steps_of(steps_per_unit: float) -> float:
    """Raise SplatError unless so many samples a unit are possible."""
    if not 0 < steps_per_unit < float("inf"):
        raise SplatError(f"steps_per_unit is {steps_per_unit}; it must be above 0")
    return float(steps_per_unit)


def march_rays(
    parameters: Sequence[Tensor],
    rays_o: Tensor,
    rays_d: Tensor,
    background: Tensor | None,
    march: March,
    device: Device | str | None,
    field: Callable[..., Marched],
) -> tuple[Tensor, Tensor, Tensor]:
    """Colours, transmittances and depths of rays through the field that `field` makes of a device and of these parameters, as
    arrays."""
    if background is None:
        background = rays_o.new_zeros(3)
    directions = torch.nn.functional.normalize(rays_d, dim=-1)
    device = device_for(parameters[0], device)
    shape = rays_o.shape[:-1]
    flat = (rays.reshape(-1, 3).contiguous() for rays in (rays_o, directions))
    size = (shape[-1], shape[-2]) if len(shape) > 1 and 0 not in shape else ()
    color, transmittance, depth = _Render.apply(size, march, device, field, *flat, background, *parameters)
    return color.reshape(*shape, 3), transmittance.reshape(shape), depth.reshape(shape)


def picture_of(field: Marched, march: March, camera: Camera, background: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a camera sees: [height, width, 3], from 0 to 1."""
    device = field.device
    image = Image.empty(device, camera.width * camera.height)
    recorder = device.record()
    field.record_occupancy(recorder, march)
    rays = camera_rays(device, recorder, [camera])
    field.record_forward(recorder, march, rays, device.memory.array(background), image)
    recorder.submit()
    return np.clip(image.colors.numpy(), 0, 1).reshape(camera.height, camera.width, 3)


def pack(density: Tensor, sh: Tensor) -> Tensor:
    """[X, Y, Z, row_floats(K)], `to_voxel_order`."""
    coefficients = sh.shape[3]
    padding = density.new_zeros(*density.shape, row_floats(coefficients) - 1 - 3 * coefficients)
    return to_voxel_order(torch.cat([density[..., None], sh.flatten(3), padding], dim=-1))


def voxels_per_unit(box: Box, size: tuple[int, ...], contracted: bool = False) -> float:
    """Voxels a world unit, along the axis where they are smallest, where nothing is contracted."""
    sides = box.sides * (2 if contracted else 1)
    return float(max(n / side for n, side in zip(size, sides, strict=True)))


class _Render(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        size: tuple[int, ...],
        march: March,
        device: Device,
        field: Callable[..., Marched],
        rays_o: Tensor,
        rays_d: Tensor,
        background: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        array = device.memory.array
        volume = field(device, *(stored(device, part.detach()) for part in parameters))
        rays = Rays(array(rays_o.detach()), array(rays_d.detach()), *size)
        image = Image.empty(device, rays.count)
        behind = array(background.detach().contiguous())
        recorder = device.record()
        volume.record_occupancy(recorder, march)
        volume.record_forward(recorder, march, rays, behind, image)
        recorder.submit()
        dtypes = [part.dtype for part in parameters]
        keep(ctx, (volume, march, rays, behind, image, dtypes), rays_o, rays_d, background, *parameters)
        return as_tensor(image.colors, rays_o), as_tensor(image.transmittances, rays_o), as_tensor(image.depths, rays_o)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *v_results: Tensor) -> tuple[Tensor | None, ...]:
        volume, march, rays, behind, image, dtypes = kept(ctx)
        device = volume.device
        v_image = Image(*(device.memory.array(v.contiguous()) for v in v_results))
        wanted = ctx.needs_input_grad[4:]
        v_parameters: list[Tensor | None] = [None] * len(dtypes)
        v_rays = None
        of_rays, of_background, of_parameters = any(wanted[:2]), wanted[2], any(wanted[3:])
        if of_rays or of_parameters:
            if volume.groups == 0:
                alert_not_deterministic("volume.render")
            if of_rays:
                v_rays = Rays(*(device.memory.empty((rays.count, 3)) for _ in range(2)))
            gradients = volume.empty_gradients()
            recorder = device.record()
            recorder.clear(gradients)
            volume.record_backward(recorder, march, rays, behind, image, v_image, gradients, v_rays=v_rays)
            recorder.submit()
            sums = volume.parts(as_tensor(gradients, v_results[0]).sum(0))
            v_parameters = [part.to(dtype) for part, dtype in zip(sums, dtypes, strict=True)]
        v_ends = [as_tensor(v, v_results[0]) for v in (v_rays.origins, v_rays.directions)] if v_rays else [None, None]
        v_background = None
        if of_background:
            v_background = (v_results[0] * as_tensor(image.transmittances, v_results[0])[:, None]).sum(0)
        return None, None, None, None, *v_ends, v_background, *v_parameters


def check_rays(tensors: dict[str, Tensor], features: Collection[str] = ()) -> None:
    """Raise SplatError unless these are float32, or float16 if they are `features`, on one device, and the rays and the
    background, if it is among them, usable."""
    for name, tensor in tensors.items():
        if tensor is None:
            raise SplatError(f"{name} is None; give a torch tensor")
    check_tensors(tensors, halves=features)
    rays_o, rays_d, background = tensors["rays_o"], tensors["rays_d"], tensors.get("background")
    if rays_o.dim() < 1 or rays_o.shape[-1] != 3:
        raise SplatError(f"rays_o has shape {list(rays_o.shape)}; expected [..., 3]")
    if rays_d.shape != rays_o.shape:
        raise SplatError(f"rays_d has shape {list(rays_d.shape)}; give it the shape of rays_o, {list(rays_o.shape)}")
    if background is not None and background.shape != (3,):
        raise SplatError(f"background has shape {list(background.shape)}; expected [3]")
    others = {"rays_o": rays_o, "rays_d": rays_d}
    if background is not None:
        others["background"] = background
    for name, tensor in others.items():
        if not torch.isfinite(tensor).all():
            raise SplatError(f"{name} holds a number that is not finite; check where it comes from")
    if (rays_d == 0).all(-1).any():
        raise SplatError("rays_d holds a direction of length 0; leave that ray out")


def check_grid(density: Tensor, sh: Tensor) -> None:
    """Raise SplatError unless these are the density and the coefficients of one grid."""
    if density.dim() != 3 or not all(1 <= n <= MOST_VOXELS for n in density.shape):
        raise SplatError(f"density has shape {list(density.shape)}; expected [X, Y, Z], each from 1 to {MOST_VOXELS}")
    if sh.dim() != 5 or sh.shape[:3] != density.shape or sh.shape[3] not in COEFFICIENTS or sh.shape[4] != 3:
        expected = ", ".join(map(str, density.shape))
        raise SplatError(f"sh has shape {list(sh.shape)}; expected [{expected}, K, 3] with K = 1, 4 or 9")
    if density.dtype != sh.dtype:
        raise SplatError(f"density has dtype {density.dtype} and sh {sh.dtype}; convert both to one")
    for name, tensor in (("density", density), ("sh", sh)):
        if not torch.isfinite(tensor).all():
            raise SplatError(f"{name} holds a number that is not finite; check where it comes from")
