"""Splats of tiles' lists at the pixels of these tiles, a part of the lists at a time, in torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gsplat.checks import leading
from splat_py.splats.tensors import check_shape

ALPHA_MIN = 1 / 255
ALPHA_MAX = 0.999
# A pixel stops before a splat that would leave no more than this.
MIN_T = 1e-4
# Splats of a list that are evaluated at once, and (tile, pixel, splat) triples.
PART = 32
_MOST_TRIPLES = 1 << 20


def evaluate_alphas(dx: Tensor, dy: Tensor, conics: Tensor, opacities: Tensor) -> Tensor:
    """α at offsets (dx, dy) [...] from the means of splats with conics [..., 3]; 0 where a splat is skipped."""
    a, b, c = conics.unbind(-1)
    sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
    alphas = (opacities * torch.exp(-sigma)).clamp(max=ALPHA_MAX)
    return torch.where((sigma >= 0) & (alphas >= ALPHA_MIN), alphas, 0)


@dataclass(frozen=True)
class Pixels:
    """How far the pixels of T tiles are."""

    T: Tensor  # [T, P] transmittance
    done: Tensor  # [T, P] whether they take no more

    def blend(self, alphas: Tensor) -> tuple[Tensor, Pixels]:
        """Blend splats with `alphas` [T, P, K], front to back: their weights T α, 0 where not blended, and the pixels after."""
        products = (1 - alphas).cumprod(-1)
        states = torch.cat((self.T[..., None], self.T[..., None] * products), -1)  # [T, P, K + 1]
        # α is not negative: from the first splat that would leave too little on, all would.
        blended = (states[..., 1:] > MIN_T) & ~self.done[..., None]
        weights = torch.where(blended, states[..., :-1] * alphas, 0)
        count = blended.sum(-1)
        T = states.gather(-1, count[..., None])[..., 0]
        return weights, Pixels(T, self.done | (count < alphas.shape[-1]))


@dataclass(frozen=True)
class TiledSplats:
    """M splats of I images, and the list of each tile, front to back."""

    means2d: Tensor  # [M, 2]
    conics: Tensor  # [M, 3]
    opacities: Tensor  # [M]
    starts: Tensor  # [I · rows · columns] where each tile's list begins in `ids`
    ends: Tensor  # and one past its last
    ids: Tensor  # [isects] indices into M
    columns: int
    rows: int
    tile_size: int

    @classmethod
    def of(
        cls,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        size: tuple[int, int],
        tile_size: int,
        isect_offsets: Tensor,
        flatten_ids: Tensor,
    ) -> TiledSplats:
        """The splats [..., N, ·] of images of `size` (width, height), with the lists of `isect_tiles`.

        Raises:
            SplatError: an argument has the wrong shape, or the tiles do not cover the images.
        """
        *images, count = leading("means2d", means2d, 2)
        check_shape("conics", conics, (*images, count, 3))
        check_shape("opacities", opacities, (*images, count))
        check_tiles(isect_offsets, tuple(images), size, tile_size)
        rows, columns = isect_offsets.shape[-2:]
        starts = isect_offsets.reshape(-1).long()
        ends = torch.cat((starts[1:], starts.new_tensor([len(flatten_ids)])))
        flat = means2d.reshape(-1, 2), conics.reshape(-1, 3), opacities.reshape(-1)
        return cls(*flat, starts, ends, flatten_ids.long(), columns, rows, tile_size)

    def groups(self) -> Iterator[Tensor]:
        """The tiles [T] by the length of their lists, as many at once as memory allows."""
        size = max(_MOST_TRIPLES // (self.tile_size**2 * PART), 1)
        yield from (self.ends - self.starts).argsort().split(size)

    def pixels(self, tiles: Tensor) -> tuple[Tensor, Tensor]:
        """Column and row of each pixel of tiles [T] in its image, [T, P]."""
        side = torch.arange(self.tile_size, device=tiles.device)
        column, row = tiles % self.columns, tiles // self.columns % self.rows
        x = column[:, None, None] * self.tile_size + side
        y = row[:, None, None] * self.tile_size + side[:, None]
        x, y = torch.broadcast_tensors(x, y)
        return x.flatten(1), y.flatten(1)

    def max_length(self, tiles: Tensor) -> int:
        """Splats of the longest of these lists."""
        return int((self.ends[tiles] - self.starts[tiles]).max()) if len(tiles) else 0

    def part(self, tiles: Tensor, first: int) -> Tensor:
        """The splats from `first` on of each tile's list, [T, PART]; -1 where the list ends before."""
        positions = self.starts[tiles, None] + torch.arange(first, first + PART, device=tiles.device)
        exists = positions < self.ends[tiles, None]
        return torch.where(exists, self.ids[torch.where(exists, positions, 0)], -1)

    def alphas(self, tiles: Tensor, splats: Tensor) -> Tensor:
        """α [T, P, K] of each tile's splats [T, K] at each of its pixels; 0 where there is none."""
        x, y = self.pixels(tiles)
        real = splats.clamp(min=0)
        mean_x, mean_y = self.means2d[real].unbind(-1)
        dx, dy = x[..., None] + 0.5 - mean_x[:, None], y[..., None] + 0.5 - mean_y[:, None]
        opacities = torch.where(splats >= 0, self.opacities[real], 0)
        return evaluate_alphas(dx, dy, self.conics[real][:, None], opacities[:, None])


def check_tiles(isect_offsets: Tensor, images: tuple[int, ...], size: tuple[int, int], tile_size: int) -> None:
    """Raise SplatError unless `isect_offsets` has a number for each tile of these images, and tiles cover them."""
    check_shape("isect_offsets", isect_offsets, (*images, "tile_height", "tile_width"), (math.prod(images), "rows", "columns"))
    rows, columns = isect_offsets.shape[-2:]
    if columns * tile_size < size[0] or rows * tile_size < size[1]:
        raise SplatError(
            f"isect_offsets has {columns} × {rows} tiles of {tile_size} pixels, which do not cover {size[0]} × {size[1]} pixels"
        )
