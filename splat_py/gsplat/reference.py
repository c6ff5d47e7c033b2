"""The whole renderer in torch's own operations: slow, differentiable by torch, and what kernels are compared with."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from splat_py.errors import SplatError
from splat_py.gsplat.blending import PART, Pixels, TiledSplats
from splat_py.gsplat.cameras import proj, world_to_cam
from splat_py.gsplat.checks import leading
from splat_py.gsplat.covariances import quat_scale_to_covar_preci
from splat_py.gsplat.harmonics import evaluate_harmonics
from splat_py.gsplat.intersection import isect_offset_encode, isect_tiles
from splat_py.splats.tensors import check_shape

# Standard deviations to where an opaque splat's α is 1/255, as gsplat rounds them.
_EXTENT = 3.33
_MIN_DETERMINANT = 1e-10


def fully_fused_projection(
    means: Tensor,
    covars: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    calc_compensations: bool = False,
    camera_model: str = "pinhole",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gaussians with covariances [..., N, 3, 3] → splats of C cameras; arguments as of `projection.fully_fused_projection`.

    Returns:
        radii int32 [..., C, N, 2] (0 where culled), means2d [..., C, N, 2], depths [..., C, N], conics [..., C, N, 3], and the
        compensations [..., C, N] or None.
    """
    centers, sigmas = world_to_cam(means, covars, viewmats)
    depths = centers[..., 2]
    in_depth = (depths > near_plane) & (depths < far_plane)
    # What is not between the planes is put where its derivatives are finite.
    safe = torch.where(in_depth[..., None], centers, centers.new_tensor((0.0, 0.0, 1.0)))
    means2d, sharp = proj(safe, sigmas, Ks, width, height, camera_model)
    blurred = sharp + eps2d * torch.eye(2, dtype=means.dtype, device=means.device)
    (xx, xy), yy = blurred[..., 0, :].unbind(-1), blurred[..., 1, 1]
    determinant = (xx * yy - xy * xy).clamp(min=_MIN_DETERMINANT)
    conics = torch.stack((yy, -xy, xx), -1) / determinant[..., None]
    compensations = None
    if calc_compensations:
        before = sharp[..., 0, 0] * sharp[..., 1, 1] - sharp[..., 0, 1] * sharp[..., 1, 0]
        compensations = (before / determinant).clamp(min=0).sqrt()

    with torch.no_grad():
        radii = (_EXTENT * torch.stack((xx, yy), -1).sqrt()).ceil()
        meets = (means2d + radii > 0) & (means2d - radii < means2d.new_tensor((width, height)))
        radii = torch.where((in_depth & meets.all(-1))[..., None], radii, 0).int()
    return radii, means2d, depths, conics, compensations


def rasterize_to_pixels(
    means2d: Tensor,
    conics: Tensor,
    colors: Tensor,
    opacities: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    backgrounds: Tensor | None = None,
    batch_per_iter: int = 100,
) -> tuple[Tensor, Tensor]:
    """Splats [..., N, ·] → images [..., H, W, D], alphas [..., H, W, 1]; arguments as of `pixels.rasterize_to_pixels`.

    Takes memory for a part of the lists at a time, in both directions; `batch_per_iter`, gsplat's way to ask for that, means
    nothing here.
    """
    *images, count = leading("means2d", means2d, 2)
    check_shape("colors", colors, (*images, count, "D"))
    size = image_width, image_height
    splats = TiledSplats.of(means2d, conics, opacities, size, tile_size, isect_offsets, flatten_ids)
    channels = colors.shape[-1]
    flat = colors.reshape(-1, channels)
    groups, parts, alphas = list(splats.groups()), [], []
    for tiles in groups:
        image, T = _blend_tiles(splats, flat, tiles)
        parts.append(image)
        alphas.append(1 - T[..., None])
    order = torch.cat(groups).argsort()

    def assemble(tiled: Tensor) -> Tensor:
        grid = tiled[order].reshape(-1, splats.rows, splats.columns, tile_size, tile_size, tiled.shape[-1])
        whole = grid.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return whole[:, :image_height, :image_width].reshape(*images, image_height, image_width, -1)

    image, alpha = assemble(torch.cat(parts)), assemble(torch.cat(alphas))
    if backgrounds is not None:
        check_shape("backgrounds", backgrounds, (*images, channels))
        image = image + (1 - alpha) * backgrounds[..., None, None, :]
    return image, alpha


