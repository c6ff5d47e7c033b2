"""Intersections of projected Gaussians' bounding boxes with tiles, as sorted 64-bit keys, and the splats of pixels, in torch.

`rasterization` uses `splat_py.render.tiles` instead, which bins by the exact ellipse; these functions return the lists.
"""

import math
from typing import Any

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.tensors import check_shape
from splat_py.gsplat.checks import leading
from splat_py.gsplat.contributors import Blended
from splat_py.gsplat.pixels import Rows, placed, prepare
from splat_py.gsplat.version import key_bits, max_alpha
from splat_py.render.images import ListSegment

_DEPTH_BITS = 32
_ALPHA_MIN = 1 / 255


@torch.no_grad()
def isect_tiles(
    means2d: Tensor,
    radii: Tensor,
    depths: Tensor,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    sort: bool = True,
    segmented: bool = False,
    packed: bool = False,
    n_images: int | None = None,
    image_ids: Tensor | None = None,
    gaussian_ids: Tensor | None = None,
    conics: Tensor | None = None,
    opacities: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Find intersections of splats with tiles. Not differentiable. SplatError if an argument has the wrong shape, or images and
    tiles do not fit into the keys.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] if packed; each leading index is an image, I in all.
        radii: [..., N, 2] or [nnz, 2], pixels to each side; a splat with a radius that is not positive meets no tile.
        depths: [..., N] or [nnz] float32, not negative.
        tile_size: pixels along a tile's side.
        tile_width, tile_height: tiles along an image's sides.
        sort: order intersections by image, tile and depth; otherwise splat by splat.
        packed: the splats of all images are one list, with `n_images` and `image_ids`.
        n_images: I; needed only if packed.
        image_ids: [nnz] image of each splat.
        segmented: ignored, but refused with packed=True.
        gaussian_ids: ignored.
        conics, opacities: [..., N, 3] and [..., N], or [nnz, 3] and [nnz]. With both, a splat meets only tiles in which its α
            reaches 1/255 (as Hanson et al. 2024); otherwise all that its bounding box meets.

    Returns:
        Number of tiles of each splat, int32 [..., N] or [nnz]; the key of each intersection, int64 [isects]: image, tile, and
        the depth's bits in the lower 32; and its splat, int32 [isects], an index into the splats of all images or into nnz.
    """
    images = leading("means2d", means2d, "N", 2)
    count = means2d.shape[-2]
    if packed:
        if image_ids is None or n_images is None:
            raise SplatError("packed=True needs image_ids and n_images; give both")
        if segmented:
            raise SplatError("segmented sort is not supported for packed inputs; leave out segmented or packed")
        check_shape("means2d", means2d, ("nnz", 2))
        check_shape("image_ids", image_ids, (count,))
        owners = image_ids.long()
    else:
        n_images = math.prod(images)
        owners = torch.arange(n_images, device=means2d.device).repeat_interleave(count)
    check_shape("radii", radii, (*images, count, 2))
    check_shape("depths", depths, (*images, count))
    tile_bits = key_bits(tile_width * tile_height)
    if key_bits(n_images) + tile_bits + _DEPTH_BITS > 64:
        raise SplatError(f"{n_images} images of {tile_width} × {tile_height} tiles do not fit 64-bit keys; use larger tiles")

    limits = torch.tensor((tile_width, tile_height), device=means2d.device)
    center, half = means2d.reshape(-1, 2) / tile_size, radii.reshape(-1, 2).to(means2d.dtype) / tile_size
    low = (center - half).floor().clamp(min=0).minimum(limits).long()
    high = (center + half).ceil().clamp(min=0).minimum(limits).long()
    visible = (radii.reshape(-1, 2) > 0).all(-1)
    columns, rows = torch.where(visible[:, None], high - low, 0).unbind(-1)
    tiles = columns * rows  # [M]

    splats = torch.repeat_interleave(tiles)
    # The index of each intersection among those of its splat, row by row.
    number = torch.arange(len(splats), device=splats.device) - (tiles.cumsum(0) - tiles)[splats]
    row = low[splats, 1] + number // columns[splats]
    column = low[splats, 0] + number % columns[splats]
    if conics is not None and opacities is not None:
        check_shape("conics", conics, (*images, count, 3))
        check_shape("opacities", opacities, (*images, count))
        corner = torch.stack((column, row), -1) * tile_size - means2d.reshape(-1, 2)[splats]
        nearest = _least_sigma(corner, tile_size, conics.reshape(-1, 3)[splats])
        meets = opacities.reshape(-1)[splats] * torch.exp(-nearest) >= _ALPHA_MIN
        splats, row, column = splats[meets], row[meets], column[meets]
        tiles = torch.bincount(splats, minlength=len(tiles))
    tile = (owners[splats] << tile_bits) + row * tile_width + column
    depth = depths.reshape(-1).float().contiguous().view(torch.int32).long() & 0xFFFFFFFF
    keys = (tile << _DEPTH_BITS) | depth[splats]
    if sort:
        keys, order = keys.sort(stable=True)
        splats = splats[order]
    return tiles.reshape(depths.shape).int(), keys, splats.int()


def _least_sigma(corner: Tensor, side: int, conics: Tensor) -> Tensor:
    """The least σ [isects] in squares of this side with their first corners [isects, 2] relative to splats' means: 0 around a
    mean, otherwise on one of the four sides."""
    low, high = corner, corner + side
    a, b, c = conics.unbind(-1)
    found = []
    for axis, along, across in ((0, a, c), (1, c, a)):
        for fixed in (low[:, axis], high[:, axis]):
            other = (-b * fixed / across).maximum(low[:, 1 - axis]).minimum(high[:, 1 - axis])
            found.append(0.5 * (along * fixed**2 + across * other**2) + b * fixed * other)
    inside = (low <= 0).all(-1) & (high >= 0).all(-1)
    return torch.where(inside, 0, torch.stack(found).amin(0))


@torch.no_grad()
def isect_offset_encode(isect_ids: Tensor, n_images: int, tile_width: int, tile_height: int) -> Tensor:
    """The first intersection of each tile among the sorted keys of `isect_tiles`: int32 [I, tile_height, tile_width].
    SplatError if `isect_ids` has the wrong shape."""
    check_shape("isect_ids", isect_ids, ("isects",))
    first = torch.arange(tile_width * tile_height, device=isect_ids.device)
    images = torch.arange(n_images, device=isect_ids.device)
    keys = ((images[:, None] << key_bits(tile_width * tile_height)) + first) << _DEPTH_BITS
    return torch.searchsorted(isect_ids, keys).reshape(n_images, tile_height, tile_width).int()


@torch.no_grad()
def rasterize_to_indices_in_range(
    range_start: int,
    range_end: int,
    transmittances: Tensor,
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the splats that pixels blend, within a part of every tile's list. Not differentiable. SplatError if an argument has
    the wrong shape, or the tiles do not cover the images.

    Args:
        range_start, range_end: the part of the lists in batches of tile_size² splats, the end excluded; the end may be beyond
            the lists.
        transmittances: [..., H, W] of the pixels before the part.
        means2d, conics, opacities: [..., N, 2], [..., N, 3], [..., N].
        isect_offsets, flatten_ids: each tile's list, from `isect_offset_encode` and `isect_tiles`.

    Returns:
        Indices of the splat (below N), of the pixel (row by row) and of the image, int64 [M] each, sorted by image and pixel,
        then front to back.
    """
    rows: Rows = {"conics": (conics, (3,)), "opacities": (opacities, ())}
    size, lists = (image_width, image_height), (tile_size, isect_offsets, flatten_ids)
    return _indices((range_start, range_end), transmittances, means2d, rows, size, lists)


