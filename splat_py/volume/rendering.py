"""Differentiable rendering of a voxel grid for torch: `render`, one autograd function around the march and its replay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import alert_not_deterministic
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import first_derivative, keep, kept, opaque
from splat_py.gpu.device import Device, device_for
from splat_py.volume.marching import COEFFICIENTS, Box, Image, March, Rays, Volume, row_floats, to_voxel_order

_MOST_VOXELS = 1022


@opaque
def render(
    density: Tensor,
    sh: Tensor,
    rays_o: Tensor,
    rays_d: Tensor,
    box: Any,
    *,
    background: Tensor | None = None,
    steps_per_unit: float | None = None,
    jitter: bool = False,
    seed: int = 0,
    skip_empty: bool = True,
    device: Device | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Render a radiance field along rays, by emission and absorption (Vicini et al. 2021, Path Replay Backpropagation).

    A ray's chord through the box is cut into N = ⌈length · steps_per_unit⌉ equal steps δ, sampled in their middles or, with
    `jitter`, at random places in them. With α_i = 1 - exp(-σ_i δ), T_i = Π_{j<i} (1 - α_j) and w_i = T_i α_i, the results are
    Σ w_i c_i + T_N background, T_N and Σ w_i t_i. Density and coefficients are interpolated trilinearly between the centres of
    voxels, and stay constant from the outermost centres to the faces of the box; then σ = max(0, density) and
    c = max(0, Σ_k Y_k(d) sh_k + ½). A ray stops where T falls to 1e-6: what is left sees the background, and the gradient is
    that of the shorter sum.

    Differentiable in density, sh and background, through all three results, in memory that does not depend on N: nothing but
    the results is saved, the backward pass marches again.

    Args:
        density: [X, Y, Z] per world unit; voxel (i, j, k) has its centre at
            low + (i + ½, j + ½, k + ½) / (X, Y, Z) · (high - low).
        sh: [X, Y, Z, K, 3], K = 1, 4 or 9 coefficients for degree 0, 1 or 2, as for Gaussians.
        rays_o: [..., 3] origins in the world, which may lie in the box.
        rays_d: [..., 3] directions of any length above 0.
        box: [2, 3] lower and upper corner in the world.
        background: [3] rgb; black by default.
        steps_per_unit: samples a world unit; by default one a voxel, along the axis where voxels are smallest.
        jitter: sample at random places; the same `seed` gives the same ones.
        skip_empty: pass over bricks of 8³ voxels without a positive density, which changes neither result nor gradient.

    Returns:
        Colours [..., 3], transmittances [...] and depths [...] (from the ray's origin, in world units, weighted by w).

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value; in the backward pass, if torch is to be
            deterministic and the device adds up gradients atomically.
    """
    tensors = {"density": density, "sh": sh, "rays_o": rays_o, "rays_d": rays_d}
    if background is not None:
        tensors["background"] = background
    _check_tensors(tensors)
    bounds = Box.of(box)
    _check_values(density, sh, rays_o, rays_d, background)
    if steps_per_unit is None:
        steps_per_unit = voxels_per_unit(bounds, tuple(density.shape))
    if not 0 < steps_per_unit < float("inf"):
        raise SplatError(f"steps_per_unit is {steps_per_unit}; it must be above 0")
    march = March(bounds, float(steps_per_unit), jitter, seed, skip_empty)
    if background is None:
        background = density.new_zeros(3)
    grid = pack(density, sh)
    directions = torch.nn.functional.normalize(rays_d.detach(), dim=-1)
    device = device or device_for(density)
    shape = rays_o.shape[:-1]
    flat = (rays.reshape(-1, 3).contiguous() for rays in (rays_o.detach(), directions))
    size = (shape[-1], shape[-2]) if len(shape) > 1 and 0 not in shape else ()
    color, transmittance, depth = _Render.apply(grid, *flat, background, size, march, device)
    return color.reshape(*shape, 3), transmittance.reshape(shape), depth.reshape(shape)


