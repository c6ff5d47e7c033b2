"""gsplat's stages of 3DGUT (Wu et al. 2025): Gaussians → splats by the unscented transform, and pixels from Gaussians along
rays, with the caller's tile lists."""

import math
from dataclasses import replace
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from splat_py.gpu.autograd import graph_break
from splat_py.gpu.tensors import as_tensor, check_shape, check_tensors
from splat_py.gsplat.assertions import ensure_shape
from splat_py.gsplat.cameras import checked_cameras
from splat_py.gsplat.checks import device_to_differentiate
from splat_py.gsplat.contributors import Blended
from splat_py.gsplat.pixels import Rows, prepare
from splat_py.gsplat.projection import project_gaussians
from splat_py.gsplat.rendering import check_config, sigma_points, without_degenerate
from splat_py.gsplat.version import by_position
from splat_py.render.cameras import midway
from splat_py.render.options import Options
from splat_py.render.project import project
from splat_py.render.rasterization import by_distance, in_camera
from splat_py.render.rasterize import rasterize


@by_position("1.5.3", 19, "rolling_shutter viewmats_rs")
@graph_break
def fully_fused_projection_with_ut(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    calc_compensations: bool = False,
    camera_model: str = "pinhole",
    ut_params: Any = None,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: Any = None,
    lidar_coeffs: Any = None,
    external_distortion_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: Tensor | None = None,
    global_z_order: bool = True,
) -> tuple[Tensor | None, ...]:
    """Project Gaussians to splats of C cameras by the unscented transform. Arguments are those of `splat_py.rasterization`
    with `with_ut`, and of `fully_fused_projection`. Differentiable, which gsplat's function is not, in all tensors but
    opacities. SplatError for a wrong shape, dtype, device or value; NotImplementedError for lidars.

    Returns:
        radii int32 [..., C, N, 2] (0 if culled), means2d [..., C, N, 2], depths [..., C, N], conics [..., C, N, 3] and
        compensations [..., C, N], or None without `calc_compensations`.
    """
    arguments = dict(locals())
    cameras = checked_cameras("fully_fused_projection_with_ut", arguments)
    options: dict[str, Any] = {
        "camera_model": cameras.model,
        "shutter": cameras.shutter,
        "with_ut": True,
        "ut_params": sigma_points(ut_params),
    }
    options |= Options.same_named(arguments)
    means = without_degenerate(means, quats, scales)
    gaussians, seen = (means, quats, scales, opacities), (viewmats, Ks, width, height)
    # gsplat's radii are always those of compensated opacities.
    splats, compensations = project_gaussians(*gaussians, *seen, True, options, lenses=cameras.lenses, viewmats_rs=viewmats_rs)
    if not global_z_order and camera_model != "ftheta":
        splats = by_distance(splats, means, viewmats if viewmats_rs is None else midway(viewmats, viewmats_rs))
    return splats.radii, splats.means2d, splats.depths, splats.conics, compensations if calc_compensations else None


@by_position("1.5.3", 16, "radial_coeffs tangential_coeffs thin_prism_coeffs ftheta_coeffs rolling_shutter viewmats_rs")
def rasterize_to_pixels_eval3d(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    colors: Tensor,
    opacities: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    backgrounds: Tensor | None = None,
    masks: Tensor | None = None,
    camera_model: str = "pinhole",
    ut_params: Any = None,
    rays: Tensor | None = None,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: Any = None,
    lidar_coeffs: Any = None,
    external_distortion_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: Tensor | None = None,
    use_hit_distance: bool = False,
    return_normals: bool = False,
    renderer_config: Any = None,
) -> tuple[Tensor, Tensor]:
    """Blend Gaussians where the pixels' rays come nearest to their means, in the caller's tile lists. Arguments are those of
    `splat_py.rasterization` with `with_eval3d`, and of `rasterize_to_pixels`. Differentiable in all tensors. SplatError for a
    wrong shape, dtype, device or value; NotImplementedError for lidars.

    Args:
        colors, opacities: [..., C, N, D] and [..., C, N].
        rays: [..., C, H, W, 6], or a shape that broadcasts to it or has as many elements.
        use_hit_distance: put distances along rays, Σ w d, in the place of the last channel.
        ut_params, return_normals, renderer_config: do not affect results.

    Returns:
        Colours [..., C, H, W, D] and alphas [..., C, H, W, 1].
    """
    return _blend(locals(), False)[:2]


