"""Gaussians evaluated along rays (`with_eval3d`): whole renders against float64, and options that it refuses."""

from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py import rasterization
from tests.render.comparison import close, compare
from tests.render.ray_rendering import beside_rays, render
from tests.render.test_camera_models import scene_of
from tests.render.test_errors import sentence_of

WIDTH, HEIGHT, N, CAMERAS = 24, 18, 20, 2


def of_scene(inputs: dict[str, Tensor], **options: Any) -> Any:
    return rasterization(**inputs, width=WIDTH, height=HEIGHT, with_eval3d=True, **options)


@pytest.mark.parametrize("packed", [False, True])
def test_against_float64(packed: bool) -> None:
    """One Gaussian reaches behind the camera, one nearly fills the image, others are far outside it."""
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=101)
    with torch.no_grad():
        inputs["means"][0] = torch.tensor([0.8, 0.3, 0.6])
        inputs["scales"][0] = torch.tensor([0.5, 0.3, 0.4])
        inputs["scales"][1] *= 6
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in inputs.items()}
    gaussians = [twins[name] for name in ("means", "quats", "scales", "opacities", "colors")]
    cameras = zip(twins["viewmats"], twins["Ks"], twins["backgrounds"], strict=True)
    expected = [
        render(*gaussians, viewmat, K, WIDTH, HEIGHT, sigmas=beside_rays, background=background)
        for viewmat, K, background in cameras
    ]
    images, alphas, meta = of_scene(inputs, packed=packed, tile_size=16)
    meta["means2d"].retain_grad()
    compare({"image": images, "alpha": alphas}, expected, inputs, twins)
    assert meta["means2d"].grad.any() and "conics" not in meta


def test_far_away_it_is_the_projection() -> None:
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=102)
    with torch.no_grad():
        inputs["scales"] *= 0.3
        inputs["means"] *= 40
        inputs["scales"] *= 40
        inputs["Ks"][:, [0, 1], [0, 1]] *= 40
        inputs["means"][:, :2] /= 40
        inputs["viewmats"][:] = torch.eye(4)
    projected, _, _ = rasterization(**inputs, width=WIDTH, height=HEIGHT, eps2d=0.0)
    torch.testing.assert_close(of_scene(inputs)[0], projected, rtol=0, atol=0.02)


@pytest.mark.parametrize("packed", [False, True])
def test_without_gradients_of_cameras(packed: bool) -> None:
    results = []
    for of_cameras in (True, False):
        inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=103)
        for name in ("viewmats", "Ks"):
            inputs[name] = inputs[name].detach().requires_grad_(of_cameras)
        images, _, _ = of_scene(inputs, packed=packed, tile_size=16, with_ut=True)
        leaves = [inputs[name] for name in ("means", "quats", "scales", "opacities", "colors")]
        results.append([images, *torch.autograd.grad(images.square().sum(), leaves)])
    for one, other in zip(*results, strict=True):
        close(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"camera_model": "fisheye"}, "with_eval3d=True does not support camera_model='fisheye'"),
        ({"radial_coeffs": torch.zeros(CAMERAS, 4)}, "does not support distortion coefficients"),
        ({"covars": torch.eye(3).expand(N, 3, 3)}, "does not support covars"),
        ({"rasterize_mode": "antialiased"}, "does not support rasterize_mode='antialiased'"),
        ({"splat": "BetaKernel", "splat_params": {"b": torch.zeros(N)}}, "does not support splat and splat_params"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_it_is_not_combined_with(options: dict[str, Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message) as error:
        of_scene(scene_of("pinhole", WIDTH, HEIGHT, seed=104), **options)
    sentence_of(error)
