"""2D Gaussian splatting for torch: `rasterization_2dgs`, gsplat's function of that name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import Accumulate, accumulation
from splat_py.gpu.autograd import opaque
from splat_py.gpu.device import Device
from splat_py.splats.blended_features import blended_features
from splat_py.splats.data import Settings
from splat_py.splats.depth_maps import depth_to_normal
from splat_py.splats.meta import meta_of
from splat_py.splats.rasterization import HALVES, device_to_render
from splat_py.splats.ray_splats import SURFEL, project_for_rays
from splat_py.splats.surface import rasterize_surface, with_densify
from splat_py.splats.tensors import check_tensors
from splat_py.splats.tiles import bin_tiles
from splat_py.splats.validation import Inputs, Options, RenderMode, check_cameras, check_options, check_shapes


@opaque
def rasterization_2dgs(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = False,
    tile_size: int | None = None,
    backgrounds: Tensor | None = None,
    render_mode: RenderMode = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    distloss: bool = False,
    depth_mode: Literal["expected", "median"] = "expected",
    *,
    accumulate: Accumulate = "auto",
    max_alpha: float = 0.999,
    device: Device | str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor, dict[str, Any]]:
    """Render surfels, flat Gaussians, from C pinhole cameras (Huang et al. 2024), with gsplat's signature and conventions.

    A pixel's ray meets each surfel's plane in a point, and the surfel fades with that point's distance from its mean; but no
    surfel is smaller on the image than a Gaussian of ½ pixel² variance, so that those seen edge on stay visible. Surfels that
    reach behind the camera within one standard deviation are culled, and of planes nothing is seen that is behind the camera
    (gsplat draws it). Depths are those of the means, as with gsplat, and not of the points.

    Differentiable in all tensors, intrinsics included, once. Arguments as of `rasterization`, and:

    Args:
        scales: [..., N, 3] standard deviations > 0 along a surfel's two axes, world units. The third is ignored: the third axis
            is the surfel's normal.
        eps2d: of no effect, as with gsplat.
        distloss: also render depth distortion, Σ 2 w_i w_j (z_i - z_j) over all i and all j in front of i; not with "RGB".
        depth_mode: which depth `surf_normals` are of, "expected" (the image's last channel) or "median".

    Returns:
        Images [..., C, H, W, D'] and alphas [..., C, H, W, 1], as of `rasterization`.
        Normals Σ w n [..., C, H, W, 3] in the world, towards the camera.
        Normals of the depth map [..., C, H, W, 3], a first dimension of 1 left out, as gsplat does; None where `render_mode`
        is not "RGB+D" or "RGB+ED".
        Distortion [..., C, H, W, 1], zero without `distloss`.
        Median depth [..., C, H, W, 1], of the last surfel that more than half the light comes to; 0 where there is none.
        A dictionary as of `rasterization`, but in the place of `conics` with `ray_transforms` [..., C, N, 3, 3] and `normals`
        [..., C, N, 3] in camera space; with `render_distort`; and with `gradient_2dgs` [..., C, N, 2], zeros whose gradient is
        about that of the means on the image: `DefaultStrategy(key_for_gradient="gradient_2dgs")` refines by it.

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value, or no device can render.
        NotImplementedError: absgrad with more channels than one pass takes, 32 with normals and distortion.
    """
    inputs = Inputs(means, quats, scales, opacities, colors, viewmats, Ks, backgrounds)
    options = Options(
        width=width,
        height=height,
        near_plane=near_plane,
        far_plane=far_plane,
        radius_clip=radius_clip,
        eps2d=eps2d,
        sh_degree=sh_degree,
        packed=packed,
        tile_size=tile_size,
        render_mode=render_mode,
        sparse_grad=sparse_grad,
        absgrad=absgrad,
        rasterize_mode="classic",
        camera_model="pinhole",
        extra_signals_sh_degree=None,
        accumulate=accumulate,
        max_alpha=max_alpha,
        falloff="GaussianFalloff",
    )
    if depth_mode not in ("expected", "median"):
        raise SplatError(f"depth_mode is {depth_mode!r}; use expected or median")
    if "D" not in render_mode and distloss:
        raise SplatError(f"distloss needs depth, which render_mode={render_mode!r} does not have; use D, ED, RGB+D or RGB+ED")
    check_tensors(inputs.named(), halves=HALVES)
    check_options(options)
    options = replace(options, width=int(width), height=int(height))
    if "RGB" not in render_mode:
        inputs = replace(inputs, colors=None, backgrounds=None)
    check_shapes(inputs, options)
    check_cameras(inputs)
    device = device_to_render(inputs, device)

    settings = Settings(
        tile_size=device.tuning.tile_size if tile_size is None else tile_size,
        absgrad=absgrad,
        max_alpha=max_alpha,
        near=near_plane,
        far=far_plane,
        radius_clip=radius_clip,
        accumulation=accumulation(device, accumulate),
        native_atomics=device.native_float_atomics,
        **SURFEL,
    )
    splats, normals = project_for_rays(
        means,
        quats,
        scales,
        opacities,
        viewmats,
        Ks,
        options.width,
        options.height,
        settings,
        packed=packed,
        sparse_grad=sparse_grad,
        device=device,
    )
    densify = torch.zeros_like(splats.means2d, requires_grad=torch.is_grad_enabled())
    ray_transforms = splats.conics.unflatten(-1, (3, 3))
    drawn = replace(splats, conics=with_densify(ray_transforms.flatten(-2), densify))
    lists = bin_tiles(
        splats,
        options.width,
        options.height,
        settings.tile_size,
        keep_isects=settings.per_isect,
        bounds=settings.bounds_constants(),
        device=device,
    )
    features, behind = blended_features(inputs, options, splats, settings, device)
    surface = rasterize_surface(
        drawn, features, normals, lists, options.width, options.height, behind, settings, distortion=distloss, device=device
    )
    lead = viewmats.shape[:-2]
    images, alphas, of_surfels, distortion = (
        part.unflatten(0, lead) for part in (surface.images, surface.alphas, surface.normals, surface.distortion)
    )
    median = surface.median_of(splats.depths).unflatten(0, lead)
    poses = torch.linalg.inv(viewmats)
    of_surfels = torch.einsum("...ij,...hwj->...hwi", poses[..., :3, :3], of_surfels)
    if "ED" in render_mode:
        images = torch.cat([images[..., :-1], images[..., -1:] / alphas.clamp(min=1e-10)], -1)
    of_depths = None
    if render_mode in ("RGB+D", "RGB+ED"):
        depth_map = images[..., -1:] if depth_mode == "expected" else median
        of_depths = depth_to_normal(depth_map, poses, Ks).squeeze(0)

    meta = meta_of(splats, lists, surface.rendered, lead, means.shape[-2])
    del meta["conics"]
    meta |= {"ray_transforms": ray_transforms, "normals": normals, "render_distort": distortion, "gradient_2dgs": densify}
    meta["backend"] = "native"
    return images, alphas, of_surfels, of_depths, distortion, median, meta
