"""Tiles that bounding boxes meet, against the wheel's torch reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from splat_py import SplatError
from splat_py.gsplat.intersection import isect_offset_encode, isect_tiles
from tests.gsplat.scenes import BATCHES

pytest.importorskip("gsplat")
from gsplat.cuda import _torch_impl as wheel

COLUMNS, ROWS, TILE = 3, 4, 16


def boxes(batch: tuple[int, ...] = (), count: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(count)
    means2d = torch.randn(*batch, 2, count, 2) * 40
    radii = torch.randint(0, 40, (*batch, 2, count, 2), dtype=torch.int32)
    return means2d, radii, torch.rand(*batch, 2, count)


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("batch", BATCHES)
def test_intersections_are_the_wheels(batch: tuple[int, ...], sort: bool) -> None:
    splats, images = boxes(batch), 2 * math.prod(batch)
    ours = isect_tiles(*splats, TILE, COLUMNS, ROWS, sort)
    theirs = wheel._isect_tiles(*splats, TILE, COLUMNS, ROWS, sort)
    assert [t.dtype for t in ours] == [torch.int32, torch.int64, torch.int32]
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    if sort:
        offsets = isect_offset_encode(ours[1], images, COLUMNS, ROWS)
        assert torch.equal(offsets, wheel._isect_offset_encode(ours[1], images, COLUMNS, ROWS))


def test_packed_intersections_are_those_of_the_same_splats() -> None:
    means2d, radii, depths = boxes()
    whole = isect_tiles(means2d, radii, depths, TILE, COLUMNS, ROWS)
    kept = torch.arange(0, 120, 3)
    packed = isect_tiles(
        means2d.flatten(0, 1)[kept],
        radii.flatten(0, 1)[kept],
        depths.flatten()[kept],
        TILE,
        COLUMNS,
        ROWS,
        packed=True,
        n_images=2,
        image_ids=kept // 60,
        gaussian_ids=kept % 60,
    )
    same = torch.isin(whole[2], kept)
    assert torch.equal(packed[0], whole[0].flatten()[kept])
    assert torch.equal(packed[1], whole[1][same])
    assert torch.equal(kept[packed[2].long()], whole[2][same].long())


def test_nothing_intersects_nothing() -> None:
    means2d, radii, depths = boxes()
    tiles, keys, ids = isect_tiles(means2d, torch.zeros_like(radii), depths, TILE, COLUMNS, ROWS)
    assert not tiles.any()
    assert len(keys) == len(ids) == 0
    assert torch.equal(isect_offset_encode(keys, 2, COLUMNS, ROWS), torch.zeros(2, ROWS, COLUMNS, dtype=torch.int32))


def test_wrong_arguments_are_named() -> None:
    means2d, radii, depths = boxes()
    with pytest.raises(SplatError, match="radii has shape"):
        isect_tiles(means2d, radii[0], depths, TILE, COLUMNS, ROWS)
    with pytest.raises(SplatError, match="image_ids and n_images"):
        isect_tiles(means2d[0], radii[0], depths[0], TILE, COLUMNS, ROWS, packed=True)
    with pytest.raises(SplatError, match="64-bit keys"):
        isect_tiles(means2d, radii, depths, 1, 1 << 20, 1 << 20)
