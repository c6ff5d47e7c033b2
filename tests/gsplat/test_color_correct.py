"""Colours matched to a reference: maps of the kinds that are fitted are undone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splat_py import SplatError
from splat_py.gsplat.color_correct import color_correct_affine, color_correct_quadratic


def picture(*shape: int) -> Tensor:
    return 0.1 + 0.8 * torch.rand(shape, generator=torch.Generator().manual_seed(0))


def test_affine_maps_are_undone() -> None:
    ref = picture(2, 12, 17, 3)
    img = ref * torch.tensor([0.5, 0.9, 0.7]) + torch.tensor([0.2, 0.05, 0.0])
    torch.testing.assert_close(color_correct_affine(img, ref), ref, atol=1e-5, rtol=0)


def test_quadratic_maps_are_found() -> None:
    img = picture(12, 17, 3)
    mixed = img @ torch.tensor([[0.7, 0.1, 0.0], [0.1, 0.6, 0.1], [0.0, 0.1, 0.5]])
    ref = mixed - 0.2 * img.roll(1, dims=-1) * img + 0.15
    assert float(ref.min()) > 0.01 and float(ref.max()) < 0.99
    torch.testing.assert_close(color_correct_quadratic(img, ref), ref, atol=1e-4, rtol=0)
    assert float((color_correct_affine(img, ref) - ref).abs().max()) > 0.01


def test_saturated_pixels_do_not_count() -> None:
    img = picture(20, 20, 3)
    ref = 0.8 * img + 0.1
    damaged = ref.clone()
    damaged[:5] = 1.0
    torch.testing.assert_close(color_correct_quadratic(img, damaged), ref, atol=1e-4, rtol=0)


@pytest.mark.parametrize("correct", [color_correct_affine, color_correct_quadratic])
def test_flat_and_saturated_images_stay_finite(correct: object) -> None:
    assert callable(correct)
    ref = picture(5, 6, 3)
    for img in (torch.full((5, 6, 3), 0.5), torch.ones(5, 6, 3), torch.zeros(5, 6, 3)):
        for a, b in ((img, ref), (ref, img)):
            found = correct(a, b)
            assert found.shape == (5, 6, 3) and bool(((found >= 0) & (found <= 1)).all())


@pytest.mark.parametrize("correct", [color_correct_affine, color_correct_quadratic])
def test_shapes_that_differ_are_named(correct: object) -> None:
    assert callable(correct)
    with pytest.raises(SplatError, match=r"img has shape \[4, 4, 3\] and ref \[4, 5, 3\]"):
        correct(torch.rand(4, 4, 3), torch.rand(4, 5, 3))
