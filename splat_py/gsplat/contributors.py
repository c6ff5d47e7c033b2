"""The Gaussians that each pixel blends, with their weights α T (gsplat 1.6). Not differentiable."""

import math
from typing import Any, Self

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.tensors import check_shape
from splat_py.gsplat.pixels import Rows, placed, prepare
from splat_py.render.contributors import Contributors


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
    return Blended.of_lists(**locals()).counted((*tile_offsets.shape[:-2], image_height, image_width))


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
    return Blended.of_lists(**locals()).listed(num_contributing_gaussians)


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
    found = Blended.of_lists(**locals())
    return found.top((*tile_offsets.shape[:-2], image_height, image_width), num_depth_samples)


class Blended(Contributors):
    """Counts and lists the splats of pixels as gsplat does. `pixels` may count through chosen pixels."""

    @classmethod
    def of_lists(
        cls,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        tile_offsets: Tensor,
        flatten_ids: Tensor,
        image_width: int,
        image_height: int,
        tile_size: int,
        **_: Any,
    ) -> Self:
        """Blend the lists of tiles. The arguments and the errors are those of `rasterize_num_contributing_gaussians`."""
        rows: Rows = {"conics": (conics, (3,)), "opacities": (opacities, ())}
        size, lists = (image_width, image_height), (tile_offsets, flatten_ids, None, means2d.dim() == 2)
        device, options, tiles = prepare(means2d, rows, None, size, tile_size, *lists, False, "auto")[1:]
        found = cls.of(placed(means2d, conics, opacities), tiles, options, *size, device)
        # Lists of dense splats number those of all images.
        return found._replace(splats=found.splats % max(means2d.shape[-2], 1))

    def counted(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The number of splats that each of the pixels [shape] blends, int32, and its alpha."""
        counts = torch.bincount(self.pixels, minlength=math.prod(shape))
        # α_1 + α_2 T_2 + … = 1 - T.
        alphas = self.weights.new_zeros(len(counts)).index_add_(0, self.pixels, self.weights)
        return counts.int().reshape(shape), alphas.reshape(shape)

    def listed(self, most: Tensor) -> tuple[Tensor, Tensor]:
        """The splats of each pixel, int32, and their weights, [..., K], at most as many as `most` [...] says, which is at most
        K; -1 and 0 in empty places."""
        most = most.clamp(min=0)
        counts = torch.bincount(self.pixels, minlength=most.numel())
        place = torch.arange(len(self.pixels), device=self.pixels.device) - (counts.cumsum(0) - counts)[self.pixels]
        kept = place < most.reshape(-1)[self.pixels]
        at = self.pixels[kept], place[kept]
        width = int(most.max()) if most.numel() else 0
        found = torch.full((most.numel(), width), -1, dtype=torch.int32, device=self.pixels.device)
        found[at] = self.splats[kept].int()
        of_found = self.weights.new_zeros(found.shape)
        of_found[at] = self.weights[kept]
        return found.reshape(*most.shape, width), of_found.reshape(*most.shape, width)

    def top(self, shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
        """The splats of the largest weights in each of the pixels [shape], front to back, and the weights, [..., count]."""
        if count < 1:
            raise SplatError(f"num_depth_samples is {count}; give at least 1")
        found, weights = self.listed(torch.bincount(self.pixels, minlength=math.prod(shape)).reshape(shape))
        missing = max(count - found.shape[-1], 0)
        found = torch.nn.functional.pad(found, (0, missing), value=-1)
        weights = torch.nn.functional.pad(weights, (0, missing))
        # Nothing has weight 0, so empty places come last.
        places = weights.topk(count).indices.sort().values
        return found.gather(-1, places), weights.gather(-1, places)
