"""gsplat's `rasterize_to_pixels` over our last stage, with lists of tiles that a caller brings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import Accumulate, accumulation
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import opaque
from splat_py.gpu.device import Device, Operator, device_for
from splat_py.gsplat.blending import check_tiles
from splat_py.gsplat.checks import leading
from splat_py.splats.data import Settings
from splat_py.splats.project import ProjectedSplats
from splat_py.splats.rasterize import MAX_CHANNELS
from splat_py.splats.rasterize import rasterize_to_pixels as rasterize
from splat_py.splats.tensors import check_shape, check_tensors
from splat_py.splats.tiles import BinnedTiles, TileGrid, TileLists, segments_for

TILE_SIZES = (4, 8, 16)


@opaque
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
    """Blend splats, as tiles list them, into images [..., H, W, D] and alphas [..., H, W, 1]; `...` are images.

    Differentiable in means2d, conics, colors, opacities and backgrounds.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] where packed.
        conics: [..., N, 3] or [nnz, 3], 1/pixel².
        colors: [..., N, D] or [nnz, D] of any D.
        opacities: [..., N] or [nnz] between 0 and 1.
        image_width, image_height: pixels.
        tile_size: 4, 8 or 16 pixels.
        isect_offsets: [..., tile_height, tile_width] where each tile's list begins in
        flatten_ids: [isects] indices of splats, counted through all images; each tile's front to back.
        backgrounds: [..., D]; black by default.
        masks: bool [..., tile_height, tile_width]; tiles where it is False show the background.
        packed: the splats of all images are one list.
        absgrad: also leave Σ |∂L/∂mean2d| over pixels in `means2d.absgrad` (Ye et al. 2024).
        accumulate: how gradients add up over pixels, as in `splat_py.rasterization`.

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value.
        NotImplementedError: absgrad with more than 32 channels.
    """
    check_tensors({"means2d": means2d, "conics": conics, "colors": colors, "opacities": opacities, "backgrounds": backgrounds})
    splats = leading("means2d", means2d, 2)
    images = splats[:-1]
    if packed:
        check_shape("means2d", means2d, ("nnz", 2))
        images = leading("isect_offsets", isect_offsets, "tile_height", "tile_width")
    check_shape("conics", conics, (*splats, 3))
    check_shape("colors", colors, (*splats, "D"))
    check_shape("opacities", opacities, splats)
    channels = colors.shape[-1]
    if channels == 0:
        raise SplatError("colors has no channels; give at least one")
    if absgrad and channels > MAX_CHANNELS:
        raise NotImplementedError(f"absgrad is not supported for more than {MAX_CHANNELS} channels; leave absgrad out")
    if tile_size not in TILE_SIZES:
        raise SplatError(f"tile_size is {tile_size!r}; use 4, 8 or 16")
    if backgrounds is not None:
        check_shape("backgrounds", backgrounds, (*images, channels))
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
    )
    rows, columns = isect_offsets.shape[-2:]
    tiles = lists.binned(device, TileGrid(tile_size, columns, rows, math.prod(images)), opacities.numel(), settings.per_isect)
    # Neither depths nor radii matter any more.
    projected = ProjectedSplats(means2d, opacities, conics, opacities, tiles.ids.new_empty(0))
    colors, alphas = rasterize(projected, colors, tiles, image_width, image_height, backgrounds, settings, device=device)
    shape = (*images, image_height, image_width)
    return colors.reshape(*shape, channels), alphas.reshape(*shape, 1)


@dataclass(frozen=True)
class Lists:
    """Every tile's splats: those of tile t are ids[offsets[t]:offsets[t + 1]]."""

    offsets: Tensor  # [tiles + 1] int64
    ids: Tensor  # [isects] int64

    @classmethod
    def of(cls, isect_offsets: Tensor, flatten_ids: Tensor, count: int, masks: Tensor | None) -> Lists:
        """The lists without those of tiles that are masked.

        Raises:
            SplatError: an index is of no splat, or offsets do not ascend.
        """
        check_shape("flatten_ids", flatten_ids, ("isects",))
        ids = flatten_ids.long()
        offsets = torch.cat((isect_offsets.flatten().long(), ids.new_tensor([len(ids)])))
        if (offsets.diff() < 0).any() or (offsets < 0).any():
            raise SplatError("isect_offsets does not ascend from tile to tile, to the length of flatten_ids at most")
        if ((ids < 0) | (ids >= count)).any():
            raise SplatError(f"flatten_ids holds an index that is not of one of the {count} splats")
        if masks is None:
            return cls(offsets, ids)
        counts = offsets.diff()
        shown = masks.flatten().bool()
        kept = torch.repeat_interleave(shown, counts)
        ends = torch.where(shown, counts, 0).cumsum(0)
        return cls(torch.cat((ends.new_zeros(1), ends)), ids[offsets[0] :][kept])

    def binned(self, device: Device, grid: TileGrid, count: int, keep_isects: bool) -> BinnedTiles:
        """The same as the kernels take them."""

        def array(values: Tensor) -> Array:
            return device.memory.array(values.to(torch.int32).contiguous().view(torch.uint32))

        # Lengths matter only where lists are blended in segments.
        max_length = int(self.offsets.diff().max()) if device.tuning.segment else 0
        lists = TileLists(array(self.offsets), array(self.ids), segments_for(device, max_length))
        if keep_isects:
            # A gradient row for each element, those of a splat one after another.
            by_splat = self.ids.argsort(stable=True)
            rows = torch.empty_like(by_splat).scatter_(0, by_splat, torch.arange(len(by_splat), device=by_splat.device))
            ends = torch.bincount(self.ids, minlength=count).cumsum(0)
            lists = replace(
                lists,
                isects=array(rows),
                order=array(torch.arange(count)),
                isect_offsets=array(torch.cat((ends.new_zeros(1), ends))),
            )
        return BinnedTiles(self.offsets.int(), self.ids.int(), grid, lists)
