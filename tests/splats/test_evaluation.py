"""Held-out views, and photographs of which nothing counts."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from splat_py.errors import SplatError
from splat_py.scene import Camera
from splat_py.splats.evaluation import compare, evaluate_views

SIDE = 24


def a_dataset(*weights: int) -> Any:
    """Grey photographs whose pixels have these weights."""
    camera = Camera.look_at((0, 0, -1), (0, 0, 0), (0, 1, 0), 60, SIDE, SIDE)
    photographs = [np.dstack([np.full((SIDE, SIDE, 3), 100), np.full((SIDE, SIDE), w)]).astype(np.uint8) for w in weights]
    views = [SimpleNamespace(name=f"{number}.png", camera=camera) for number in range(len(weights))]
    return SimpleNamespace(root=Path("capture"), views=views, image=photographs.__getitem__)


def draw(camera: Camera) -> np.ndarray:
    return np.full((SIDE, SIDE, 3), 0.5, np.float32)


def test_a_photograph_that_counts_nothing_is_left_out_of_the_means() -> None:
    alone = evaluate_views(draw, a_dataset(255), [0])
    with pytest.warns(UserWarning, match=r"no pixel of 1\.png counts, so that it is left out"):
        scores = evaluate_views(draw, a_dataset(255, 0), [0, 1])
    assert scores == alone
    with pytest.warns(UserWarning, match="left out"), pytest.raises(SplatError, match="correct the masks"):
        evaluate_views(draw, a_dataset(0), [0])


def test_compare_has_no_number_for_it() -> None:
    image, dataset = draw(None), a_dataset(0, 255)  # type: ignore[arg-type]
    assert all(map(math.isnan, compare(image, dataset.image(0))))
    psnr, ssim = compare(image, dataset.image(1))
    assert psnr == pytest.approx(-20 * np.log10(0.5 - 100 / 255), abs=1e-3) and 0 < ssim < 1


def test_psnr_and_ssim_are_torchmetrics() -> None:
    functional = pytest.importorskip("torchmetrics.functional.image")
    rng = np.random.default_rng(0)
    for height, width in ((31, 45), (64, 48), (6, 40)):
        photograph = rng.integers(0, 256, (height, width, 4), dtype=np.uint8)
        photograph[..., 3] = 255
        wanted = photograph[..., :3] / np.float32(255)
        image = (wanted + rng.normal(0, 0.1, wanted.shape)).clip(0, 1).astype(np.float32)
        x, y = (torch.from_numpy(a).permute(2, 0, 1)[None] for a in (image, wanted))
        psnr, ssim = compare(image, photograph)
        assert abs(psnr - float(functional.peak_signal_noise_ratio(x, y, data_range=1.0))) < 1e-4
        assert abs(ssim - float(functional.structural_similarity_index_measure(x, y, data_range=1.0))) < 1e-4


def test_pixels_that_do_not_count_change_nothing() -> None:
    rng = np.random.default_rng(1)
    photograph = rng.integers(0, 256, (SIDE, SIDE, 4), dtype=np.uint8)
    photograph[..., 3] = np.where(np.arange(SIDE) < 9, 0, 255)
    image = rng.uniform(size=(SIDE, SIDE, 3)).astype(np.float32)
    other, changed = photograph.copy(), image.copy()
    other[:, :9, :3], changed[:, :9] = 7, 0.3
    assert compare(image, photograph) == compare(changed, other)
    squared = (image[:, 9:] - photograph[:, 9:, :3] / 255.0) ** 2
    assert compare(image, photograph)[0] == pytest.approx(-10 * np.log10(squared.mean()), abs=1e-5)
