"""Lists of the splats that pixels blend, and blending by them, against a loop over pixels and the wheel's torch reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from splat_py import SplatError
from splat_py.gsplat import reference
from splat_py.gsplat.covariances import quat_scale_to_covar_preci
from splat_py.gsplat.indices import accumulate, rasterize_to_indices_in_range
from splat_py.gsplat.intersection import isect_offset_encode, isect_tiles
from tests.gsplat.scenes import BATCHES, assert_same_gradients, nerfacc, scene

pytest.importorskip("gsplat")
from gsplat.cuda import _torch_impl as wheel
from gsplat.cuda import _wrapper as wheel_wrapper

__all__ = ["nerfacc"]
TILE = 8


class Splats:
    """Splats of a small scene and the lists of its tiles."""

    def __init__(self, batch: tuple[int, ...] = (), count: int = 50, dtype: torch.dtype = torch.float64) -> None:
        s = scene(batch, count, dtype=dtype)
        self.size = s.width, s.height
        covars, _ = quat_scale_to_covar_preci(s.quats, s.scales)
        assert covars is not None
        radii, means2d, depths, conics, _ = reference.fully_fused_projection(
            s.means, covars, s.viewmats, s.Ks, s.width, s.height
        )
        # Faint ones are skipped, and many opaque ones end a pixel.
        opacities = s.opacities[..., None, :].expand(radii.shape[:-1])
        self.splats = [t.detach().requires_grad_() for t in (means2d, conics, opacities)]
        self.colors = torch.rand(*radii.shape[:-1], 3, dtype=dtype, requires_grad=True)
        grid = math.ceil(s.width / TILE), math.ceil(s.height / TILE)
        _, keys, self.ids = isect_tiles(means2d, radii, depths, TILE, *grid)
        self.images = radii.shape[:-2]
        offsets = isect_offset_encode(keys, math.prod(self.images), *grid)
        self.offsets = offsets.reshape(*self.images, *grid[::-1])

    @property
    def rest(self) -> tuple[int, int, int, Tensor, Tensor]:
        return *self.size, TILE, self.offsets, self.ids

    def indices(self, first: int = 0, end: float = 1e10, T: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        T = torch.ones(*self.images, *self.size[::-1], dtype=torch.float64) if T is None else T
        return rasterize_to_indices_in_range(first, end, T, *self.splats, *self.rest)  # type: ignore[arg-type]


def test_indices_are_what_a_loop_over_pixels_blends() -> None:
    s = Splats((2,))
    width, height = s.size
    ids, starts = s.ids.tolist(), [*s.offsets.flatten().tolist(), len(s.ids)]
    mean, conic, opacity = (t.detach().flatten(0, 2).tolist() for t in s.splats)
    rows, columns = s.offsets.shape[-2:]
    expected = []
    for image in range(4):
        for pixel in range(width * height):
            x, y = pixel % width, pixel // width
            tile = (image * rows + y // TILE) * columns + x // TILE
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
    found = torch.stack(s.indices(), -1)
    assert found.tolist() == [list(entry) for entry in expected]


def test_ranges_continue_where_the_one_before_ended() -> None:
    s = Splats(count=300)
    longest = int(torch.cat((s.offsets.flatten(), torch.tensor([len(s.ids)]))).diff().max())
    assert longest > TILE**2
    whole = s.indices()
    early = s.indices(0, 1)
    _, opaque = accumulate(*s.splats, s.colors, *early, *s.size)
    late = s.indices(1, 100, (1 - opaque[..., 0]).detach())
    both = torch.stack([torch.cat(parts) for parts in zip(early, late, strict=True)], -1)
    whole_entries = {tuple(entry) for entry in torch.stack(whole, -1).tolist()}
    both_entries = {tuple(entry) for entry in both.tolist()}
    # A pixel that the first range ended begins the second one anew, as in gsplat.
    assert whole_entries <= both_entries
    assert len(late[0])


@pytest.mark.usefixtures("nerfacc")
def test_accumulation_is_the_wheels() -> None:
    s = Splats((2,), count=20)
    arguments = *s.splats, s.colors, *s.indices(), *s.size
    ours, theirs = accumulate(*arguments), wheel.accumulate(*arguments)
    torch.testing.assert_close(ours, theirs)
    assert_same_gradients(ours, theirs, (*s.splats, s.colors), 1e-9)


@pytest.mark.usefixtures("nerfacc")
@pytest.mark.parametrize("batch", BATCHES)
def test_the_reference_rasterizes_as_the_wheels(batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_wrapper, "rasterize_to_indices_in_range", rasterize_to_indices_in_range)
    s = Splats(batch, count=20)
    backgrounds = torch.rand(*s.images, 3, dtype=torch.float64, requires_grad=True)
    arguments = *s.splats[:2], s.colors, s.splats[2], *s.rest, backgrounds
    ours = reference.rasterize_to_pixels(*arguments)
    torch.set_default_dtype(torch.float64)  # The wheel's images have the default type.
    try:
        theirs = wheel._rasterize_to_pixels(*arguments)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(ours, theirs)
    assert_same_gradients(ours, theirs, (*s.splats, s.colors, backgrounds), 1e-9)


def test_the_reference_blends_what_the_lists_say_however_long_they_are() -> None:
    s = Splats(count=300)
    ours = reference.rasterize_to_pixels(*s.splats[:2], s.colors, s.splats[2], *s.rest)
    theirs = accumulate(*s.splats, s.colors, *s.indices(), *s.size)
    torch.testing.assert_close(ours, theirs)
    assert_same_gradients(ours, theirs, (*s.splats, s.colors), 1e-9)


def test_without_splats_there_is_nothing() -> None:
    s = Splats()
    s.ids, s.offsets = s.ids[:0], torch.zeros_like(s.offsets)
    assert [len(t) for t in s.indices()] == [0, 0, 0]
    image, alphas = reference.rasterize_to_pixels(*s.splats[:2], s.colors, s.splats[2], *s.rest)
    assert not image.any()
    assert not alphas.any()


def test_wrong_arguments_are_named() -> None:
    s = Splats()
    with pytest.raises(SplatError, match="isect_offsets has 5 × 4 tiles of 4 pixels, which do not cover 40 × 28"):
        reference.rasterize_to_pixels(*s.splats[:2], s.colors, s.splats[2], *s.size, 4, s.offsets, s.ids)
    with pytest.raises(SplatError, match="transmittances has shape"):
        s.indices(T=torch.ones(2, 3))
    gaussian_ids, pixel_ids, image_ids = s.indices()
    with pytest.raises(SplatError, match="not in order"):
        accumulate(*s.splats, s.colors, gaussian_ids, pixel_ids.flip(0), image_ids, *s.size)