def pack(density: Tensor, sh: Tensor) -> Tensor:
    """[X, Y, Z, row_floats(K)], `to_voxel_order`."""
    coefficients = sh.shape[3]
    padding = density.new_zeros(*density.shape, row_floats(coefficients) - 1 - 3 * coefficients)
    return to_voxel_order(torch.cat([density[..., None], sh.flatten(3), padding], dim=-1))


def voxels_per_unit(box: Box, size: tuple[int, ...]) -> float:
    """Voxels a world unit, along the axis where they are smallest."""
    return float(max(n / side for n, side in zip(size, box.sides, strict=True)))


class _Render(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        grid: Tensor,
        rays_o: Tensor,
        rays_d: Tensor,
        background: Tensor,
        size: tuple[int, ...],
        march: March,
        device: Device,
    ) -> tuple[Tensor, Tensor, Tensor]:
        array = device.memory.array
        coefficients = {row_floats(k): k for k in COEFFICIENTS}[grid.shape[3]]
        volume = Volume(device, array(grid), coefficients)
        rays = Rays(array(rays_o), array(rays_d), *size)
        image = Image.empty(device, rays.count)
        behind = array(background.detach().contiguous())
        recorder = device.record()
        volume.record_occupancy(recorder, march)
        volume.record_forward(recorder, march, rays, behind, image)
        recorder.submit()
        keep(ctx, (volume, march, rays, behind, image), grid, rays_o, rays_d, background)
        return (
            _tensor(image.colors, grid),
            _tensor(image.transmittances, grid),
            _tensor(image.depths, grid),
        )

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *v_results: Tensor) -> tuple[Tensor | None, ...]:
        volume, march, rays, behind, image = kept(ctx)
        device = volume.device
        v_image = Image(*(device.memory.array(v.contiguous()) for v in v_results))
        v_grid = None
        if ctx.needs_input_grad[0]:
            if volume.groups == 0:
                alert_not_deterministic("volume.render")
            gradients = volume.empty_gradients()
            recorder = device.record()
            recorder.clear(gradients)
            volume.record_backward(recorder, march, rays, behind, image, v_image, gradients)
            recorder.submit()
            v_grid = _tensor(gradients, v_results[0]).sum(0)
        v_background = None
        if ctx.needs_input_grad[3]:
            v_background = (v_results[0] * _tensor(image.transmittances, v_results[0])[:, None]).sum(0)
        return v_grid, None, None, v_background, None, None, None


def _tensor(array: Array, like: Tensor) -> Tensor:
    return array.tensor().to(like.device)


def _check_tensors(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise SplatError(f"{name} is a {type(tensor).__name__}; give a torch tensor")
        if tensor.dtype != torch.float32:
            raise SplatError(f"{name} has dtype {tensor.dtype}; convert it to torch.float32")
        if tensor.device != tensors["density"].device:
            raise SplatError(
                f"{name} is on {tensor.device} and density on {tensors['density'].device}; move them to one device"
            )


def _check_values(density: Tensor, sh: Tensor, rays_o: Tensor, rays_d: Tensor, background: Tensor | None) -> None:
    check_grid(density, sh)
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
    if density.dim() != 3 or not all(1 <= n <= _MOST_VOXELS for n in density.shape):
        raise SplatError(f"density has shape {list(density.shape)}; expected [X, Y, Z], each from 1 to {_MOST_VOXELS}")
    if sh.dim() != 5 or sh.shape[:3] != density.shape or sh.shape[3] not in COEFFICIENTS or sh.shape[4] != 3:
        expected = ", ".join(map(str, density.shape))
        raise SplatError(f"sh has shape {list(sh.shape)}; expected [{expected}, K, 3] with K = 1, 4 or 9")
    for name, tensor in (("density", density), ("sh", sh)):
        if not torch.isfinite(tensor).all():
            raise SplatError(f"{name} holds a number that is not finite; check where it comes from")
