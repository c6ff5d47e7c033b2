"""Chosen pixels, against the dense functions, which other tests compare with float64, and against loops in Python."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py import gsplat
from splat_py.gsplat.contributors import rasterize_contributing_gaussian_ids as list_ids
from splat_py.gsplat.contributors import rasterize_num_contributing_gaussians as count
from splat_py.gsplat.contributors import rasterize_top_contributing_gaussian_ids as list_top
from tests.gsplat.scenes import assert_same_gradients
from tests.refusals import refused

WIDTH, HEIGHT, IMAGES, TILE = 45, 27, 3, 8
COLUMNS, ROWS = math.ceil(WIDTH / TILE), math.ceil(HEIGHT / TILE)
GRID = TILE, COLUMNS, ROWS
SIZE = WIDTH, HEIGHT


def splats_of(seed: int, number: int = 60) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]:
    """Means, conics and opacities of each image's splats; their radii; their depths."""
    random = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(IMAGES, number, *shape, generator=random)

    conics = uniform(3) * torch.tensor([0.1, 0.02, 0.1]) + torch.tensor([0.02, -0.01, 0.02])
    arrays = uniform(2) * torch.tensor(SIZE), conics, 0.1 + 0.89 * uniform()
    return arrays, torch.full((IMAGES, number, 2), 12, dtype=torch.int32), 1 + 9 * uniform()


