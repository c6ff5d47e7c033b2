"""gsplat's `fully_fused_projection_2dgs` and `rasterize_to_pixels_2dgs` over our stages for surfels."""

from __future__ import annotations

import math

from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import Accumulate, accumulation
from splat_py.gpu.autograd import opaque
from splat_py.gpu.device import Operator, device_for
from splat_py.gsplat.blending import check_tiles
from splat_py.gsplat.checks import leading
from splat_py.gsplat.pixels import TILE_SIZES, Lists
from splat_py.splats.data import Settings
from splat_py.splats.project import ProjectedSplats
from splat_py.splats.surface import rasterize_surface, with_densify
from splat_py.splats.surfels import SHAPE, project_surfels
from splat_py.splats.tensors import check_shape, check_tensors
from splat_py.splats.tiles import TileGrid


@opaque
def fully_fused_projection_2dgs(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    packed: bool = False,
    sparse_grad: bool = False,
) -> tuple[Tensor, ...]:
    """Surfels → splats of C cameras (Huang et al. 2024).

    Differentiable in means, quats, scales, viewmats and Ks. Everything of a culled splat is zero. Arguments as of
    `splat_py.rasterization_2dgs`; eps2d is of no effect.

    Returns:
        radii int32 [..., C, N, 2] (0 where culled), means2d [..., C, N, 2], depths [..., C, N], ray transforms
        [..., C, N, 3, 3] and normals [..., C, N, 3] in camera space. Packed: whose each splat is, batch_ids, camera_ids and
        gaussian_ids int64 [nnz], and then the same with nnz in the place of ..., C, N.

    Raises:
        SplatError: an argument has the wrong shape, dtype or device.
    """
    check_tensors({"means": means, "quats": quats, "scales": scales, "viewmats": viewmats, "Ks": Ks})
    *batch, count = leading("means", means, 3)
    check_shape("quats", quats, (*batch, count, 4))
    check_shape("scales", scales, (*batch, count, 3))
    check_shape("viewmats", viewmats, (*batch, "C", 4, 4))
    cameras = viewmats.shape[-3]
    check_shape("Ks", Ks, (*batch, cameras, 3, 3))
    if sparse_grad and not packed:
        raise SplatError("sparse_grad needs packed=True, as only then it is known which Gaussians have a gradient")
    device = device_for(means)
    device.require(Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    settings = Settings(
        device.tuning.tile_size,
        near=near_plane,
        far=far_plane,
        radius_clip=radius_clip,
        native_atomics=device.native_float_atomics,
        **SHAPE,
    )
    splats, normals = project_surfels(
        means,
        quats,
        scales,
        means.new_ones(*batch, count),
        viewmats,
        Ks,
        width,
        height,
        settings,
        packed=packed,
        sparse_grad=sparse_grad,
        device=device,
    )
    results = splats.radii, splats.means2d, splats.depths, splats.conics.unflatten(-1, (3, 3)), normals
    gaussian_ids, image_ids = splats.gaussian_ids, splats.image_ids
    if gaussian_ids is None or image_ids is None:
        return results
    return image_ids // cameras, image_ids % cameras, gaussian_ids % max(count, 1), *results


@opaque
def rasterize_to_pixels_2dgs(
    means2d: Tensor,
    ray_transforms: Tensor,
    colors: Tensor,
    opacities: Tensor,
    normals: Tensor,
    densify: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    backgrounds: Tensor | None = None,
    masks: Tensor | None = None,
    packed: bool = False,
    absgrad: bool = False,
    distloss: bool = False,
    *,
    accumulate: Accumulate = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Blend surfels, as tiles list them. Arguments as of `rasterize_to_pixels`, where `...` are images, and:

    Args:
        ray_transforms: [..., N, 3, 3], or packed [nnz, 3, 3].
        colors: [..., N, D] or [nnz, D], whose last channel is depth, for distortion and the median.
        normals: [..., N, 3] or [nnz, 3] in camera space.
        densify: [..., N, 2] or [nnz, 2] of any value; its gradient is about that of the means on the image.
        backgrounds: [..., D]; 0 in the last channel, with `distloss`.
        distloss: also render the distortion of the last channel.

    Differentiable in means2d, ray_transforms, colors, opacities, normals and backgrounds.

    Returns:
        Colours [..., H, W, D], alphas [..., H, W, 1], normals [..., H, W, 3] in camera space, distortion [..., H, W, 1], zero
        without `distloss`, and the medians' last channel [..., H, W, 1].

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value.
        NotImplementedError: absgrad with more channels than one pass takes.
    """
    inputs = {"means2d": means2d, "ray_transforms": ray_transforms, "colors": colors, "opacities": opacities}
    check_tensors(inputs | {"normals": normals, "densify": densify, "backgrounds": backgrounds})
    splats = leading("means2d", means2d, 2)
    images = splats[:-1]
    if packed:
        check_shape("means2d", means2d, ("nnz", 2))
        images = leading("isect_offsets", isect_offsets, "tile_height", "tile_width")
    check_shape("ray_transforms", ray_transforms, (*splats, 3, 3))
    check_shape("colors", colors, (*splats, "D"))
    check_shape("opacities", opacities, splats)
    check_shape("normals", normals, (*splats, 3))
    check_shape("densify", densify, (*splats, 2))
    channels = colors.shape[-1]
    if channels == 0:
        raise SplatError("colors has no channels; give at least one")
    if tile_size not in TILE_SIZES:
        raise SplatError(f"tile_size is {tile_size!r}; use 4, 8 or 16")
    if backgrounds is not None:
        check_shape("backgrounds", backgrounds, (*images, channels))
        if distloss and (backgrounds[..., -1] != 0).any():
            raise SplatError("backgrounds is not 0 in its last channel, which is depth; distloss=True needs that")
    if masks is not None:
        check_shape("masks", masks, tuple(isect_offsets.shape))
    check_tiles(isect_offsets, images, (image_width, image_height), tile_size)
    lists = Lists.of(isect_offsets, flatten_ids, opacities.numel(), masks)

    device = device_for(means2d)
    device.require(Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    settings = Settings(
        tile_size,
        absgrad=absgrad,
        accumulation=accumulation(device, accumulate),
        native_atomics=device.native_float_atomics,
        **SHAPE,
    )
    rows, columns = isect_offsets.shape[-2:]
    tiles = lists.binned(device, TileGrid(tile_size, columns, rows, math.prod(images)), opacities.numel(), settings.per_isect)
    # Neither depths nor radii matter any more.
    shape = with_densify(ray_transforms.flatten(-2), densify)
    projected = ProjectedSplats(means2d, opacities, shape, opacities, tiles.ids.new_empty(0))
    surface = rasterize_surface(
        projected, colors, normals, tiles, image_width, image_height, backgrounds, settings, distortion=distloss, device=device
    )
    parts = surface.images, surface.alphas, surface.normals, surface.distortion, surface.median_of(colors[..., -1])
    blended, alphas, of_surfels, distortion, median = (
        part.reshape(*images, image_height, image_width, part.shape[-1]) for part in parts
    )
    return blended, alphas, of_surfels, distortion, median
