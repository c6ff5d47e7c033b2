"""Some pixels of images instead of all (gsplat 1.6), by the dense functions: tiles without such a pixel have empty lists."""

import math
from typing import Any

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.tensors import check_shape
from splat_py.gsplat.contributors import Blended
from splat_py.gsplat.intersection import isect_offset_encode, isect_tiles
from splat_py.gsplat.pixels import rasterize_to_pixels

_WORD_BITS = 64


@torch.no_grad()
def build_sparse_tile_layout(
    pixels: Tensor, image_ids: Tensor, n_images: int, tile_size: int, tile_width: int, tile_height: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """List the tiles that hold chosen pixels. SplatError if an argument has the wrong shape, or a pixel is given twice or lies
    outside the tiles.

    Args:
        pixels: [P, 2] row and column of each pixel, integers.
        image_ids: [P] image of each pixel.
        n_images: images in all, I.
        tile_size: pixels along a tile's side.
        tile_width, tile_height: tiles along an image's sides.

    Returns:
        active_tiles: [AT] int32, ascending indices of the tiles that hold a pixel, counting through all images.
        active_tile_mask: bool [I, tile_height, tile_width], the same tiles.
        tile_pixel_mask: [AT, words] uint64, a bit for each pixel of a tile, row by row, 64 in a word.
        tile_pixel_cumsum: [AT] int64, the number of pixels in each tile and those before it; a single 0 without pixels.
        pixel_map: [P] int64, the order of the pixels by tile, then row by row.
    """
    check_shape("pixels", pixels, ("P", 2))
    check_shape("image_ids", image_ids, (len(pixels),))
    row, column = pixels.long().unbind(-1)
    inside = (row >= 0) & (row < tile_height * tile_size) & (column >= 0) & (column < tile_width * tile_size)
    if not inside.all():
        raise SplatError("pixels has pixels outside the tiles; leave them out, or give all tiles")
    if not ((image_ids >= 0) & (image_ids < n_images)).all():
        raise SplatError(f"image_ids has images outside 0 to {n_images - 1}; leave them out, or give all of n_images")
    tile = (image_ids.long() * tile_height + row // tile_size) * tile_width + column // tile_size
    place = row % tile_size * tile_size + column % tile_size
    keys, pixel_map = (tile * tile_size**2 + place).sort(stable=True)
    if (keys.diff() == 0).any():
        raise SplatError("pixels gives a pixel of an image twice; give it once")
    active, of_pixel, counts = tile.unique(return_inverse=True, return_counts=True)
    mask = torch.zeros(n_images, tile_height, tile_width, dtype=torch.bool, device=pixels.device)
    mask.view(-1)[active] = True
    words = torch.zeros(len(active), math.ceil(tile_size**2 / _WORD_BITS), dtype=torch.int64, device=pixels.device)
    # A sum of different bits is their union.
    words.index_put_((of_pixel, place // _WORD_BITS), torch.ones_like(place) << place % _WORD_BITS, accumulate=True)
    ends = counts.cumsum(0) if len(active) else counts.new_zeros(1)
    return active.int(), mask, words.view(torch.uint64), ends, pixel_map


@torch.no_grad()
def isect_tiles_sparse(
    means2d: Tensor,
    radii: Tensor,
    depths: Tensor,
    tile_mask: Tensor,
    active_tiles: Tensor,
    n_images: int,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    image_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Find intersections of splats with some tiles: those of `isect_tiles`, without the others. Not differentiable. SplatError
    if an argument has the wrong shape.

    Args:
        means2d, radii, depths: [I, N, 2], [I, N, 2] and [I, N]; or packed [nnz, 2], [nnz, 2] and [nnz], with `image_ids` [nnz].
        tile_mask, active_tiles: the tiles, from `build_sparse_tile_layout`.

    Returns:
        First intersection of each tile, int32 [AT + 1], with their number at the end; and the splat of each, int32 [isects], an
        index into those of all images or into nnz, front to back in each tile.
    """
    check_shape("tile_mask", tile_mask, (n_images, tile_height, tile_width))
    check_shape("active_tiles", active_tiles, ("AT",))
    tiles, packed = (tile_size, tile_width, tile_height), means2d.dim() == 2
    _, keys, splats = isect_tiles(means2d, radii, depths, *tiles, packed=packed, n_images=n_images, image_ids=image_ids)
    firsts = isect_offset_encode(keys, n_images, tile_width, tile_height).flatten()
    tile = torch.repeat_interleave(firsts.diff(append=firsts.new_tensor([len(keys)])))
    kept = tile_mask.reshape(-1)[tile]
    starts = torch.searchsorted(tile[kept], active_tiles.long())
    return torch.cat((starts, kept.sum()[None])).int(), splats[kept]


def rasterize_to_pixels_sparse(
    means2d: Tensor,
    conics: Tensor,
    colors: Tensor,
    opacities: Tensor,
    image_ids: Tensor,
    active_tiles: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    tile_pixel_mask: Tensor,
    tile_pixel_cumsum: Tensor,
    pixel_map: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    backgrounds: Tensor | None = None,
    masks: Tensor | None = None,
    packed: bool = False,
    absgrad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Blend the splats in the lists of some tiles into chosen pixels: colours [P, D] and alphas [P, 1], in the order of the
    pixels that `build_sparse_tile_layout` was given.

    Differentiable in means2d, conics, colors, opacities and backgrounds. SplatError if an argument has the wrong shape, dtype,
    device or value. Arguments not listed here are those of `rasterize_to_pixels`.

    Args:
        image_ids: [P], as `build_sparse_tile_layout` was given it.
        active_tiles, tile_pixel_mask, tile_pixel_cumsum, pixel_map: from `build_sparse_tile_layout`.
        tile_offsets, flatten_ids: from `isect_tiles_sparse`.
        backgrounds: [I, D]; black by default.
        masks: bool [I, tile_height, tile_width]; tiles where it is False show the background.
    """
    offsets, pixels = _dense(**locals())
    check_shape("image_ids", image_ids, (len(pixels),))
    images = offsets.shape[:-2]

    def of_images(name: str, given: Tensor | None, *last: int | str) -> Tensor | None:
        if given is None:
            return None
        check_shape(name, given, ("I" if packed else images.numel(), *last))
        # Images of packed splats may go on after the last tile that holds a pixel.
        return given[: images.numel()].reshape(*images, *given.shape[1:])

    behind, seen = of_images("backgrounds", backgrounds, "D"), of_images("masks", masks, tile_height, tile_width)
    rows, size = (means2d, conics, colors, opacities), (image_width, image_height)
    image, alphas = rasterize_to_pixels(*rows, *size, tile_size, offsets, flatten_ids, behind, seen, packed, absgrad)
    return image.flatten(0, -2)[pixels], alphas.flatten(0, -2)[pixels]


@torch.no_grad()
def rasterize_num_contributing_gaussians_sparse(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    active_tiles: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    tile_pixel_mask: Tensor,
    tile_pixel_cumsum: Tensor,
    pixel_map: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    tile_width: int,
    tile_height: int,
) -> tuple[Tensor, Tensor]:
    """Count the Gaussians that chosen pixels blend, as `rasterize_num_contributing_gaussians` does: counts, int32, and alphas,
    [P] each. Arguments are those of `rasterize_to_pixels_sparse`."""
    return _blended(**locals()).counted(tuple(pixel_map.shape))


@torch.no_grad()
def rasterize_contributing_gaussian_ids_sparse(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    active_tiles: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    tile_pixel_mask: Tensor,
    tile_pixel_cumsum: Tensor,
    pixel_map: Tensor,
    num_contributing_gaussians: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    tile_width: int,
    tile_height: int,
) -> tuple[Tensor, Tensor]:
    """List the Gaussians that chosen pixels blend, as `rasterize_contributing_gaussian_ids` does: indices, int32, and weights,
    [P, K] each, as many as `num_contributing_gaussians` [P] says. Other arguments are those of `rasterize_to_pixels_sparse`."""
    check_shape("num_contributing_gaussians", num_contributing_gaussians, tuple(pixel_map.shape))
    return _blended(**locals()).listed(num_contributing_gaussians)


@torch.no_grad()
def rasterize_top_contributing_gaussian_ids_sparse(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    active_tiles: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    tile_pixel_mask: Tensor,
    tile_pixel_cumsum: Tensor,
    pixel_map: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    num_depth_samples: int,
) -> tuple[Tensor, Tensor]:
    """List the `num_depth_samples` Gaussians of the largest weights in chosen pixels, [P, `num_depth_samples`], as
    `rasterize_top_contributing_gaussian_ids` does. Other arguments are those of `rasterize_to_pixels_sparse`."""
    return _blended(**locals()).top(tuple(pixel_map.shape), num_depth_samples)


def _blended(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    flatten_ids: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    **layout: Any,
) -> Blended:
    """All that the chosen pixels blend, counting through these pixels, for the arguments of the functions above."""
    offsets, pixels = _dense(means2d, image_width=image_width, image_height=image_height, tile_size=tile_size, **layout)
    found = Blended.of_lists(means2d, conics, opacities, offsets, flatten_ids, image_width, image_height, tile_size)
    chosen = pixels.new_full((offsets.shape[:-2].numel() * image_width * image_height,), -1)
    chosen[pixels] = torch.arange(len(pixels), device=pixels.device)
    numbers = chosen[found.pixels]
    order = numbers.argsort(stable=True)
    order = order[numbers[order] >= 0]
    return Blended(numbers[order], found.splats[order], found.weights[order])


def _dense(
    means2d: Tensor,
    active_tiles: Tensor,
    tile_offsets: Tensor,
    tile_pixel_mask: Tensor,
    tile_pixel_cumsum: Tensor,
    pixel_map: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The first index of all tiles' lists, [..., tile_height, tile_width] for images `...`, and the chosen pixels [P], counting
    through all images. SplatError if the layout does not fit itself or the images."""
    count, each = len(active_tiles), tile_height * tile_width
    check_shape("tile_offsets", tile_offsets, (count + 1,))
    check_shape("tile_pixel_mask", tile_pixel_mask, (count, math.ceil(tile_size**2 / _WORD_BITS)))
    check_shape("tile_pixel_cumsum", tile_pixel_cumsum, (max(count, 1),))
    # Packed splats have images up to the last one with such a tile.
    images = means2d.shape[:-2] or torch.Size((int(active_tiles.max()) // each + 1 if count else 1,))
    tiles = images.numel() * each
    if (active_tiles.diff() <= 0).any() or not ((active_tiles >= 0) & (active_tiles < tiles)).all():
        raise SplatError(f"active_tiles does not ascend within 0 to {tiles - 1}; build the layout for these images")
    bits = torch.arange(_WORD_BITS, device=pixel_map.device)
    held, place = ((tile_pixel_mask.view(torch.int64)[..., None] >> bits) & 1).flatten(1).nonzero(as_tuple=True)
    check_shape("pixel_map", pixel_map, (len(place),))
    tile = active_tiles.long()[held]
    row = tile // tile_width % tile_height * tile_size + place // tile_size
    column = tile % tile_width * tile_size + place % tile_size
    if not ((row < image_height) & (column < image_width)).all():
        raise SplatError(f"tile_pixel_mask has pixels outside {image_width} × {image_height}; leave them out")
    pixels = torch.empty_like(pixel_map)
    pixels[pixel_map] = (tile // each * image_height + row) * image_width + column
    lengths = pixel_map.new_zeros(tiles)
    lengths[active_tiles.long()] = tile_offsets.long().diff()
    return (lengths.cumsum(0) - lengths).int().reshape(*images, tile_height, tile_width), pixels
