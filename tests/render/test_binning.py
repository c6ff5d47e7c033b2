"""Tile lists against brute force: every tile with a pixel that sees the splat, in depth order."""

from dataclasses import replace
from itertools import pairwise, product
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
import torch

from splat_py.gpu.device import get_device
from splat_py.render import tiles as render_tiles
from splat_py.render.images import Image, Rasterization
from splat_py.render.options import Options
from splat_py.render.splats import ProjectedSplats, Splats
from splat_py.render.tiles import BinnedTiles, Binning, TileGrid, bin_tiles
from tests.reference.arrays import Array

WIDTH, HEIGHT = 53, 37
TILE_SIZES = (4, 8, 16)
ALPHA_MIN = 1 / 255


def splats_of(rng: np.random.Generator, cameras: int, count: int, *, needles: bool = False) -> ProjectedSplats:
    """Splats of all shapes on and around the image; a fifth is culled, and some have equal depths."""
    shape = (cameras, count)
    means2d = rng.uniform(-12, 12, (*shape, 2)) + rng.uniform(size=(*shape, 2)) * [WIDTH, HEIGHT]
    major = np.exp(rng.uniform(np.log(0.6), np.log(20), shape))
    minor = np.full(shape, 0.55) if needles else major * rng.uniform(0.1, 1, shape)
    angle = rng.uniform(0, np.pi, shape)
    c, s = np.cos(angle), np.sin(angle)
    p, q = major**-2.0, minor**-2.0
    conics = np.stack([c * c * p + s * s * q, c * s * (p - q), s * s * p + c * c * q], -1)
    opacities = np.exp(rng.uniform(np.log(2e-3), 0, shape))
    depths = np.where(rng.random(shape) < 0.3, 5.0, rng.uniform(0.02, 100, shape))
    visible = rng.random(shape) < 0.8
    radii = np.repeat(np.where(visible, 1, 0)[..., None], 2, -1)
    floats = (torch.tensor(x, dtype=torch.float32) for x in (means2d, depths, conics, opacities))
    return ProjectedSplats(*floats, torch.tensor(radii, dtype=torch.int32))


def largest_alpha(splats: ProjectedSplats, grid: TileGrid) -> Array:
    """The largest α of each splat over the pixel centres of each tile, [C, N, rows, columns], in float64."""
    means2d, conics, opacities = (t.double().numpy() for t in (splats.means2d, splats.conics, splats.opacities))
    x, y = np.arange(WIDTH) + 0.5, np.arange(HEIGHT) + 0.5
    dx = x - means2d[..., 0, None]
    dy = y - means2d[..., 1, None]
    a, b, c = (conics[..., i, None, None] for i in range(3))
    sigma = a * dx[..., None, :] ** 2 + 2 * b * dx[..., None, :] * dy[..., None] + c * dy[..., None] ** 2
    alpha = opacities[..., None, None] * np.exp(-sigma / 2)
    size = grid.tile_size
    padded = np.zeros((*alpha.shape[:2], grid.rows * size, grid.columns * size))
    padded[..., :HEIGHT, :WIDTH] = alpha
    return padded.reshape(*alpha.shape[:2], grid.rows, size, grid.columns, size).max((-3, -1))


def lists_of(tiles: BinnedTiles) -> list[npt.NDArray[np.int32]]:
    offsets, ids = tiles.offsets.numpy(), tiles.ids.numpy()
    assert offsets[0] == 0 and offsets[-1] == len(ids) and (np.diff(offsets) >= 0).all()
    return [ids[a:b] for a, b in pairwise(offsets)]


def reserve(binning: Binning, capacity: int, one_word: bool) -> None:
    """Allocate arrays for intersections of one word, or as if tile and splat did not fit into one."""
    with patch.object(render_tiles, "in_one_word", return_value=one_word):
        binning.reserve(capacity)