def rasterize_to_pixels_eval3d_extra(
    *args: Any,
    return_sample_counts: bool = False,
    return_last_ids: bool = True,
    unsafe_masked_tile_outputs: bool = False,
    **named: Any,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """`rasterize_to_pixels_eval3d` with its arguments. Also returns the place in `flatten_ids` of each pixel's last Gaussian,
    int32 [..., C, H, W], -1 without one; with `return_sample_counts` how many each pixel blends, int32 [..., C, H, W]; and with
    `return_normals` Σ w n in world space, [..., C, H, W, 3]."""
    bound = signature(rasterize_to_pixels_eval3d).bind(*args, **named)
    bound.apply_defaults()
    images, alphas, last, counts, normals = _blend(bound.arguments, return_sample_counts)
    return images, alphas, last if return_last_ids else None, counts, normals


@graph_break
def _blend(arguments: dict[str, Any], counted: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """`rasterize_to_pixels_eval3d_extra` of the arguments of `rasterize_to_pixels_eval3d`."""
    given = SimpleNamespace(**arguments)
    check_config(given.renderer_config, True)
    size = int(given.image_width), int(given.image_height)
    of_cameras = {"opacities": None, "width": size[0], "height": size[1], "global_z_order": False}
    cameras = checked_cameras("rasterize_to_pixels_eval3d", arguments | of_cameras)
    means, viewmats, colors, opacities = given.means, given.viewmats, given.colors, given.opacities
    rays, backgrounds, tile_size = given.rays, given.backgrounds, given.tile_size
    lead = viewmats.shape[:-2]
    check_tensors({"means": means, "colors": colors, "opacities": opacities, "backgrounds": backgrounds, "rays": rays})
    check_shape("colors", colors, (*lead, means.shape[-2], "D"))
    # Counting reads the pixels' rays.
    device, with_hits = device_to_differentiate(means), given.use_hit_distance or given.return_normals or counted
    kind: dict[str, Any] = {
        "camera_model": cameras.model,
        "shutter": cameras.shutter,
        "primitive": "RayGaussian",
        "own_rays": rays is not None,
        "with_hits": with_hits,
        # The caller's lists hold what is between the planes.
        "near_plane": 1e-6,
        "far_plane": math.inf,
    }
    options, opaque = Options.on(device, tile_size, **kind), means.new_ones(means.shape[:-1])
    gaussians = means, given.quats, given.scales, opaque
    others: dict[str, Any] = {"lenses": cameras.lenses, "viewmats_rs": given.viewmats_rs, "device": device}
    splats = project(*gaussians, viewmats, given.Ks, *size, options, **others)
    if rays is not None:
        shape = *lead, *size[::-1], 6
        # gsplat reads them one after the other.
        rays = rays.reshape(shape) if rays.numel() == math.prod(shape) else ensure_shape("rays", rays, shape)
        splats = replace(splats, rays=in_camera(rays, viewmats).flatten(0, -4))
    rows: Rows = {"colors": (colors, ("D",)), "opacities": (opacities, ())}
    lists = given.isect_offsets, given.flatten_ids, given.masks, False, False
    *_, options, tiles = prepare(splats.means2d, rows, backgrounds, size, tile_size, *lists, "auto", **kind)
    # Projected opacities are 1 so far, or 0 if culled.
    splats = replace(splats, opacities=opacities * splats.opacities)
    kept = colors.shape[-1] - given.use_hit_distance
    if with_hits:
        assert splats.normals is not None
        colors = torch.cat([colors[..., :kept], torch.nn.functional.pad(splats.normals, (0, 1))], -1)
        if backgrounds is not None:
            backgrounds = torch.cat([backgrounds[..., :kept], backgrounds.new_zeros(*lead, 3), backgrounds[..., -1:]], -1)
    rendered = rasterize(splats, colors, tiles, *size, backgrounds, options, device=device)
    images, alphas = (part.unflatten(0, lead) for part in (rendered.colors, rendered.alphas))
    normals = None
    if with_hits:
        images, normals, distances = images.split([kept, 3, 1], -1)
        images = torch.cat([images, distances], -1) if given.use_hit_distance else images.contiguous()
        normals = normals @ viewmats[..., None, :3, :3] if given.return_normals else None
    # A pixel's place in its tile's list, past its last Gaussian.
    past = as_tensor(rendered.arrays.n_contrib, colors).view(torch.int32).unflatten(0, lead)
    first = given.isect_offsets.int().repeat_interleave(tile_size, -1).repeat_interleave(tile_size, -2)
    last = torch.where(past > 0, first[..., : size[1], : size[0]] + past - 1, -1)
    counts = None
    if counted:
        assert splats.rays is not None
        found = Blended.of(splats, tiles, options, *size, device)
        counts = torch.where(last < 0, 0, found.counted(tuple(last.shape))[0].clamp(min=1))
    return images, alphas, last, counts, normals
