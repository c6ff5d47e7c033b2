"""gsplat's `rasterize_to_pixels` and `rasterize_to_pixels_2dgs` on splat_py's last stages, with the caller's tile lists."""

import math
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import graph_break
from splat_py.gpu.device import Device
from splat_py.gpu.tensors import check_shape, check_tensors
from splat_py.gsplat.checks import check_tiles, device_to_differentiate, leading
from splat_py.gsplat.version import max_alpha
from splat_py.render.options import STOPS, Options
from splat_py.render.rasterize import rasterize_to_pixels as rasterize
from splat_py.render.splats import ProjectedSplats
from splat_py.render.surfels import rasterize_surface, with_densify
from splat_py.render.tiles import BinnedTiles, TileGrid, TileLists, segments_for

# Tensors with a row for each splat, and the shape of a row.
Rows: TypeAlias = dict[str, tuple[Tensor, tuple[int | str, ...]]]


@graph_break
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
    masks: Tensor | None = None,
    packed: bool = False,
    absgrad: bool = False,
    *,
    accumulate: Accumulate = "auto",
) -> tuple[Tensor, Tensor]:
    """Blend the splats in tile lists into images [..., H, W, D] and alphas [..., H, W, 1]; `...` are images.

    Differentiable in means2d, conics, colors, opacities and backgrounds. SplatError if an argument has the wrong shape, dtype,
    device or value; NotImplementedError for absgrad with more than 128 channels. Arguments not listed here are those of
    `splat_py.rasterization`; `absgrad` sets `means2d.absgrad`.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] if packed.
        conics: [..., N, 3] or [nnz, 3], 1/pixel².
        colors: [..., N, D] or [nnz, D] of any D.
        opacities: [..., N] or [nnz] between 0 and 1.
        image_width, image_height: pixels.
        isect_offsets: [..., tile_height, tile_width] first index of each tile's list in `flatten_ids`.
        flatten_ids: [isects] indices of splats across all images; each tile's list is front to back.
        backgrounds: [..., D]; black by default.
        masks: bool [..., tile_height, tile_width]; tiles where it is False show the background.
        packed: the splats of all images are one list.
    """
    size = int(image_width), int(image_height)
    rows: Rows = {"conics": (conics, (3,)), "colors": (colors, ("D",)), "opacities": (opacities, ())}
    lists = isect_offsets, flatten_ids, masks, packed
    images, device, options, tiles = prepare(means2d, rows, backgrounds, size, tile_size, *lists, absgrad, accumulate)
    colors, alphas = rasterize(placed(means2d, conics, opacities), colors, tiles, *size, backgrounds, options, device=device)
    shape = (*images, *size[::-1])
    return colors.reshape(*shape, colors.shape[-1]), alphas.reshape(*shape, 1)


@graph_break
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
    """Blend the surfels in tile lists. Arguments as in `rasterize_to_pixels`, where `...` are images, and:

    Args:
        ray_transforms: [..., N, 3, 3], or packed [nnz, 3, 3].
        colors: [..., N, D] or [nnz, D]; the last channel is depth, for distortion and the median.
        normals: [..., N, 3] or [nnz, 3] in camera space.
        densify: [..., N, 2] or [nnz, 2] of any value; its gradient approximates that of the means on the image.
        backgrounds: [..., D]; the last channel must be 0 with `distloss`.
        distloss: also render the distortion of the last channel.

    Differentiable in means2d, ray_transforms, colors, opacities, normals and backgrounds. SplatError if an argument has the
    wrong shape, dtype, device or value; NotImplementedError for absgrad with more than 128 channels.

    Returns:
        Colours [..., H, W, D], alphas [..., H, W, 1], normals [..., H, W, 3] in camera space, distortion [..., H, W, 1] (zero
        without `distloss`), and the last channel of the median splat [..., H, W, 1].
    """
    size = int(image_width), int(image_height)
    rows: Rows = {"ray_transforms": (ray_transforms, (3, 3)), "colors": (colors, ("D",)), "opacities": (opacities, ())}
    rows |= {"normals": (normals, (3,)), "densify": (densify, (2,))}
    lists = isect_offsets, flatten_ids, masks, packed
    prepared = prepare(means2d, rows, backgrounds, size, tile_size, *lists, absgrad, accumulate, primitive="GsplatSurfel")
    images, device, options, tiles = prepared
    if distloss and backgrounds is not None and (backgrounds[..., -1] != 0).any():
        raise SplatError("backgrounds is not 0 in its last channel, the depth, as distloss=True needs; set it to 0")
    shape = with_densify(ray_transforms.flatten(-2), densify)
    splats = placed(means2d, shape, opacities, normals)
    surface = rasterize_surface(splats, colors, tiles, *size, backgrounds, options, distortion=distloss, device=device)
    parts = surface.images, surface.alphas, surface.normals, surface.distortion, surface.median_of(colors[..., -1])
    blended, alphas, of_surfels, distortion, median = (part.reshape(*images, *size[::-1], part.shape[-1]) for part in parts)
    return blended, alphas, of_surfels, distortion, median