def _blend_tiles(splats: TiledSplats, colors: Tensor, tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Colours [T, P, D] and transmittances [T, P] of the pixels of tiles [T]."""
    x, _ = splats.pixels(tiles)
    image = colors.new_zeros(*x.shape, colors.shape[-1])
    T, done = colors.new_ones(x.shape), torch.zeros_like(x, dtype=torch.bool)

    def blend(image: Tensor, T: Tensor, done: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        listed = splats.part(tiles, first)
        weights, pixels = Pixels(T, done).blend(splats.alphas(tiles, listed))
        return image + weights @ colors[listed.clamp(min=0)], pixels.T, pixels.done

    differentiated = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (splats.means2d, splats.conics, splats.opacities, colors)
    )
    # Backward evaluates a part again rather than keeping every pixel's α.
    run = partial(checkpoint, blend, use_reentrant=False, preserve_rng_state=False) if differentiated else blend
    for first in range(0, splats.max_length(tiles), PART):
        image, T, done = run(image, T, done, first)
        if done.all():
            break
    return image, T


def rasterization(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    tile_size: int = 16,
    backgrounds: Tensor | None = None,
    render_mode: str = "RGB",
    rasterize_mode: str = "classic",
    channel_chunk: int = 32,
    batch_per_iter: int = 100,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Render as `splat_py.rasterization` does, without a kernel; arguments and results are those of that function.

    `channel_chunk` and `batch_per_iter` are gsplat's and mean nothing here.

    Raises:
        SplatError: an argument has the wrong shape or value.
    """
    if render_mode not in ("RGB", "D", "ED", "RGB+D", "RGB+ED"):
        raise SplatError(f"render_mode is {render_mode!r}; use RGB, D, ED, RGB+D or RGB+ED")
    *batch, count = leading("means", means, 3)
    check_shape("opacities", opacities, (*batch, count))
    cameras = leading("viewmats", viewmats, 4, 4)
    covars, _ = quat_scale_to_covar_preci(quats, scales, compute_preci=False)
    assert covars is not None
    radii, means2d, depths, conics, compensations = fully_fused_projection(
        means, covars, viewmats, Ks, width, height, eps2d, near_plane, far_plane, rasterize_mode == "antialiased"
    )
    effective = opacities[..., None, :].expand(*cameras, count)
    effective = effective if compensations is None else effective * compensations

    grid = math.ceil(width / tile_size), math.ceil(height / tile_size)
    tiles_per_gauss, isect_ids, flatten_ids = isect_tiles(means2d, radii, depths, tile_size, *grid)
    isect_offsets = isect_offset_encode(isect_ids, math.prod(cameras), *grid).reshape(*cameras, *grid[::-1])

    features = []
    if "RGB" in render_mode:
        features.append(_shaded(means, colors, viewmats, radii, sh_degree))
    if "D" in render_mode:
        features.append(depths[..., None])
        if backgrounds is not None:
            backgrounds = torch.cat((backgrounds, torch.zeros_like(backgrounds[..., :1])), -1)
            backgrounds = backgrounds if "RGB" in render_mode else backgrounds[..., -1:]
    images, alphas = rasterize_to_pixels(
        means2d, conics, torch.cat(features, -1), effective, width, height, tile_size, isect_offsets, flatten_ids, backgrounds
    )
    if "ED" in render_mode:
        images = torch.cat((images[..., :-1], images[..., -1:] / alphas.clamp(min=1e-10)), -1)
    return (
        images,
        alphas,
        {
            "batch_ids": None,
            "camera_ids": None,
            "gaussian_ids": None,
            "radii": radii,
            "means2d": means2d,
            "depths": depths,
            "conics": conics,
            "opacities": effective,
            "tile_width": grid[0],
            "tile_height": grid[1],
            "tiles_per_gauss": tiles_per_gauss,
            "isect_ids": isect_ids,
            "flatten_ids": flatten_ids,
            "isect_offsets": isect_offsets,
            "width": width,
            "height": height,
            "tile_size": tile_size,
            "n_batches": math.prod(batch),
            "n_cameras": cameras[-1],
        },
    )


def _shaded(means: Tensor, colors: Tensor, viewmats: Tensor, radii: Tensor, sh_degree: int | None) -> Tensor:
    """Colours [..., C, N, D] that the cameras see, of colours or harmonics for all of them or for each."""
    *cameras, count = radii.shape[:-1]
    batch = cameras[:-1]
    if sh_degree is None:
        check_shape("colors", colors, (*batch, count, "D"), (*cameras, count, "D"))
        return colors if colors.dim() > means.dim() else colors[..., None, :, :].expand(*cameras, count, -1)
    check_shape("colors", colors, (*batch, count, "K", 3), (*cameras, count, "K", 3))
    if colors.dim() == means.dim() + 1:
        colors = colors[..., None, :, :, :].expand(*cameras, *colors.shape[-3:])
    # -Rᵀt, as in the kernels: the inverse of a matrix is differentiated otherwise than that of a pose.
    eyes = -(viewmats[..., :3, :3].mT @ viewmats[..., :3, 3:])[..., None, :, 0]
    lit = evaluate_harmonics(sh_degree, means[..., None, :, :] - eyes, colors, (radii > 0).all(-1))
    return (lit + 0.5).clamp(min=0)
