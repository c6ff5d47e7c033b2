"""The Gaussians that each pixel blends, with their weights α T (gsplat 1.6), by torch's operations. Not differentiable."""

import math

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.tensors import check_shape
from splat_py.gsplat.checks import leading
from splat_py.gsplat.intersection import blended

# All batches of a list.
_ALL = 0, 1 << 30


@torch.no_grad()
def rasterize_num_contributing_gaussians(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
) -> tuple[Tensor, Tensor]:
    """Count the Gaussians that each pixel blends. SplatError if an argument has the wrong shape, or the tiles do not cover the
    images.

    Args:
        means2d, conics, opacities: [..., N, 2], [..., N, 3], [..., N]; or packed [nnz, 2], [nnz, 3], [nnz].
        tile_offsets, flatten_ids: each tile's list, from `isect_offset_encode` and `isect_tiles`.

    Returns:
        Counts, int32, and alphas, [..., H, W] each.
    """
    splats, size = (means2d, conics, opacities), (image_width, image_height)
    pixels, _, weights = _blended(splats, tile_offsets, flatten_ids, size, tile_size)
    shape = (*tile_offsets.shape[:-2], image_height, image_width)
    counts = torch.bincount(pixels, minlength=math.prod(shape))
    # α_1 + α_2 T_2 + … = 1 - T.
    alphas = weights.new_zeros(len(counts)).index_add_(0, pixels, weights)
    return counts.int().reshape(shape), alphas.reshape(shape)


@torch.no_grad()
def rasterize_contributing_gaussian_ids(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    num_contributing_gaussians: Tensor,
) -> tuple[Tensor, Tensor]:
    """List the Gaussians that each pixel blends, front to back: as many as `num_contributing_gaussians` [..., H, W] says, which
    is at most K. The other arguments and the errors are those of `rasterize_num_contributing_gaussians`.

    Returns:
        Indices, int32, below N or nnz, and weights α T, [..., H, W, K] each; -1 and 0 after the last Gaussian.
    """
    shape = (*tile_offsets.shape[:-2], image_height, image_width)
    check_shape("num_contributing_gaussians", num_contributing_gaussians, shape)
    splats, size = (means2d, conics, opacities), (image_width, image_height)
    pixels, which, weights = _blended(splats, tile_offsets, flatten_ids, size, tile_size)
    return _listed(pixels, which, weights, num_contributing_gaussians.clamp(min=0))


@torch.no_grad()
def rasterize_top_contributing_gaussian_ids(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    num_depth_samples: int,
) -> tuple[Tensor, Tensor]:
    """List the `num_depth_samples` Gaussians of the largest weights α T in each pixel, front to back. The other arguments, the
    errors and the results are those of `rasterize_contributing_gaussian_ids`."""
    if num_depth_samples < 1:
        raise SplatError(f"num_depth_samples is {num_depth_samples}; give at least 1")
    splats, size = (means2d, conics, opacities), (image_width, image_height)
    pixels, which, each = _blended(splats, tile_offsets, flatten_ids, size, tile_size)
    shape = (*tile_offsets.shape[:-2], image_height, image_width)
    found, weights = _listed(pixels, which, each, torch.bincount(pixels, minlength=math.prod(shape)).reshape(shape))
    missing = max(num_depth_samples - found.shape[-1], 0)
    found = torch.nn.functional.pad(found, (0, missing), value=-1)
    weights = torch.nn.functional.pad(weights, (0, missing))
    # Nothing has weight 0, so empty places come last.
    places = weights.topk(num_depth_samples).indices.sort().values
    return found.gather(-1, places), weights.gather(-1, places)


def _listed(pixels: Tensor, splats: Tensor, weights: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """The splats of each pixel and their weights, [..., H, W, K], at most as many as `most` [..., H, W] says."""
    counts = torch.bincount(pixels, minlength=most.numel())
    place = torch.arange(len(pixels), device=pixels.device) - (counts.cumsum(0) - counts)[pixels]
    kept = place < most.reshape(-1)[pixels]
    at = pixels[kept], place[kept]
    width = int(most.max()) if most.numel() else 0
    found = torch.full((most.numel(), width), -1, dtype=torch.int32, device=pixels.device)
    found[at] = splats[kept].int()
    of_found = weights.new_zeros(found.shape)
    of_found[at] = weights[kept]
    return found.reshape(*most.shape, width), of_found.reshape(*most.shape, width)


def _blended(
    splats: tuple[Tensor, Tensor, Tensor], tile_offsets: Tensor, flatten_ids: Tensor, size: tuple[int, int], tile_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    counts = leading("means2d", splats[0], 2)
    check_shape("conics", splats[1], (*counts, 3))
    images = counts[:-1] or leading("tile_offsets", tile_offsets, "tile_height", "tile_width")
    through = torch.ones(*images, size[1], size[0], device=splats[0].device)
    pixels, found, weights = blended(_ALL, through, splats, size, (tile_size, tile_offsets, flatten_ids))
    # Lists of dense splats number those of all images.
    return pixels, found % max(counts[-1], 1), weights