def chosen(seed: int, each: int = 40) -> tuple[Tensor, Tensor]:
    """Rows and columns of pixels in any order, and their images: the second has none."""
    random = torch.Generator().manual_seed(seed)
    places = torch.randperm(WIDTH * HEIGHT, generator=random)[: 2 * each]
    images = torch.tensor([0, 2]).repeat(each)
    return torch.stack((places // WIDTH, places % WIDTH), -1).int(), images.int()


def layout_of(pixels: Tensor, images: Tensor) -> tuple[Tensor, ...]:
    return gsplat.build_sparse_tile_layout(pixels, images, IMAGES, *GRID)


def lists_of(splats: Any, layout: tuple[Tensor, ...], **packed: Any) -> tuple[Tensor, ...]:
    """Active tiles, their lists, and the layout's pixels: the arguments of sparse functions after the splats."""
    active, mask, *of_pixels = layout
    (means2d, *_), radii, depths = splats
    return active, *gsplat.isect_tiles_sparse(means2d, radii, depths, mask, active, IMAGES, *GRID, **packed), *of_pixels


def dense(splats: Any) -> tuple[Tensor, Tensor]:
    (means2d, *_), radii, depths = splats
    _, keys, ids = gsplat.isect_tiles(means2d, radii, depths, *GRID)
    return gsplat.isect_offset_encode(keys, IMAGES, COLUMNS, ROWS), ids


@pytest.mark.parametrize("tile_size", [4, 8, 16])
def test_the_layout_is_that_of_a_loop(tile_size: int) -> None:
    pixels, images = chosen(1)
    columns, rows = math.ceil(WIDTH / tile_size), math.ceil(HEIGHT / tile_size)
    found = gsplat.build_sparse_tile_layout(pixels, images, IMAGES, tile_size, columns, rows)
    active, mask, bits, ends, order = found
    held: dict[int, list[tuple[int, int]]] = {}
    for place, ((row, column), image) in enumerate(zip(pixels.tolist(), images.tolist(), strict=True)):
        tile = (image * rows + row // tile_size) * columns + column // tile_size
        held.setdefault(tile, []).append((row % tile_size * tile_size + column % tile_size, place))
    assert active.tolist() == sorted(held)
    assert mask.shape == (IMAGES, rows, columns) and mask.flatten().nonzero().flatten().tolist() == sorted(held)
    assert [part.dtype for part in found] == [torch.int32, torch.bool, torch.uint64, torch.int64, torch.int64]
    assert bits.shape == (len(held), math.ceil(tile_size**2 / 64))
    for tile, words in zip(sorted(held), bits.tolist(), strict=True):
        assert sum(word << 64 * i for i, word in enumerate(words)) == sum(1 << place for place, _ in held[tile])
    assert ends.diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist() == [len(held[tile]) for tile in sorted(held)]
    assert order.tolist() == [place for tile in sorted(held) for _, place in sorted(held[tile])]


def test_lists_are_those_of_the_active_tiles() -> None:
    splats, layout = splats_of(2), layout_of(*chosen(2))
    active, starts, ids, *_ = lists_of(splats, layout)
    assert 0 < len(active) < IMAGES * ROWS * COLUMNS and len(starts) == len(active) + 1 and starts[-1] == len(ids)
    offsets, all_ids = dense(splats)
    ends = [*offsets.flatten().tolist()[1:], len(all_ids)]
    for i, tile in enumerate(active.tolist()):
        assert torch.equal(ids[starts[i] : starts[i + 1]], all_ids[offsets.flatten()[tile] : ends[tile]])
    (means2d, *_), radii, depths = splats
    flat = (means2d.flatten(0, 1),), radii.flatten(0, 1), depths.flatten(0, 1)
    packed = lists_of(flat, layout, image_ids=torch.arange(IMAGES).repeat_interleave(means2d.shape[1]))
    assert torch.equal(packed[1], starts) and torch.equal(packed[2], ids)


@pytest.mark.parametrize("packed", [False, True])
def test_pixels_and_gradients_are_those_of_the_image(packed: bool) -> None:
    splats, (pixels, images) = splats_of(3), chosen(3)
    offsets, ids = dense(splats)
    lists = lists_of(splats, layout_of(pixels, images))
    colors = torch.rand(IMAGES, 60, 4)
    arrays = [splats[0][0], splats[0][1], colors, splats[0][2]]
    inputs = [(array.flatten(0, 1) if packed else array).clone().requires_grad_() for array in arrays]
    backgrounds = torch.rand(IMAGES, 4, requires_grad=True)
    masks = torch.rand(IMAGES, ROWS, COLUMNS) > 0.3
    how: dict[str, Any] = {"backgrounds": backgrounds, "masks": masks, "packed": packed}
    image, alphas = gsplat.rasterize_to_pixels(*inputs, *SIZE, TILE, offsets, ids, absgrad=True, **how)
    at = images.long(), pixels[:, 0].long(), pixels[:, 1].long()
    expected = [image[at], alphas[at]]
    found = gsplat.rasterize_to_pixels_sparse(*inputs, images, *lists, *SIZE, *GRID, **how)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs) and ours.std() > 0.1
    assert_same_gradients(list(found), expected, [*inputs, backgrounds], 1e-5)
    means2d = inputs[0]
    for one in (expected[0], gsplat.rasterize_to_pixels_sparse(*inputs, images, *lists, *SIZE, *GRID, absgrad=True, **how)[0]):
        one.square().sum().backward()
        expected.append(means2d.absgrad)  # type: ignore[attr-defined]
    torch.testing.assert_close(*expected[2:], rtol=1e-5, atol=1e-6)


def test_contributors_are_those_of_the_image() -> None:
    splats, (pixels, images) = splats_of(4), chosen(4)
    lists, (offsets, ids) = lists_of(splats, layout_of(pixels, images)), dense(splats)
    at = images.long(), pixels[:, 0].long(), pixels[:, 1].long()
    of_image = offsets, ids, *SIZE, TILE
    counts, alphas = count(*splats[0], *of_image)
    counted = gsplat.rasterize_num_contributing_gaussians_sparse(*splats[0], *lists, *SIZE, *GRID)
    assert torch.equal(counted[0], counts[at]) and torch.equal(counted[1], alphas[at]) and counts.max() > 4
    listed = gsplat.rasterize_contributing_gaussian_ids_sparse(*splats[0], *lists, counts[at], *SIZE, *GRID)
    top = gsplat.rasterize_top_contributing_gaussian_ids_sparse(*splats[0], *lists, *SIZE, *GRID, 3)
    for ours, theirs in ((listed, list_ids(*splats[0], *of_image, counts)), (top, list_top(*splats[0], *of_image, 3))):
        most = ours[0].shape[-1]
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other[at][:, :most]) and one.any()
    packed = tuple(array.flatten(0, 1) for array in splats[0])
    of_all = gsplat.rasterize_num_contributing_gaussians_sparse(*packed, *lists, *SIZE, *GRID)
    assert torch.equal(of_all[0], counted[0])


def test_no_pixels() -> None:
    pixels, images = torch.empty(0, 2, dtype=torch.int32), torch.empty(0, dtype=torch.int32)
    layout, splats = layout_of(pixels, images), splats_of(5)
    assert [list(part.shape) for part in layout] == [[0], [IMAGES, ROWS, COLUMNS], [0, 1], [1], [0]]
    lists = lists_of(splats, layout)
    assert lists[1].tolist() == [0] and len(lists[2]) == 0
    means2d, conics, opacities = splats[0]
    rows = means2d, conics, torch.rand(IMAGES, 60, 3), opacities
    image, alphas = gsplat.rasterize_to_pixels_sparse(*rows, images, *lists, *SIZE, *GRID)
    assert image.shape == (0, 3) and alphas.shape == (0, 1)
    assert gsplat.rasterize_num_contributing_gaussians_sparse(*splats[0], *lists, *SIZE, *GRID)[0].shape == (0,)


def test_errors() -> None:
    pixels, images = chosen(6)
    refused(r"pixels has shape \[80, 1\]", layout_of, pixels[:, :1], images)
    refused(r"image_ids has shape \[79\]", layout_of, pixels, images[1:])
    refused("pixels has pixels outside the tiles", layout_of, pixels - 40, images)
    refused("pixels has pixels outside the tiles", layout_of, pixels + 40, images)
    refused("image_ids has images outside 0 to 2", layout_of, pixels, images + 1)
    refused("pixels gives a pixel of an image twice", layout_of, pixels[:1].repeat(2, 1), images[:2] * 0)
    splats, layout = splats_of(6), layout_of(pixels, images)
    active, starts, ids, bits, ends, order = lists_of(splats, layout)

    def counted(*lists: Tensor, size: tuple[int, int] = SIZE) -> Any:
        return gsplat.rasterize_num_contributing_gaussians_sparse(*splats[0], *lists, *size, *GRID)

    refused("active_tiles does not ascend within 0 to 71", counted, active.flip(0), starts, ids, bits, ends, order)
    refused("active_tiles does not ascend within 0 to 71", counted, active + 60, starts, ids, bits, ends, order)
    refused("tile_offsets has shape", counted, active, starts[1:], ids, bits, ends, order)
    refused("tile_pixel_mask has shape", counted, active, starts, ids, bits[1:], ends, order)
    refused("tile_pixel_cumsum has shape", counted, active, starts, ids, bits, ends[1:], order)
    refused("pixel_map has shape", counted, active, starts, ids, bits, ends, order[1:])
    refused("tile_pixel_mask has pixels outside 40 × 20", counted, active, starts, ids, bits, ends, order, size=(40, 20))
    (means2d, *_), radii, depths = splats
    mask = layout[1]
    refused("tile_mask has shape", gsplat.isect_tiles_sparse, means2d, radii, depths, mask[1:], active, IMAGES, *GRID)
    refused("needs image_ids", gsplat.isect_tiles_sparse, means2d[0], radii[0], depths[0], mask, active, IMAGES, *GRID)
    rows = *splats[0][:2], torch.rand(IMAGES, 60, 3), splats[0][2], images
    sparse, lists = gsplat.rasterize_to_pixels_sparse, (active, starts, ids, bits, ends, order, *SIZE, *GRID)
    refused(r"backgrounds has shape \[2, 3\]", sparse, *rows, *lists, backgrounds=torch.zeros(2, 3))
    refused(r"masks has shape \[2, 4, 6\]", sparse, *rows, *lists, masks=mask[1:])
    refused(
        "num_contributing_gaussians has shape",
        gsplat.rasterize_contributing_gaussian_ids_sparse,
        *splats[0],
        *lists[:6],
        torch.zeros(3),
        *SIZE,
        *GRID,
    )
