"""LPIPS (Zhang et al. 2018), by torchmetrics or lpips, where these and AlexNet's weights are on this machine: nothing is
downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.files import is_file, reason

# torchvision's, in torch's cache.
_WEIGHTS = "alexnet-owt-7be5be79.pth"
# Sides of the smallest image that AlexNet takes.
_LEAST = 32


class Lpips:
    """The distance of two images [H, W, 3] from 0 to 1, 0 for images that are the same, by AlexNet's features. Images that are
    smaller than 32 pixels are repeated at their edges up to that."""

    def __init__(self, network: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self._network = network

    @torch.no_grad()
    def __call__(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
        return float(self._network(*(_prepared(image) for image in (x, y))))


def open_lpips() -> Lpips | str:
    """The network, or why there is none, as a clause of a sentence."""
    if find_spec("torchvision") is None:
        return "torchvision is not installed"
    package = next((name for name in ("torchmetrics", "lpips") if find_spec(name) is not None), None)
    if package is None:
        return "neither torchmetrics nor lpips is installed"
    weights = Path(torch.hub.get_dir()) / "checkpoints" / _WEIGHTS
    if not is_file(weights):
        return f"AlexNet's weights are not on this machine; put {_WEIGHTS} into {weights.parent}"
    try:
        with _offline():
            return Lpips(_network(package))
    except Exception as error:  # other libraries raise what they like
        return f"{package} cannot open it ({reason(error)})"


def _network(package: str) -> Any:
    """A function of two images [1, 3, H, W] from -1 to 1."""
    if package == "lpips":
        return import_module("lpips").LPIPS(net="alex", verbose=False).eval()
    module = import_module("torchmetrics.image.lpip").LearnedPerceptualImagePatchSimilarity
    return module(net_type="alex").eval()


@contextmanager
def _offline() -> Iterator[None]:
    """Within, torch downloads nothing."""

    def refuse(url: str, *_: Any, **__: Any) -> None:
        raise OSError(f"{url} is not on this machine")

    kept, torch.hub.download_url_to_file = torch.hub.download_url_to_file, refuse
    try:
        yield
    finally:
        torch.hub.download_url_to_file = kept


def _prepared(image: NDArray[np.float32]) -> torch.Tensor:
    height, width, _ = image.shape
    padded = np.pad(image, ((0, max(_LEAST - height, 0)), (0, max(_LEAST - width, 0)), (0, 0)), mode="edge")
    return torch.from_numpy(padded).permute(2, 0, 1)[None].clamp(0, 1) * 2 - 1
