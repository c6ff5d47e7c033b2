"""Tiles that bounding boxes meet, and splats that pixels blend, against gsplat's own torch functions and a loop."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py import SplatError
from splat_py.gsplat.intersection import accumulate, isect_offset_encode, isect_tiles, rasterize_to_indices_in_range
from splat_py.gsplat.pixels import rasterize_to_pixels
from splat_py.gsplat.projection import fully_fused_projection
from tests.gsplat.scenes import BATCHES, assert_same_gradients, scene
from tests.refusals import refused

COLUMNS, ROWS, TILE = 3, 4, 16
# Pixels of a tile's side, and of the image's.
SIDE, WIDTH, HEIGHT = 8, 40, 28
EXACT = torch.float64


def boxes(batch: tuple[int, ...] = (), count: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(count)
    means2d = torch.randn(*batch, 2, count, 2) * 40
    return means2d, torch.randint(0, 40, (*batch, 2, count, 2), dtype=torch.int32), torch.rand(*batch, 2, count)


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("batch", BATCHES)
def test_intersections_are_gsplats(batch: tuple[int, ...], sort: bool, own_package: ModuleType) -> None:
    splats, images = boxes(batch), 2 * math.prod(batch)
    ours = isect_tiles(*splats, TILE, COLUMNS, ROWS, sort)
    theirs = own_package._isect_tiles(*splats, TILE, COLUMNS, ROWS, sort)
    assert [t.dtype for t in ours] == [torch.int32, torch.int64, torch.int32]
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    if sort:
        offsets = isect_offset_encode(ours[1], images, COLUMNS, ROWS)
        assert torch.equal(offsets, own_package._isect_offset_encode(ours[1], images, COLUMNS, ROWS))


def test_packed_intersections_are_those_of_the_same_splats() -> None:
    splats, kept = boxes(), torch.arange(0, 120, 3)
    whole = isect_tiles(*splats, TILE, COLUMNS, ROWS)
    whose: dict[str, Any] = {"packed": True, "n_images": 2, "image_ids": kept // 60, "gaussian_ids": kept % 60}
    packed = isect_tiles(*(tensor.flatten(0, 1)[kept] for tensor in splats), TILE, COLUMNS, ROWS, **whose)
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
    t = tiled(dtype=EXACT)
    t.ids, t.offsets = t.ids[:0], torch.zeros_like(t.offsets)
    assert [len(indices) for indices in t.indices()] == [0, 0, 0]
    image, alphas = accumulate(*t.splats, t.colors, *t.indices(), WIDTH, HEIGHT)
    assert not image.any() and not alphas.any()


def test_wrong_arguments_are_named() -> None:
    means2d, radii, depths = boxes()
    refused("radii has shape", isect_tiles, means2d, radii[0], depths, TILE, COLUMNS, ROWS)
    refused("image_ids and n_images", isect_tiles, means2d[0], radii[0], depths[0], TILE, COLUMNS, ROWS, packed=True)
    one_list = {"packed": True, "n_images": 1, "image_ids": torch.zeros(len(radii[0]), dtype=torch.int32)}
    with pytest.raises(RuntimeError, match="segmented sort is not supported for packed inputs"):
        isect_tiles(means2d[0], radii[0], depths[0], TILE, COLUMNS, ROWS, segmented=True, **one_list)
    refused("64-bit keys", isect_tiles, means2d, radii, depths, 1, 1 << 20, 1 << 20)
    t = tiled(dtype=EXACT)
    refused("transmittances has shape", t.indices, T=torch.ones(2, 3))
    gaussian_ids, pixel_ids, image_ids = t.indices()
    refused("not in order", accumulate, *t.splats, t.colors, gaussian_ids, pixel_ids.flip(0), image_ids, WIDTH, HEIGHT)
    t.tile_size = 4
    refused("isect_offsets has 5 × 4 tiles of 4 pixels, which do not cover 40 × 28", t.indices)


@dataclass
class Tiled:
    means2d: Tensor
    conics: Tensor
    colors: Tensor
    opacities: Tensor
    backgrounds: Tensor
    offsets: Tensor
    ids: Tensor
    tile_size: int
    packed: bool = False

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.means2d, self.conics, self.colors, self.opacities, self.backgrounds

    @property
    def splats(self) -> tuple[Tensor, ...]:
        return self.means2d, self.conics, self.opacities

    @property
    def lists(self) -> tuple[int, int, int, Tensor, Tensor]:
        return WIDTH, HEIGHT, self.tile_size, self.offsets, self.ids

    def render(self, **options: Any) -> tuple[Tensor, Tensor]:
        return rasterize_to_pixels(*self.inputs[:4], *self.lists, self.backgrounds, packed=self.packed, **options)

    def refer(self) -> tuple[Tensor, Tensor]:
        reference = import_module("gsplat.cuda._torch_impl")._rasterize_to_pixels
        return reference(*self.inputs[:4], *self.lists, self.backgrounds)

    def indices(self, first: int = 0, end: float = 1e10, T: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        T = torch.ones(*self.offsets.shape[:-2], HEIGHT, WIDTH) if T is None else T.float()
        splats = (part.float() for part in self.splats)
        return rasterize_to_indices_in_range(first, end, T, *splats, *self.lists)  # type: ignore[arg-type]


def tiled(
    batch: Sequence[int] = (),
    channels: int = 3,
    tile_size: int = SIDE,
    packed: bool = False,
    beyond: int = 0,
    count: int = 50,
    dtype: torch.dtype = torch.float32,
) -> Tiled:
    """Splats of a small scene; `beyond` is the number of rows and columns of tiles beyond the image."""
    s = scene(batch, count)
    results = fully_fused_projection(s.means, None, s.quats, s.scales, s.viewmats, s.Ks, WIDTH, HEIGHT, packed=packed)
    radii, means2d, depths, conics, _ = results[-5:]
    grid = math.ceil(WIDTH / tile_size) + beyond, math.ceil(HEIGHT / tile_size) + beyond
    images = s.viewmats.shape[:-2]
    whose: dict[str, Any] = {}
    if packed:
        whose = {"packed": True, "n_images": images.numel(), "image_ids": results[0] * 2 + results[1]}
    _, keys, ids = isect_tiles(means2d, radii, depths, tile_size, *grid, **whose)
    offsets = isect_offset_encode(keys, images.numel(), *grid).reshape(*images, *grid[::-1])
    torch.manual_seed(0)
    colors = torch.rand(*depths.shape, channels)
    # Pixels skip faint ones, and many opaque ones end a pixel.
    opacities = torch.rand(len(depths)) if packed else s.opacities[..., None, :].expand(*images, count)
    given = means2d, conics, colors, opacities, torch.rand(*images, channels)
    tensors = [tensor.detach().to(dtype, copy=True).requires_grad_() for tensor in given]
    return Tiled(*tensors, offsets, ids, tile_size, packed)


def test_indices_are_what_a_loop_over_pixels_blends() -> None:
    t = tiled((2,), dtype=EXACT)
    ids, starts = t.ids.tolist(), [*t.offsets.flatten().tolist(), len(t.ids)]
    mean, conic, opacity = (part.detach().flatten(0, 2).tolist() for part in t.splats)
    rows, columns = t.offsets.shape[-2:]
    expected = []
    for image in range(4):
        for pixel in range(WIDTH * HEIGHT):
            x, y = pixel % WIDTH, pixel // WIDTH
            tile = (image * rows + y // SIDE) * columns + x // SIDE
            T = 1.0
            for splat in ids[starts[tile] : starts[tile + 1]]:
                dx, dy = x + 0.5 - mean[splat][0], y + 0.5 - mean[splat][1]
                a, b, c = conic[splat]
                alpha = min(0.999, opacity[splat] * math.exp(-0.5 * (a * dx * dx + c * dy * dy) - b * dx * dy))
                if alpha < 1 / 255:
                    continue
                T *= 1 - alpha
                if T <= 1e-4:
                    break
                expected.append((splat % 50, pixel, image))
    assert torch.stack(t.indices(), -1).tolist() == [list(entry) for entry in expected]


def test_ranges_continue_where_the_one_before_ended() -> None:
    t = tiled(count=300, dtype=EXACT)
    longest = int(torch.cat((t.offsets.flatten(), torch.tensor([len(t.ids)]))).diff().max())
    assert longest > SIDE**2
    early = t.indices(0, 1)
    _, opaque = accumulate(*t.splats, t.colors, *early, WIDTH, HEIGHT)
    late = t.indices(1, 100, (1 - opaque[..., 0]).detach())
    whole, first, second = (set(zip(*torch.stack(found).tolist(), strict=True)) for found in (t.indices(), early, late))
    # A pixel that the first range ended starts again in the second one, as in gsplat.
    assert whole <= first | second and second


@pytest.mark.parametrize("batch", BATCHES)
def test_accumulation_is_gsplats(batch: tuple[int, ...], own_package: ModuleType) -> None:
    t = tiled(batch, dtype=EXACT)
    arguments = *t.splats, t.colors, *t.indices(), WIDTH, HEIGHT
    ours, theirs = accumulate(*arguments), own_package.accumulate(*arguments)
    torch.testing.assert_close(ours, theirs)
    assert_same_gradients(ours, theirs, t.inputs[:4], 1e-9)


def assert_pixels_agree(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], t: Tiled) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert_same_gradients(ours, theirs, t.inputs, 1e-4)


@pytest.mark.usefixtures("own_package")
@pytest.mark.parametrize(
    ("batch", "tile_size", "channels"), [*product(BATCHES, (8, 16), (3,)), ((), 8, 1), ((), 8, 33)], ids=str
)
def test_pixels_are_gsplats(batch: tuple[int, ...], tile_size: int, channels: int) -> None:
    t = tiled(batch, channels, tile_size)
    ours = t.render()
    assert ours[0].shape == (*batch, 2, HEIGHT, WIDTH, channels)
    assert ours[1].shape == (*batch, 2, HEIGHT, WIDTH, 1)
    assert_pixels_agree(ours, t.refer(), t)


def test_packed_pixels_are_those_of_the_same_splats(own_package: ModuleType) -> None:
    t = tiled((2,), packed=True)
    assert t.means2d.dim() == 2
    ours = t.render()
    assert ours[0].shape == (2, 2, HEIGHT, WIDTH, 3)
    # gsplat's function reads the whole list for each image.
    everywhere = [tensor.expand(2, 2, *tensor.shape) for tensor in t.inputs[:4]]
    theirs = own_package._rasterize_to_pixels(*everywhere, WIDTH, HEIGHT, 8, t.offsets, t.ids, t.backgrounds)
    assert_pixels_agree(ours, theirs, t)


@pytest.mark.usefixtures("own_package")
def test_tiles_may_reach_beyond_the_image() -> None:
    t = tiled()
    wide = tiled(beyond=1)
    assert wide.offsets.shape == (2, t.offsets.shape[1] + 1, t.offsets.shape[2] + 1)
    ours = wide.render()
    torch.testing.assert_close(ours, t.render())
    assert_same_gradients(ours, wide.refer(), wide.inputs, 1e-4)


def test_masked_tiles_show_the_background() -> None:
    t = tiled((2,))
    masks = torch.rand(t.offsets.shape) < 0.5
    image, alphas = t.render(masks=masks)
    whole_image, whole_alphas = t.render()
    of_pixels = masks.repeat_interleave(8, -1).repeat_interleave(8, -2)[..., :HEIGHT, :WIDTH, None]
    behind = t.backgrounds[..., None, None, :]
    expected = torch.where(of_pixels, whole_image, behind), torch.where(of_pixels, whole_alphas, 0)
    torch.testing.assert_close((image, alphas), expected)
    assert_same_gradients((image, alphas), expected, t.inputs, 1e-5)
    t = tiled()
    t.offsets = t.offsets + 3
    t.ids = torch.cat((t.ids[:3], t.ids))
    torch.testing.assert_close(t.render(masks=torch.ones_like(t.offsets, dtype=torch.bool)), t.render())


def test_absolute_gradients_are_those_of_all_pixels() -> None:
    t = tiled()
    t.means2d.absgrad = None  # type: ignore[attr-defined]
    image, _ = t.render(absgrad=True)
    image.sum().backward()
    total = torch.zeros_like(t.means2d)
    rows = t.render()[0].sum(-1)
    for pixel in range(0, rows.numel(), 97):
        total += torch.autograd.grad(rows.flatten()[pixel], t.means2d, retain_graph=True)[0].abs()
    absolute = t.means2d.absgrad  # type: ignore[attr-defined]
    assert (absolute >= total * 0.999 - 1e-5).all()
    assert (absolute >= t.means2d.grad.abs() - 1e-5).all()


@pytest.mark.parametrize("packed", [False, True])
def test_gradients_are_the_same_from_run_to_run_where_asked_for(packed: bool, deterministic_torch: Any) -> None:
    t = tiled(packed=packed)
    masks = torch.ones_like(t.offsets, dtype=torch.bool)
    masks[0, 0, 0] = False

    def gradients(**options: Any) -> tuple[Tensor, ...]:
        image, alphas = t.render(masks=masks, **options)
        return torch.autograd.grad(image.square().sum() + alphas.sum(), t.inputs)

    ours, in_any_order = gradients(accumulate="pair"), gradients()
    deterministic_torch(True)
    for a, b, c in zip(ours, gradients(), in_any_order, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-4)


def test_without_splats_there_is_the_background() -> None:
    t = tiled()
    t.ids, t.offsets = t.ids[:0], torch.zeros_like(t.offsets)
    image, alphas = t.render()
    assert torch.equal(image, t.backgrounds[:, None, None].expand_as(image))
    assert not alphas.any()


def test_wrong_arguments_of_pixels_are_named() -> None:
    t = tiled()

    def wrong(match: str, *, kind: type[Exception] = SplatError, **changed: Any) -> None:
        given = dict(zip(("means2d", "conics", "colors", "opacities"), t.inputs, strict=False))
        given |= {"image_width": WIDTH, "image_height": HEIGHT, "tile_size": 8}
        with pytest.raises(kind, match=match):
            rasterize_to_pixels(**(given | {"isect_offsets": t.offsets, "flatten_ids": t.ids} | changed))

    wrong("conics has shape", conics=t.conics[..., :2])
    wrong("colors has dtype torch.float64", colors=t.colors.double())
    wrong("tile_size is 7", tile_size=7)
    wrong("do not cover", image_width=400)
    wrong("masks has shape", masks=torch.ones(2, 2))
    wrong("backgrounds has shape", backgrounds=torch.ones(2, 4))
    wrong("flatten_ids holds an index", flatten_ids=t.ids + 1000)
    wrong("isect_offsets must ascend", flatten_ids=t.ids[:10])
    wrong("absgrad is not supported", kind=NotImplementedError, absgrad=True, colors=torch.rand(2, 50, 129))
