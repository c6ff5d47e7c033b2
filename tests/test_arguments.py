"""Arguments of the public functions that are something else than they should be: one sentence that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import splat_py as splat
from splat_py import SplatError
from tests.scene.captures import ring, write_transforms

CAMERA = {"viewmat": np.eye(4), "K": np.diag([9.0, 9, 1]), "width": 8, "height": 6}


@pytest.mark.parametrize("name", ["downscale", "test_every", "memory_limit_bytes"])
@pytest.mark.parametrize("value", [None, "8", float("nan"), float("inf"), [1, 2], 10**400], ids=repr)
def test_numbers_of_a_dataset(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(SplatError, match=f"^{name} is .*; it must be a finite number$"):
        splat.load_dataset(tmp_path, **{name: value})


def test_numbers_of_other_libraries_are_numbers(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(4))
    dataset = splat.load_dataset(tmp_path, downscale=np.float32(2), test_every=torch.tensor(2))  # type: ignore[arg-type]
    assert (len(dataset.test), dataset.views[0].camera.width) == (2, 24)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"viewmat": "poses.txt"}, "camera: viewmat holds something else than numbers"),
        ({"K": [[1, 2], [3]]}, "camera: K holds something else than numbers"),
        ({"width": None}, "width is None; it must be a finite number"),
        ({"height": (8, 6)}, r"height is \(8, 6\); it must be a finite number"),
    ],
    ids=str,
)
def test_cameras(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(SplatError, match=message):
        splat.Camera(**CAMERA | argument)


@pytest.mark.parametrize("side", ["6", None, 6.5, float("nan")])
def test_sides_of_a_picture(side: Any) -> None:
    with pytest.raises(SplatError, match=r"width is .*; it must be a finite number|the size is 6.5×4"):
        splat.image.render(torch.zeros(9, 4), side, 4)


@pytest.mark.parametrize("device", ["cpu", 3, torch.device("cpu")], ids=str)
def test_what_is_no_device(device: Any) -> None:
    with pytest.raises(SplatError, match=r"^device "):
        splat.image.fit(np.zeros((4, 4, 3)), blobs=2, steps=1, device=device)


def test_a_device_may_be_named() -> None:
    device = splat.get_device()
    name = device.adapter.backend
    tensors = torch.zeros(1, 3), torch.ones(1, 4), torch.ones(1, 3), torch.ones(1), torch.ones(1, 3), torch.eye(4)[None]
    image, _, _ = splat.rasterization(*tensors, torch.eye(3)[None], 4, 4, device=name)
    assert image.shape == (1, 4, 4, 3)
    assert splat.get_device(device) is device
