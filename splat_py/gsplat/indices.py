"""Which splats a pixel blends, as lists of indices, and blending by such lists, in torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gsplat.blending import PART, Pixels, TiledSplats, evaluate_alphas
from splat_py.gsplat.checks import leading
from splat_py.splats.tensors import check_shape


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
    """The splats that pixels blend, of a part of every tile's list. Not differentiable.

    Args:
        range_start, range_end: the part, in batches of tile_size² splats: from the first on, up to and without the second,
            which may be as large as one likes.
        transmittances: [..., H, W] what is left at each pixel before the part.
        means2d, conics, opacities: [..., N, 2], [..., N, 3], [..., N].
        isect_offsets, flatten_ids: each tile's list, as `isect_offset_encode` and `isect_tiles` give them.

    Returns:
        Int64 [M] each, sorted by image and pixel and then front to back, of the splat's index below N, the pixel's (row by
        row), and the image's.

    Raises:
        SplatError: an argument has the wrong shape, or the tiles do not cover the images.
    """
    size = int(image_width), int(image_height)
    splats = TiledSplats.of(means2d, conics, opacities, size, tile_size, isect_offsets, flatten_ids)
    check_shape("transmittances", transmittances, (*means2d.shape[:-2], image_height, image_width))
    left = transmittances.reshape(-1)
    batch = tile_size**2
    found: list[tuple[Tensor, Tensor]] = []
    for tiles in splats.groups():
        x, y = splats.pixels(tiles)
        outside = (x >= image_width) | (y >= image_height)
        pixel = (tiles // (splats.columns * splats.rows))[:, None] * (image_height * image_width) + y * image_width + x
        pixels = Pixels(torch.where(outside, 1.0, left[torch.where(outside, 0, pixel)]), outside)
        end = min(int(range_end) * batch, splats.max_length(tiles))
        for first in range(int(range_start) * batch, end, PART):
            listed = splats.part(tiles, first)
            if first + PART > end:
                listed[:, end - first :] = -1
            weights, pixels = pixels.blend(splats.alphas(tiles, listed))
            tile, place, number = (weights > 0).nonzero(as_tuple=True)
            found.append((pixel[tile, place], listed[tile, number]))
            if pixels.done.all():
                break
    if not found:
        return tuple(flatten_ids.new_empty(0, dtype=torch.int64) for _ in range(3))  # type: ignore[return-value]
    where, which = (torch.cat(parts) for parts in zip(*found, strict=True))
    where, order = where.sort(stable=True)
    area = image_height * image_width
    return which[order] % means2d.shape[-2], where % area, where // area


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
    """Blend the splats that lists of indices name, of M in all, with torch's own operations.

    Args:
        means2d, conics, opacities, colors: [..., N, 2], [..., N, 3], [..., N], [..., N, D].
        gaussian_ids, pixel_ids, image_ids: [M] each, those of a pixel one after another and front to back, as
            `rasterize_to_indices_in_range` gives them.

    Returns:
        Colours [..., H, W, D] and alphas [..., H, W, 1]. Differentiable in the first four arguments.

    Raises:
        SplatError: an argument has the wrong shape, or a pixel's splats are not together.
    """
    *images, count = leading("means2d", means2d, 2)
    check_shape("conics", conics, (*images, count, 3))
    check_shape("opacities", opacities, (*images, count))
    check_shape("colors", colors, (*images, count, "D"))
    for name, ids in (("gaussian_ids", gaussian_ids), ("pixel_ids", pixel_ids), ("image_ids", image_ids)):
        check_shape(name, ids, (len(gaussian_ids),))
    area = image_width * image_height
    pixels = image_ids * area + pixel_ids
    if (pixels.diff() < 0).any():
        raise SplatError("image_ids and pixel_ids are not in order; sort the lists by image, pixel and depth")
    splats = image_ids * count + gaussian_ids
    dx, dy = (
        torch.stack((pixel_ids % image_width, pixel_ids // image_width), -1) + 0.5 - means2d.reshape(-1, 2)[splats]
    ).unbind(-1)
    alphas = evaluate_alphas(dx, dy, conics.reshape(-1, 3)[splats], opacities.reshape(-1)[splats])
    weights = alphas * _transmittances(alphas, pixels)

    shape = (*images, image_height, image_width)
    total = math.prod(images) * area
    blended = weights[:, None] * colors.reshape(-1, colors.shape[-1])[splats]
    image = colors.new_zeros(total, colors.shape[-1]).index_add(0, pixels, blended)
    opaque = colors.new_zeros(total).index_add(0, pixels, weights)
    return image.reshape(*shape, -1), opaque.reshape(*shape, 1)


def _transmittances(alphas: Tensor, pixels: Tensor) -> Tensor:
    """Of each entry [M], the product of 1 - α of those of its pixel before it."""
    # One sum over all pixels' logarithms: in float32 it would lose what a single pixel adds. MPS has no float64.
    device = alphas.device if alphas.device.type != "mps" else torch.device("cpu")
    logs = torch.log1p(-alphas.to(device, torch.float64))
    before = logs.cumsum(0) - logs
    numbers = torch.arange(len(pixels), device=device)
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[1:] = pixels.to(device).diff() != 0
    first = torch.where(begins, numbers, 0).cummax(0).values
    return torch.exp(before - before[first]).to(alphas.device, alphas.dtype)