@torch.no_grad()
def rasterize_to_indices_in_range_2dgs(
    range_start: int,
    range_end: int,
    transmittances: Tensor,
    means2d: Tensor,
    ray_transforms: Tensor,
    opacities: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the surfels that pixels blend, as `rasterize_to_indices_in_range` finds splats, by their ray_transforms
    [..., N, 3, 3]."""
    rows: Rows = {"ray_transforms": (ray_transforms, (3, 3)), "opacities": (opacities, ())}
    size, lists = (image_width, image_height), (tile_size, isect_offsets, flatten_ids)
    return _indices((range_start, range_end), transmittances, means2d, rows, size, lists, primitive="GsplatSurfel")


def _indices(
    part: tuple[int, int],
    transmittances: Tensor,
    means2d: Tensor,
    rows: Rows,
    size: tuple[int, int],
    lists: tuple[int, Tensor, Tensor],
    **kind: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    images, device, options, tiles = prepare(means2d, rows, None, size, *lists, None, False, False, "auto", **kind)
    check_shape("transmittances", transmittances, (*images, size[1], size[0]))
    first, end = (min(max(int(edge), 0) * lists[0] ** 2, len(lists[2])) for edge in part)
    (shapes, row), (opacities, _) = rows.values()
    splats = placed(means2d, shapes.flatten(-2) if len(row) > 1 else shapes, opacities)
    segment = ListSegment(first, max(end - first, 0))
    found = Blended.of(splats, tiles, options, *size, device, segment, transmittances)
    area = size[0] * size[1]
    return found.splats % max(means2d.shape[-2], 1), found.pixels % area, found.pixels // area


def accumulate(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor,
    gaussian_ids: Tensor,
    pixel_ids: Tensor,
    image_ids: Tensor,
    image_width: int,
    image_height: int,
) -> tuple[Tensor, Tensor]:
    """Blend splats by lists of M indices, with torch's operations. SplatError if an argument has the wrong shape, or the lists
    are not sorted by image and pixel.

    Args:
        means2d, conics, opacities, colors: [..., N, 2], [..., N, 3], [..., N], [..., N, D].
        gaussian_ids, pixel_ids, image_ids: [M] each, sorted by image and pixel, then front to back, as
            `rasterize_to_indices_in_range` returns them.

    Returns:
        Colours [..., H, W, D] and alphas [..., H, W, 1]. Differentiable in the first four arguments.
    """
    check_shape("conics", conics, (*leading("means2d", means2d, 2), 3))
    return _blend(means2d, conics, opacities, colors, gaussian_ids, pixel_ids, image_ids, image_width, image_height)


def accumulate_2dgs(
    means2d: Tensor,
    ray_transforms: Tensor,
    opacities: Tensor,
    colors: Tensor,
    normals: Tensor,
    gaussian_ids: Tensor,
    pixel_ids: Tensor,
    image_ids: Tensor,
    image_width: int,
    image_height: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Blend surfels by lists of M indices, as `accumulate` blends splats, by their ray_transforms [..., N, 3, 3] and normals
    [..., N, 3]; also return normals [..., H, W, 3]."""
    splats = leading("means2d", means2d, 2)
    check_shape("ray_transforms", ray_transforms, (*splats, 3, 3))
    check_shape("normals", normals, (*splats, 3))
    features, ids = torch.cat((colors, normals), -1), (gaussian_ids, pixel_ids, image_ids)
    image, alphas = _blend(means2d, ray_transforms.flatten(-2), opacities, features, *ids, image_width, image_height)
    return image[..., :-3], alphas, image[..., -3:]


def _blend(
    means2d: Tensor,
    shapes: Tensor,
    opacities: Tensor,
    colors: Tensor,
    gaussian_ids: Tensor,
    pixel_ids: Tensor,
    image_ids: Tensor,
    image_width: int,
    image_height: int,
) -> tuple[Tensor, Tensor]:
    *images, count = means2d.shape[:-1]
    check_shape("opacities", opacities, (*images, count))
    check_shape("colors", colors, (*images, count, "D"))
    for name, ids in (("gaussian_ids", gaussian_ids), ("pixel_ids", pixel_ids), ("image_ids", image_ids)):
        check_shape(name, ids, (len(gaussian_ids),))
    area = image_width * image_height
    pixels, splats = image_ids * area + pixel_ids, image_ids * count + gaussian_ids
    if (pixels.diff() < 0).any():
        raise SplatError("image_ids and pixel_ids are not in order; sort the lists by image, pixel and depth")
    centers = torch.stack((pixel_ids % image_width, pixel_ids // image_width), -1) + 0.5
    alphas = _alphas(centers, means2d, shapes, opacities, splats)
    weights = alphas * _transmittances(alphas, pixels)

    shape = (*images, image_height, image_width)
    total = math.prod(images) * area
    blended = weights[:, None] * colors.reshape(-1, colors.shape[-1])[splats]
    image = colors.new_zeros(total, colors.shape[-1]).index_add(0, pixels, blended)
    covered = colors.new_zeros(total).index_add(0, pixels, weights)
    return image.reshape(*shape, -1), covered.reshape(*shape, 1)


def _alphas(pixels: Tensor, means2d: Tensor, shapes: Tensor, opacities: Tensor, splats: Tensor) -> Tensor:
    """α [M] at pixel centres [M, 2] of splats [M], indexed across all images, from conics [..., 3] or rows of ray transforms
    [..., 9]."""
    shape = shapes.reshape(-1, shapes.shape[-1])[splats]
    dx, dy = (pixels - means2d.reshape(-1, 2)[splats]).unbind(-1)
    if shapes.shape[-1] == 3:
        a, b, c = shape.unbind(-1)
        sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
    else:
        # The ray meets the surfel's plane where two planes through the pixel do (slang/splat/surfel.slang).
        u, v, w = shape.unflatten(-1, (3, 3)).unbind(-2)
        x, y, z = torch.linalg.cross(pixels[..., :1] * w - u, pixels[..., 1:] * w - v).unbind(-1)
        sigma = 0.5 * torch.minimum((x / z) ** 2 + (y / z) ** 2, 2 * (dx * dx + dy * dy))
    return (opacities.reshape(-1)[splats] * torch.exp(-sigma)).clamp(max=max_alpha())


def _transmittances(alphas: Tensor, pixels: Tensor) -> Tensor:
    """Return the product of 1 - α over the earlier entries of each entry's pixel, [M]."""
    # A single sum over the logarithms of all pixels needs float64 to keep those of one pixel. MPS has no float64.
    device = alphas.device if alphas.device.type != "mps" else torch.device("cpu")
    logs = torch.log1p(-alphas.to(device, torch.float64))
    before = logs.cumsum(0) - logs
    begins = torch.ones(len(pixels), dtype=torch.bool, device=device)
    begins[1:] = pixels.to(device).diff() != 0
    first = torch.where(begins, torch.arange(len(pixels), device=device), 0).cummax(0).values
    return torch.exp(before - before[first]).to(alphas.device, alphas.dtype)
