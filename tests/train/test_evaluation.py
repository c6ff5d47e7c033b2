"""Scores of held-out views: PSNR, SSIM, matched colours and LPIPS; and photographs without a pixel that counts."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import Camera
from splat_py.base.errors import SplatError
from splat_py.train import evaluation
from splat_py.train.evaluation import Lpips, compare, corrected_psnr, evaluate_views, open_lpips

SIDE = 24


def a_dataset(*weights: int) -> Any:
    """Grey photographs whose pixels have these weights."""
    camera = Camera.look_at((0, 0, -1), (0, 0, 0), (0, 1, 0), 60, SIDE, SIDE)
    photographs = [np.dstack([np.full((SIDE, SIDE, 3), 100), np.full((SIDE, SIDE), w)]).astype(np.uint8) for w in weights]
    views = [SimpleNamespace(name=f"{number}.png", camera=camera) for number in range(len(weights))]
    return SimpleNamespace(root=Path("capture"), views=views, image=photographs.__getitem__, points=None, model=None)


def draw(camera: Camera) -> np.ndarray:
    return np.full((SIDE, SIDE, 3), 0.5, np.float32)


def test_a_photograph_that_counts_nothing_is_left_out_of_the_means() -> None:
    alone = evaluate_views(draw, a_dataset(255), [0])
    with pytest.warns(UserWarning, match=r"1\.png is left out, because its mask excludes every pixel"):
        scores = evaluate_views(draw, a_dataset(255, 0), [0, 1])
    assert scores == alone
    with pytest.warns(UserWarning, match="left out"), pytest.raises(SplatError, match="correct the masks"):
        evaluate_views(draw, a_dataset(0), [0])
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


def grey(*values: float, weight: int = 255) -> np.ndarray:
    rgb = np.repeat(np.asarray(values)[None, :, None], 3, -1)
    return np.dstack([rgb, np.full((1, len(values)), weight)]).astype(np.uint8)


def rendered(*values: float) -> np.ndarray:
    return np.repeat(np.asarray(values, np.float32)[None, :, None], 3, -1)


def test_psnr_with_colours_matched() -> None:
    reference = grey(51, 102, 204)
    assert corrected_psnr(rendered(0.3, 0.4, 0.6), reference) > 90
    # By hand: slope 0.75 and offset 0.05; (render - 0.05) / 0.75 is 1/15, 1/15, 7/15.
    squares = [(1 / 15) ** 2, (1 / 15 - 0.2) ** 2, (7 / 15 - 0.4) ** 2]
    expected = -10 * math.log10(sum(squares) / 3)
    assert corrected_psnr(rendered(0.1, 0.1, 0.4), grey(0, 51, 102)) == pytest.approx(expected, abs=1e-4)
    image, reference = rendered(0.1, 0.1, 0.4, 0.9), grey(0, 51, 102, 3)
    reference[0, 3, 3] = 0
    assert corrected_psnr(image, reference) == corrected_psnr(image[:, :3], reference[:, :3])
    assert math.isnan(corrected_psnr(image, grey(1, 2, 3, 4, weight=0)))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def have(*packages: str, weights: bool = True) -> None:
        monkeypatch.setattr(evaluation, "find_spec", lambda name: SimpleNamespace() if name in packages else None)
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        if weights:
            (tmp_path / "checkpoints" / "alexnet-owt-7be5be79.pth").write_bytes(b"")

    return have


class Fake(torch.nn.Module):
    def __init__(self, **made_with: Any) -> None:
        super().__init__()
        self.made_with = made_with

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert x.shape == y.shape and x.shape[:2] == (1, 3) and min(x.shape[2:]) >= 32
        assert x.min() >= -1 and x.max() <= 1
        return (x - y).abs().mean()


@pytest.mark.parametrize(
    ("packages", "weights", "why"),
    [
        ((), True, "torchvision is not installed"),
        (("torchvision",), True, "neither torchmetrics nor lpips"),
        (("torchvision", "lpips"), False, "weights are not on this machine; put alexnet-owt-7be5be79.pth into"),
    ],
)
def test_says_what_is_missing(packages: tuple[str, ...], weights: bool, why: str, machine: Callable[..., None]) -> None:
    machine(*packages, weights=weights)
    found = open_lpips()
    assert isinstance(found, str) and why in found


@pytest.mark.parametrize("package", ["torchmetrics", "lpips"])
def test_either_package_will_do(package: str, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    machine("torchvision", package)
    name, attribute = {
        "torchmetrics": ("torchmetrics.image.lpip", "LearnedPerceptualImagePatchSimilarity"),
        "lpips": ("lpips", "LPIPS"),
    }[package]
    module = ModuleType(name)
    monkeypatch.setattr(module, attribute, Fake, raising=False)
    monkeypatch.setitem(sys.modules, name, module)
    found = open_lpips()
    assert isinstance(found, Lpips)
    x = np.random.default_rng(0).uniform(size=(40, 33, 3)).astype(np.float32)
    assert found(x, x) == 0
    assert found(x, x / 2) == pytest.approx(x.mean(), rel=1e-5)
    assert found._network.made_with.get("net_type", found._network.made_with.get("net")) == "alex"  # type: ignore[attr-defined]


def test_nothing_is_downloaded(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    machine("torchvision", "lpips")

    def downloads(**_: Any) -> None:
        torch.hub.download_url_to_file("https://example.org/weights.pth", "nowhere")

    kept = torch.hub.download_url_to_file
    monkeypatch.setitem(sys.modules, "lpips", SimpleNamespace(LPIPS=downloads))
    found = open_lpips()
    assert isinstance(found, str) and "https://example.org/weights.pth is not on this machine" in found
    assert torch.hub.download_url_to_file is kept


def test_scores_have_it_where_it_is_asked_for() -> None:
    """The images are smaller than the network's input."""
    scores = evaluate_views(draw, a_dataset(255), [0], lpips=Lpips(Fake()))
    assert scores.lpips == scores.views[0].lpips == pytest.approx(2 * (0.5 - 100 / 255), rel=1e-5)
    assert scores.to_json()["lpips"] == scores.to_json()["views"][0]["lpips"] == scores.lpips
    without = evaluate_views(draw, a_dataset(255), [0])
    assert without.lpips is None and set(without.to_json()) == {"psnr", "ssim", "corrected_psnr", "views"}
    assert set(without.to_json()["views"][0]) == {"name", "psnr", "ssim", "corrected_psnr", "isolated"}


def test_a_photograph_that_shares_no_points_with_training_is_named() -> None:
    dataset = a_dataset(255, 255, 255)
    dataset.train, dataset.test = [0], [1, 2]
    dataset.points = np.random.default_rng(2).uniform(-0.3, 0.3, (3000, 3)).astype(np.float32), None
    away = Camera.look_at((0, 0, -1), (1, 0, -0.6), (0, 1, 0), 60, SIDE, SIDE)
    dataset.views[2] = SimpleNamespace(name="2.png", camera=away)
    with pytest.warns(UserWarning, match=r"1 of 2 held-out photographs show hardly anything that training saw.*: 2\.png"):
        scores = evaluate_views(draw, dataset, dataset.test)
    assert [view["isolated"] for view in scores.to_json()["views"]] == [False, True]
