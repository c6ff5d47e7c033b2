"""LPIPS in evaluation: where its parts are there, and why it is not computed where they are not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from splat_py.splats import lpips
from splat_py.splats.evaluation import evaluate_views
from splat_py.splats.lpips import Lpips, open_lpips
from tests.splats.test_evaluation import a_dataset, draw


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine with some packages, and perhaps the weights."""

    def have(*packages: str, weights: bool = True) -> None:
        monkeypatch.setattr(lpips, "find_spec", lambda name: SimpleNamespace() if name in packages else None)
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        if weights:
            (tmp_path / "checkpoints" / "alexnet-owt-7be5be79.pth").write_bytes(b"")

    return have


class Fake(torch.nn.Module):
    """Says how far two images are apart, and what it was made with."""

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
    """Images are smaller than what the network takes."""
    scores = evaluate_views(draw, a_dataset(255), [0], lpips=Lpips(Fake()))
    assert scores.lpips == scores.views[0].lpips == pytest.approx(2 * (0.5 - 100 / 255), rel=1e-5)
    assert scores.to_json()["lpips"] == scores.to_json()["views"][0]["lpips"] == scores.lpips
    without = evaluate_views(draw, a_dataset(255), [0])
    assert without.lpips is None and set(without.to_json()) == {"psnr", "ssim", "corrected_psnr", "views"}
    assert set(without.to_json()["views"][0]) == {"name", "psnr", "ssim", "corrected_psnr"}
