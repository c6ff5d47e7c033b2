"""Projected Gaussians → the tiles that their bounding boxes meet, as sorted 64-bit keys, in torch. Not differentiable.

`splat_py.splats.tiles` bins by the exact ellipse and is what `rasterization` uses; this is for who wants the lists themselves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gsplat.checks import leading
from splat_py.splats.tensors import check_shape

_DEPTH_BITS = 32


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Intersections of splats' bounding boxes with tiles.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] where packed; each set of leading indices is an image, I in all.
        radii: [..., N, 2] or [nnz, 2], pixels to each side; a splat with one that is not positive meets no tile.
        depths: [..., N] or [nnz] float32, not negative.
        tile_size: pixels along a tile's side.
        tile_width, tile_height: tiles along an image's sides.
        sort: by image, tile and depth; otherwise splat by splat.
        segmented: how gsplat sorts; means nothing here.
        packed: splats of all images in one list, with `n_images` and `image_ids`.
        n_images: I; needed only where packed.
        image_ids: [nnz] whose each splat is.
        gaussian_ids: not needed.

    Returns:
        Tiles of each splat, int32 [..., N] or [nnz]; the key of each intersection, int64 [isects], of image, tile, and the bits
        of the depth in the lower 32; and its splat, int32 [isects], an index into all images' splats or into nnz.

    Raises:
        SplatError: an argument has the wrong shape, or images and tiles do not fit the keys.
    """
    images = leading("means2d", means2d, "N", 2)
    count = means2d.shape[-2]
    if packed:
        if image_ids is None or n_images is None:
            raise SplatError("packed=True needs image_ids and n_images; give both")
        check_shape("means2d", means2d, ("nnz", 2))
        check_shape("image_ids", image_ids, (count,))
        owners = image_ids.long()
    else:
        n_images = math.prod(images)
        owners = torch.arange(n_images, device=means2d.device).repeat_interleave(count)
    check_shape("radii", radii, (*images, count, 2))
    check_shape("depths", depths, (*images, count))
    tile_bits = _tile_bits(tile_width, tile_height)
    if n_images.bit_length() + tile_bits + _DEPTH_BITS > 64:
        raise SplatError(f"{n_images} images of {tile_width} × {tile_height} tiles do not fit 64-bit keys; use larger tiles")

    limits = torch.tensor((tile_width, tile_height), device=means2d.device)
    center, half = means2d.reshape(-1, 2) / tile_size, radii.reshape(-1, 2).to(means2d.dtype) / tile_size
    low = (center - half).floor().clamp(min=0).minimum(limits).long()
    high = (center + half).ceil().clamp(min=0).minimum(limits).long()
    visible = (radii.reshape(-1, 2) > 0).all(-1)
    columns, rows = torch.where(visible[:, None], high - low, 0).unbind(-1)
    tiles = columns * rows  # [M]

    splats = torch.repeat_interleave(tiles)
    # Which of its splat's tiles each intersection is, row by row.
    number = torch.arange(len(splats), device=splats.device) - (tiles.cumsum(0) - tiles)[splats]
    row = low[splats, 1] + number // columns[splats]
    column = low[splats, 0] + number % columns[splats]
    tile = (owners[splats] << tile_bits) + row * tile_width + column
    depth = depths.reshape(-1).float().contiguous().view(torch.int32).long() & 0xFFFFFFFF
    keys = (tile << _DEPTH_BITS) | depth[splats]
    if sort:
        keys, order = keys.sort(stable=True)
        splats = splats[order]
    return tiles.reshape(depths.shape).int(), keys, splats.int()


@torch.no_grad()
def isect_offset_encode(isect_ids: Tensor, n_images: int, tile_width: int, tile_height: int) -> Tensor:
    """Where each tile's intersections begin among the sorted keys of `isect_tiles`: int32 [I, tile_height, tile_width].

    Raises:
        SplatError: `isect_ids` has the wrong shape.
    """
    check_shape("isect_ids", isect_ids, ("isects",))
    first = torch.arange(tile_width * tile_height, device=isect_ids.device)
    images = torch.arange(n_images, device=isect_ids.device)
    keys = ((images[:, None] << _tile_bits(tile_width, tile_height)) + first) << _DEPTH_BITS
    return torch.searchsorted(isect_ids, keys).reshape(n_images, tile_height, tile_width).int()


def _tile_bits(tile_width: int, tile_height: int) -> int:
    return (tile_width * tile_height).bit_length()
