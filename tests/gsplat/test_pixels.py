"""The kernels' rasterizer with lists of tiles that a caller brings, against the reference in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py import SplatError
from splat_py.gsplat import reference
from splat_py.gsplat.intersection import isect_offset_encode, isect_tiles
from splat_py.gsplat.pixels import rasterize_to_pixels
from splat_py.gsplat.projection import fully_fused_projection
from tests.gsplat.scenes import BATCHES, assert_same_gradients, scene

WIDTH, HEIGHT = 40, 28


@dataclass
class Tiled:
    """Splats of images and the lists of their tiles."""

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

    def render(self, **options: Any) -> tuple[Tensor, Tensor]:
        return rasterize_to_pixels(*self.arguments, self.backgrounds, packed=self.packed, **options)

    def refer(self) -> tuple[Tensor, Tensor]:
        return reference.rasterize_to_pixels(*self.arguments, self.backgrounds)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return *self.inputs[:4], WIDTH, HEIGHT, self.tile_size, self.offsets, self.ids


def tiled(
    batch: Sequence[int] = (), channels: int = 3, tile_size: int = 8, packed: bool = False, beyond: int = 0
) -> Tiled:
    """Splats of a small scene; `beyond`: so many rows and columns of tiles more than the image needs."""
    s = scene(batch)
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
    opacities = s.opacities[..., None, :].expand(*images, 50).flatten()
    opacities = opacities.unflatten(0, (*images, 50)) if not packed else torch.rand(len(depths))
    tensors = means2d, conics, colors, opacities, torch.rand(*images, channels)
    return Tiled(*(tensor.detach().clone().requires_grad_() for tensor in tensors), offsets, ids, tile_size, packed)


@pytest.mark.parametrize("tile_size", [8, 16])
@pytest.mark.parametrize("batch", BATCHES)
def test_pixels_are_the_references(batch: tuple[int, ...], tile_size: int) -> None:
    t = tiled(batch, tile_size=tile_size)
    ours, theirs = t.render(), t.refer()
    assert ours[0].shape == (*batch, 2, HEIGHT, WIDTH, 3)
    assert ours[1].shape == (*batch, 2, HEIGHT, WIDTH, 1)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert_same_gradients(ours, theirs, t.inputs, 1e-4)


@pytest.mark.parametrize("channels", [1, 33])
def test_there_may_be_any_number_of_channels(channels: int) -> None:
    t = tiled(channels=channels)
    ours, theirs = t.render(), t.refer()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert_same_gradients(ours, theirs, t.inputs, 1e-4)


def test_packed_pixels_are_those_of_the_same_splats() -> None:
    t = tiled((2,), packed=True)
    assert t.means2d.dim() == 2
    ours = t.render()
    assert ours[0].shape == (2, 2, HEIGHT, WIDTH, 3)
    # To the reference the whole list is each image's.
    everywhere = [tensor.expand(2, 2, *tensor.shape) for tensor in t.inputs[:4]]
    theirs = reference.rasterize_to_pixels(*everywhere, WIDTH, HEIGHT, 8, t.offsets, t.ids, t.backgrounds)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert_same_gradients(ours, theirs, t.inputs, 1e-4)


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


def test_masks_leave_out_lists_that_do_not_begin_at_the_first_entry() -> None:
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
    assert t.means2d.grad is not None
    assert (absolute >= t.means2d.grad.abs() - 1e-5).all()


@pytest.mark.parametrize("packed", [False, True])
def test_gradients_are_the_same_from_run_to_run_where_asked_for(packed: bool) -> None:
    t = tiled(packed=packed)
    masks = torch.ones_like(t.offsets, dtype=torch.bool)
    masks[0, 0, 0] = False

    def gradients(**options: Any) -> tuple[Tensor, ...]:
        image, alphas = t.render(masks=masks, **options)
        return torch.autograd.grad(image.square().sum() + alphas.sum(), t.inputs)

    ours = gradients(accumulate="pair")
    torch.use_deterministic_algorithms(True)
    try:
        again = gradients()
    finally:
        torch.use_deterministic_algorithms(False)
    for a, b, c in zip(ours, again, gradients(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-4)


def test_without_splats_there_is_the_background() -> None:
    t = tiled()
    t.ids, t.offsets = t.ids[:0], torch.zeros_like(t.offsets)
    image, alphas = t.render()
    assert torch.equal(image, t.backgrounds[:, None, None].expand_as(image))
    assert not alphas.any()


def test_wrong_arguments_are_named() -> None:
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
    wrong("isect_offsets does not ascend", flatten_ids=t.ids[:10])
    wrong("absgrad is not supported", kind=NotImplementedError, absgrad=True, colors=torch.rand(2, 50, 33))
