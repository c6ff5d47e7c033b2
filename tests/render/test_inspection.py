"""The splats of a pixel: their sum is the pixel, their order that of depth, and their gradients those of the blending."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import splat_py
from splat_py import Camera, Gaussians, inspect
from splat_py.render.views import render_tensor
from splat_py.scene.environment import Environment
from splat_py.shaders import source
from tests.refusals import refused
from tests.render.test_forward_mode import HEAVY_TAIL

BACKGROUND = (0.2, 0.5, 0.1)


def scene(degree: int = 1, **options: object) -> Gaussians:
    generator = torch.Generator().manual_seed(5)
    n, coefficients = 300, (degree + 1) ** 2
    means = torch.rand(n, 3, generator=generator) * 2 - 1
    sh = torch.randn(n, coefficients, 3, generator=generator) * 0.4
    made = Gaussians(
        means, torch.randn(n, 4, generator=generator), torch.full((n, 3), -1.8), torch.randn(n, generator=generator), sh
    )
    return replace(made, **options)  # type: ignore[arg-type]


CAMERA = Camera.look_at((0.5, -0.8, -3), (0, 0, 0), (0, 1, 0), 50, 37, 29)
PIXELS = ((18, 14), (3, 25), (36, 28), (0, 0))


@pytest.mark.parametrize("kind", ["harmonics", "own falloff", "fisheye", "antialiased", "environment"])
def test_its_sum_is_the_pixel(kind: str) -> None:
    gaussians = scene()
    if kind == "own falloff":
        gaussians = replace(gaussians, splat=source(HEAVY_TAIL), params={"power": torch.full((300,), 3.0)})
    camera = replace(CAMERA, model="fisheye") if kind == "fisheye" else CAMERA
    how = {"antialiased": kind == "antialiased"}
    sky = Environment(np.random.default_rng(0).normal(0, 0.2, (16, 3)).astype(np.float32))
    behind = sky if kind == "environment" else BACKGROUND
    image = render_tensor(gaussians, camera, behind, **how)
    for x, y in PIXELS:
        pixel = inspect(gaussians, camera, x, y, behind, **how)
        np.testing.assert_allclose(pixel.color, image[y, x].numpy(), rtol=0, atol=1e-6)
        assert (np.diff(pixel.depths) >= 0).all() and (pixel.alphas > 0).all() and (pixel.alphas < 1).all()
        if len(pixel.ids):
            np.testing.assert_allclose(pixel.running[-1], pixel.color - pixel.T * pixel.background, atol=1e-12)
            np.testing.assert_allclose(np.prod(1 - pixel.alphas), pixel.T, atol=1e-6)
    assert len(inspect(gaussians, camera, 18, 14).ids) > 5


@pytest.mark.parametrize("packed", [False, True])
def test_the_median_is_the_last_splat_before_half_of_the_light(packed: bool) -> None:
    gaussians, cameras = scene(), [CAMERA, CAMERA.moved((0, 0.2, 0), (0, 0, 0))]
    viewmats, Ks = (
        torch.tensor(np.stack(m), dtype=torch.float32) for m in zip(*((c.viewmat, c.K) for c in cameras), strict=True)
    )
    made = gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, gaussians.sh
    options = {"sh_degree": 1, "packed": packed, "return_medians": True}
    medians = splat_py.rasterization(*made, viewmats, Ks, CAMERA.width, CAMERA.height, **options)[2]["median_ids"]
    assert medians.shape == (2, CAMERA.height, CAMERA.width)
    for camera, found in zip(cameras, medians, strict=True):
        for x, y in PIXELS:
            pixel = inspect(gaussians, camera, x, y)
            before = pixel.ids[pixel.transmittances > 0.5]
            assert found[y, x] == (before[-1] if len(before) else -1)
    nothing = [part[:0] for part in made]
    _, _, meta = splat_py.rasterization(*nothing, viewmats, Ks, CAMERA.width, CAMERA.height, **options)
    assert (meta["median_ids"] == -1).all()


def test_gradients_are_those_of_the_blending() -> None:
    v = np.array([0.3, -1.2, 0.7])
    pixel = inspect(scene(), CAMERA, 18, 14, BACKGROUND, v_pixel=v)
    alphas, colors = (torch.tensor(a, requires_grad=True) for a in (pixel.alphas, pixel.colors))
    before = torch.cumprod(torch.cat([torch.ones(1).double(), 1 - alphas]), 0)
    color = (alphas * before[:-1]) @ colors + before[-1] * torch.tensor(BACKGROUND).double()
    (color * torch.tensor(v)).sum().backward()
    assert pixel.v_alphas is not None and pixel.v_colors is not None
    np.testing.assert_allclose(pixel.v_alphas, alphas.grad, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(pixel.v_colors, colors.grad, rtol=1e-9, atol=1e-12)


def test_tables() -> None:
    pixel = inspect(scene(), CAMERA, 18, 14, v_pixel=(1, 1, 1))
    lines = repr(pixel).splitlines()
    assert lines[0].startswith(f"pixel (18, 14): {len(pixel.ids)} splats") and len(pixel.ids) > 40
    assert len(lines) == 2 + 40 + 1 and lines[-1] == f"and {len(pixel.ids) - 40} behind these"
    html = pixel._repr_html_()
    assert html.count("<tr>") == 1 + 40 and "dL/dα" in html and f"<p>{lines[-1]}</p>" in html
    empty = inspect(scene(), CAMERA.moved([0, np.pi, 0], [0, 0, 0]), 18, 14, BACKGROUND)
    assert len(empty.ids) == 0 and empty.T == 1
    np.testing.assert_array_equal(empty.color, BACKGROUND)


def test_pixels_outside_are_refused() -> None:
    for x, y, fault in ((37, 0, "x is 37; .* from 0 to 36"), (0, 29, "y is 29; .* from 0 to 28"), (-1, 3, "x is -1")):
        refused(fault, inspect, scene(), CAMERA, x, y)
