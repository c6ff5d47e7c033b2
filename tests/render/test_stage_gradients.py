"""The stages' gradients without autograd equal autograd's."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import splat_py as splat
from splat_py.gpu.device import get_device
from splat_py.render.options import Options
from splat_py.render.rasterize import MAX_CHANNELS, rasterize
from tests.render.comparison import camera_of, leaves_of, scene_of

WIDTH, HEIGHT = 45, 34


def inputs_of(seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return leaves_of(scene_of(rng, 40, sh_degree=2), [camera_of(rng, WIDTH, HEIGHT) for _ in range(2)])


def options_of(**changes: Any) -> Options:
    # Sums in a fixed order.
    options = Options(get_device().tuning.tile_size, antialiased=True, accumulation="PerIntersection")
    return replace(options, **changes)


def in_no_graph(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with torch.no_grad():
        return function(*arguments, **options)


@pytest.mark.parametrize("packed", [False, True])
def test_projection(packed: bool) -> None:
    inputs = inputs_of(1)
    del inputs["colors"]
    splats = splat.project(*inputs.values(), WIDTH, HEIGHT, options_of(packed=packed))
    outputs = [splats.means2d, splats.depths, splats.conics, splats.opacities]
    v = [torch.randn_like(output) for output in outputs]
    expected = torch.autograd.grad(outputs, list(inputs.values()), v)
    found = in_no_graph(splat.project_backward, *inputs.values(), WIDTH, HEIGHT, options_of(), splats, *v)
    assert found.covars is None
    torch.testing.assert_close([getattr(found, name) for name in inputs], expected, rtol=0, atol=0)


@pytest.mark.parametrize("packed", [False, True])
def test_shading(packed: bool) -> None:
    inputs = inputs_of(2)
    sh = inputs.pop("colors")
    splats = splat.project(*inputs.values(), WIDTH, HEIGHT, options_of(packed=packed))
    arguments = (inputs["means"], sh, inputs["viewmats"], splats.radii, 2)
    colors = splat.shade(*arguments, options_of(), ids=splats.ids)
    v_colors = torch.randn_like(colors)
    expected = torch.autograd.grad(colors, arguments[:3], v_colors)
    found = in_no_graph(splat.shade_backward, *arguments, v_colors, options_of(), ids=splats.ids)
    assert found.weights is None
    torch.testing.assert_close(found[:3], expected, rtol=0, atol=0)


@pytest.mark.parametrize("packed", [False, True])
def test_rasterization(packed: bool) -> None:
    inputs = inputs_of(3)
    sh = inputs.pop("colors")
    options = options_of(absgrad=True, packed=packed)
    splats = splat.project(*inputs.values(), WIDTH, HEIGHT, options)
    with torch.no_grad():
        colors = splat.shade(inputs["means"], sh, inputs["viewmats"], splats.radii, 2, ids=splats.ids)
    colors.requires_grad_()
    backgrounds = torch.rand(2, 3, requires_grad=True)
    tiles = splat.bin_tiles(splats, WIDTH, HEIGHT, options)
    arguments = (splats, colors, tiles, WIDTH, HEIGHT, backgrounds, options)
    rendered = rasterize(*arguments)
    v = [torch.randn_like(rendered.colors), torch.randn_like(rendered.alphas)]
    wanted = [splats.means2d, splats.conics, splats.opacities, colors, backgrounds]
    expected = torch.autograd.grad([rendered.colors, rendered.alphas], wanted, v)
    found = in_no_graph(splat.rasterize_backward, *arguments, rendered, *v)
    assert found.extras is None and found.rays is None
    torch.testing.assert_close(found[:-2], [*expected, splats.means2d.absgrad], rtol=0, atol=0)  # type: ignore[attr-defined]
    only_images = in_no_graph(splat.rasterize_backward, *arguments, rendered, v[0])
    assert not torch.equal(only_images.means2d, found.means2d)


def test_the_rays_of_a_fisheye() -> None:
    inputs = inputs_of(8)
    del inputs["colors"]
    options = options_of(primitive="RayGaussian", camera_model="Fisheye")
    splats = splat.project(*inputs.values(), WIDTH, HEIGHT, options)
    tiles = splat.bin_tiles(splats, WIDTH, HEIGHT, options)
    arguments = (splats, torch.rand(*splats.depths.shape, 3), tiles, WIDTH, HEIGHT, None, options)
    rendered = rasterize(*arguments)
    v = torch.randn_like(rendered.colors)
    expected = torch.autograd.grad(rendered.colors, list(inputs.values()), v)
    of_splats = in_no_graph(splat.rasterize_backward, *arguments, rendered, v)
    given = of_splats.means2d, None, of_splats.conics, of_splats.opacities, of_splats.rays
    found = in_no_graph(splat.project_backward, *inputs.values(), WIDTH, HEIGHT, options, splats, *given)
    torch.testing.assert_close([getattr(found, name) for name in inputs], expected, rtol=0, atol=0)


def test_too_many_channels() -> None:
    inputs = inputs_of(4)
    del inputs["colors"]
    splats = splat.project(*inputs.values(), WIDTH, HEIGHT, options_of())
    tiles = splat.bin_tiles(splats, WIDTH, HEIGHT, options_of())
    arguments = (splats, torch.rand(2, 40, MAX_CHANNELS + 1), tiles, WIDTH, HEIGHT, None, options_of())
    rendered = rasterize(*arguments)
    with pytest.raises(splat.SplatError, match="colors has 33 channels"):
        splat.rasterize_backward(*arguments, rendered, rendered.colors)


def test_a_whole_render() -> None:
    inputs = inputs_of(5)
    options: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "sh_degree": 1, "accumulate": "pair", "render_mode": "RGB+ED"}
    images, alphas, _ = splat.rasterization(**inputs, **options)
    v = [torch.randn_like(images), torch.randn_like(alphas)]
    expected = torch.autograd.grad([images, alphas], list(inputs.values()), v)
    found = in_no_graph(splat.render_backward, *v, **inputs, **options)
    assert list(found) == list(inputs)
    torch.testing.assert_close(list(found.values()), expected, rtol=0, atol=0)


def test_every_stage_has_a_profile() -> None:
    inputs = inputs_of(6)
    with get_device().profiled() as profile:
        images, _, _ = splat.rasterization(**inputs, width=WIDTH, height=HEIGHT, sh_degree=1, packed=False)
        forward = profile.collect()
        images.sum().backward()
        backward = profile.collect()
    assert list(forward) == ["project", "shade", "sort depths", "bin", "sort tiles", "rasterize"]
    assert list(backward) == ["rasterize backward", "shade backward", "project backward"]
    assert all(seconds > 0 for seconds in (forward | backward).values())
    splat.rasterization(**inputs, width=WIDTH, height=HEIGHT, sh_degree=1)
    assert not profile.collect()
