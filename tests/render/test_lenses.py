"""Effects of distorted and spherical cameras on a render: culling and seams."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import rasterization
from tests.render.test_camera_models import scene_of


def gaussians(means: list[list[float]], scale: float = 0.05) -> dict[str, Tensor]:
    count = len(means)
    return {
        "means": torch.tensor(means, dtype=torch.float32, requires_grad=True),
        "quats": torch.tensor([[1.0, 0, 0, 0]]).repeat(count, 1),
        "scales": torch.full((count, 3), scale),
        "opacities": torch.full((count,), 0.9),
        "colors": torch.ones(count, 3),
        "viewmats": torch.eye(4)[None],
    }


def intrinsics(fx: float, fy: float, cx: float, cy: float) -> Tensor:
    return torch.tensor([[[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]]])


@pytest.mark.parametrize("packed", [False, True])
def test_nothing_is_folded_back(packed: bool) -> None:
    """r - r³/3 turns back at r = 1, so a Gaussian at r = 1.6, whose image would be at r = 0.23, is not drawn."""
    options: dict[str, Any] = {"Ks": intrinsics(20, 20, 16, 16), "width": 32, "height": 32, "packed": packed}
    scene = gaussians([[0.3, 0.1, 1.0], [1.6, 0.0, 1.0]])
    radial = torch.tensor([[-1 / 3, 0, 0, 0, 0, 0]])
    images, _, meta = rasterization(**scene, **options, radial_coeffs=radial)
    images.square().sum().backward()
    assert scene["means"].grad is not None and scene["means"].grad[0].any() and not scene["means"].grad[1].any()
    assert len(meta["gaussian_ids"]) == 1 if packed else not meta["radii"][0, 1].any()
    one = {name: value if name == "viewmats" else value[:1] for name, value in scene.items()}
    torch.testing.assert_close(images, rasterization(**one, **options, radial_coeffs=radial)[0], rtol=0, atol=0)


def test_across_the_seam_and_at_the_poles() -> None:
    """A sphere of 64 × 32: splats at the seam are as large as elsewhere, and end there; those at a pole cover its rows."""
    options: dict[str, Any] = {"Ks": intrinsics(64 / (2 * np.pi), 32 / np.pi, 32, 16), "width": 64, "height": 32}

    def alpha_of(mean: list[float]) -> Tensor:
        return rasterization(**gaussians([mean], 0.2), **options, camera_model="equirectangular")[1][0, ..., 0]

    ahead, left, right = alpha_of([0, 0, 2]), alpha_of([-1e-4, 0, -2]), alpha_of([1e-4, 0, -2])
    torch.testing.assert_close(right[:, 32:], ahead[:, :32], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(left[:, :32], ahead[:, 32:], rtol=1e-3, atol=1e-3)
    assert not right[:, :32].any() and not left[:, 32:].any()
    pole = alpha_of([0.01, 2, 0])
    assert (pole[-1] > 0.5).all() and not pole[:24].any()
    assert not alpha_of([0, 2, 0]).any()
    # The near plane is a distance, so a camera sees behind itself.
    assert (
        alpha_of([0, 0, -0.5]).any()
        and not rasterization(**gaussians([[0, 0, -0.5]]), **options, camera_model="equirectangular", near_plane=0.6)[1].any()
    )


def test_four_radial_coefficients_are_six_with_zeros() -> None:
    inputs = {name: tensor.detach() for name, tensor in scene_of("pinhole", 24, 18, seed=79).items()}
    four = torch.tensor([[-0.2, 0.05, 0.01, 0.1], [0.1, -0.03, 0.02, -0.1]])
    radials = (four, torch.nn.functional.pad(four, (0, 2)))
    one, other = (rasterization(**inputs, width=24, height=18, radial_coeffs=radial)[0] for radial in radials)
    torch.testing.assert_close(one, other, rtol=0, atol=0)