def placed(means2d: Tensor, shapes: Tensor, opacities: Tensor, normals: Tensor | None = None) -> ProjectedSplats:
    """Splats for the last stages, which do not use depths and radii; `shapes` are conics or flattened ray transforms."""
    return ProjectedSplats(means2d, opacities, shapes, opacities, means2d.new_empty(0, dtype=torch.int32), normals=normals)


def prepare(
    means2d: Tensor,
    rows: Rows,
    backgrounds: Tensor | None,
    size: tuple[int, int],
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    masks: Tensor | None,
    packed: bool,
    absgrad: bool,
    accumulate: Accumulate,
    **kind: Any,
) -> tuple[tuple[int, ...], Device, Options, BinnedTiles]:
    """The image dimensions, the device, its options, and the tile lists without those of masked tiles."""
    check_tensors({"means2d": means2d, **{name: tensor for name, (tensor, _) in rows.items()}, "backgrounds": backgrounds})
    splats = leading("means2d", means2d, 2)
    images = leading("isect_offsets", isect_offsets, "tile_height", "tile_width") if packed else splats[:-1]
    if packed:
        check_shape("means2d", means2d, ("nnz", 2))
    for name, (tensor, row) in rows.items():
        check_shape(name, tensor, (*splats, *row))
    channels = rows["colors"][0].shape[-1] if "colors" in rows else "D"
    if channels == 0:
        raise SplatError("colors has no channels; give at least one")
    if tile_size not in (4, 8, 16):
        raise SplatError(f"tile_size is {tile_size!r}; use 4, 8 or 16")
    if backgrounds is not None:
        check_shape("backgrounds", backgrounds, (*images, channels))
    if masks is not None:
        check_shape("masks", masks, tuple(isect_offsets.shape))
    check_tiles(isect_offsets, images, size, tile_size)
    check_shape("flatten_ids", flatten_ids, ("isects",))

    # The splats of tile t are ids[offsets[t]:offsets[t + 1]].
    ids, count = flatten_ids.long(), math.prod(splats)
    offsets = torch.cat((isect_offsets.flatten().long(), ids.new_tensor([len(ids)])))
    if (offsets.diff() < 0).any() or (offsets < 0).any():
        raise SplatError("isect_offsets must ascend from tile to tile, at most to the length of flatten_ids")
    if ((ids < 0) | (ids >= count)).any():
        raise SplatError(f"flatten_ids holds an index outside the {count} splats")
    if masks is not None:
        counts, shown = offsets.diff(), masks.flatten().bool()
        ids = ids[offsets[0] :][torch.repeat_interleave(shown, counts)]
        offsets = torch.nn.functional.pad(torch.where(shown, counts, 0).cumsum(0), (1, 0))

    device = device_to_differentiate(means2d)
    options = Options.on(device, tile_size, accumulate, absgrad=absgrad, stop=STOPS[max_alpha()], **kind)

    def array(values: Tensor) -> Array:
        return device.memory.array(values.to(torch.int32).contiguous().view(torch.uint32))

    # Lengths matter only if lists are blended in segments.
    max_length = int(offsets.diff().max()) if device.tuning.segment else 0
    tile_height, tile_width = isect_offsets.shape[-2:]
    grid = TileGrid(tile_size, tile_width, tile_height, math.prod(images))
    lists = TileLists(array(offsets), array(ids), grid, segments_for(device, max_length))
    if options.per_isect:
        # Each element has a gradient row; the rows of a splat are consecutive.
        by_splat = ids.argsort(stable=True)
        places = torch.empty_like(by_splat).scatter_(0, by_splat, torch.arange(len(by_splat), device=by_splat.device))
        ends = torch.bincount(ids, minlength=count).cumsum(0)
        starts = torch.nn.functional.pad(ends, (1, 0))
        lists = replace(lists, isects=array(places), order=array(torch.arange(count)), isect_offsets=array(starts))
    return images, device, options, BinnedTiles(offsets.int(), ids.int(), lists)