@pytest.mark.parametrize("tile_size", TILE_SIZES)
@pytest.mark.parametrize("needles", [False, True])
def test_lists_hold_what_a_pixel_can_see_and_little_else(needles: bool, tile_size: int) -> None:
    rng = np.random.default_rng(tile_size)
    splats = splats_of(rng, 2, 150, needles=needles)
    tiles = bin_tiles(splats, WIDTH, HEIGHT, Options(tile_size))
    grid = tiles.grid
    alpha = largest_alpha(splats, grid)
    visible = (splats.radii[..., 0] > 0).numpy()
    needed = visible[..., None, None] & (alpha >= ALPHA_MIN)
    listed = np.zeros_like(needed)
    order = np.argsort(splats.depths.numpy().ravel(), kind="stable")
    place = np.empty(300, int)
    place[order] = np.arange(300)
    lists = lists_of(tiles)
    assert len(lists) == grid.count == 2 * grid.rows * grid.columns
    for tile, ids in enumerate(lists):
        camera, rest = divmod(tile, grid.rows * grid.columns)
        row, column = divmod(rest, grid.columns)
        assert (ids // 150 == camera).all()
        assert (np.diff(place[ids]) > 0).all(), "front to back, equal depths by index, no splat twice"
        listed[camera, ids % 150, row, column] = True
    assert not (listed & ~visible[..., None, None]).any()
    assert not (needed & ~listed).any(), "a tile lacks a splat that one of its pixels can see"
    # The ellipse is tested against the rectangle of pixel centres, which lists a few tiles too many.
    assert listed.sum() <= (1.35 if needles else 1.1) * needed.sum()
    assert int(tiles.offsets[-1]) == listed.sum()


@pytest.mark.parametrize("one_word", [False, True])
def test_a_list_that_is_too_small_is_not_overrun(one_word: bool) -> None:
    """`isect_count` is the true number, the emitted intersections are right, and nothing lies behind the capacity."""
    rng = np.random.default_rng(1)
    splats = splats_of(rng, 1, 200)
    full = bin_tiles(splats, WIDTH, HEIGHT, Options(8))
    pairs = len(full.ids)
    device = get_device()
    memory = device.memory
    arrays = Splats(*(memory.array(t) for t in (splats.means2d, splats.depths, splats.conics, splats.opacities, splats.radii)))
    for capacity in (0, 1, pairs // 2, pairs - 1, pairs, pairs + 1000):
        binning = Binning(device, arrays, full.grid)
        reserve(binning, capacity, one_word)
        # The buffers of the sort, with a margin that only an overrun can change.
        sentinels = []
        for name in ("tiles", *([] if one_word else ["ids"])):
            array = memory.empty(capacity + 4096, np.uint32)
            array.write(np.full(capacity + 4096, 0xABCD_EF01, np.uint32))
            binning._isects = replace(binning._isects, **{name: array})
            sentinels.append(array)
        recorder = device.record()
        binning.record_count(recorder)
        binning.record_lists(recorder)
        recorder.submit()
        assert binning.isect_count.numpy()[0] == pairs, "the true number, for any capacity"
        for array in sentinels:
            assert (array.numpy()[capacity:] == 0xABCD_EF01).all()
        offsets = binning.lists().offsets.numpy()
        assert offsets[0] == 0 and (np.diff(offsets.astype(np.int64)) >= 0).all()
        assert offsets[-1] == min(pairs, capacity)
        if capacity >= pairs:
            np.testing.assert_array_equal(offsets, full.offsets.numpy())
            np.testing.assert_array_equal(binning.lists().ids.numpy()[:pairs], full.ids.numpy())


@pytest.mark.parametrize(
    ("bias", "kept", "width", "height"),
    [
        # Too few, too many, and both.
        *product((-2, 2, None), ("one word", "two words", "all"), (WIDTH,), (HEIGHT,)),
        # 256 tiles: the number that stands for no tile has one bit more than theirs, which the sort needs another pass for.
        (2, "two words", 128, 128),
        (2, "one word", 128, 128),
    ],
)
def test_two_kernels_that_disagree(bias: int | None, kept: str, width: int, height: int) -> None:
    """Two kernels may count and emit different pairs, as on a GPU that rounds them differently. No splat may overwrite or lose
    another's intersections, and images and gradients must still work."""
    rng = np.random.default_rng(3)
    device, count = get_device(), 200
    memory = device.memory
    tensors = splats_of(rng, 1, count)
    splats, grid = tensors.arrays(device), TileGrid(8, -(-width // 8), -(-height // 8), 1)
    options = Options(8, accumulation="PerIntersection" if kept == "all" else "PerWave")
    binning = Binning(device, splats, grid, options)
    recorder = device.record()
    binning.record_count(recorder)
    recorder.submit()
    order, right = binning.lists().order.numpy().copy(), binning._tile_counts.numpy().astype(int)
    full = lists_of(bin_tiles(tensors, width, height, Options(8)))
    tiles_of = [[tile for tile, ids in enumerate(full) if m in ids] for m in range(count)]
    assert right.tolist() == [len(tiles_of[m]) for m in order]

    counted = np.maximum(right + (rng.integers(-3, 4, count) if bias is None else bias), 0)
    assert (counted != right).sum() > count // 4
    binning._tile_counts.write(counted.astype(np.uint32))
    total = int(counted.sum())
    reserve(binning, total, one_word=kept == "one word")
    margins = []
    for name in {"one word": ["tiles"], "two words": ["tiles", "ids"], "all": ["tiles", "ids", "splats"]}[kept]:
        array = memory.array(np.full(total + 64, 0xABCD_EF01, np.uint32))
        binning._isects = replace(binning._isects, **{name: array})
        margins.append(array)
    recorder = device.record()
    binning._isect_offsets.record(recorder, binning._tile_counts)
    binning.record_lists(recorder)
    recorder.submit()
    for array in margins:
        assert (array.numpy()[total:] == 0xABCD_EF01).all()
    offsets, ids = (array.numpy() for array in (binning.lists().offsets, binning.lists().ids))
    expected: list[list[int]] = [[] for _ in full]
    for m, room in zip(order, counted, strict=True):
        for tile in tiles_of[m][:room]:
            expected[tile].append(m)
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected
    assert offsets[0] == 0 and offsets[-1] == np.minimum(counted, right).sum() <= total

    image = Image.empty(device, 1, height, width, 3)
    colors = memory.array(rng.uniform(size=(1, count, 3)).astype(np.float32))
    backgrounds, v_alphas = (memory.array(np.zeros(shape, np.float32)) for shape in ((1, 3), (1, height, width, 1)))
    work = Rasterization(device, splats, colors, backgrounds, binning.lists(), image, options)
    rows = memory.empty((1, count, options.gradient_row_length(3)))
    recorder = device.record()
    work.record(recorder)
    work.record_backward(recorder, image.colors, v_alphas, rows)
    recorder.submit()
    assert np.isfinite(image.colors.numpy()).all() and np.isfinite(rows.numpy()).all() and rows.numpy().any()
    unlisted = [m for m, room in zip(order, counted, strict=True) if not tiles_of[m][:room]]
    assert unlisted and not rows.numpy()[0, unlisted].any()


@pytest.mark.parametrize("cameras", [1, 2])
def test_nothing_to_bin(cameras: int) -> None:
    splats = splats_of(np.random.default_rng(2), cameras, 50)
    bin_tiles(splats, WIDTH, HEIGHT, Options(8))  # leaves data in the memory that is used next
    for count in (0, 3):
        nothing = splats_of(np.random.default_rng(2), cameras, count)
        nothing.radii.zero_()
        tiles = bin_tiles(nothing, WIDTH, HEIGHT, Options(8))
        assert len(tiles.offsets) == cameras * 5 * 7 + 1
        assert len(tiles.ids) == 0 and not tiles.offsets.any()
