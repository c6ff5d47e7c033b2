"""One rule for every input and every way of rendering: a Gaussian that holds NaN, infinity or a number beyond all bounds leaves
no trace, and its gradient is zero. Other strange numbers leave all images and gradients finite."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import rasterization, rasterization_2dgs
from tests.reference.arrays import Array
from tests.render.comparison import camera_of, rounded, scene_of

WIDTH, HEIGHT, COUNT = 53, 37, 60
VALUES = np.array([np.nan, np.inf, -np.inf, 1e38, -1e38, 1e18, 0.0, -1.0, 1e-18, 1e-38])
# The first of `VALUES`, with which a Gaussian is not drawn.
REFUSED = 6
FIELDS = ("means", "quats", "scales", "opacities", "colors", "extra_signals")
Way = Callable[..., Any]
WAYS: dict[str, tuple[Way, dict[str, Any]]] = {
    "plain": (rasterization, {"sh_degree": 2, "render_mode": "RGB+ED"}),
    "antialiased": (rasterization, {"rasterize_mode": "antialiased", "render_mode": "RGB+D"}),
    "unscented": (rasterization, {"with_ut": True, "sh_degree": 1}),
    "along rays": (rasterization, {"with_eval3d": True, "sh_degree": 2, "render_mode": "RGB+D"}),
    "lobes": (rasterization, {"color": "SphericalGaussians"}),
    "surfels": (rasterization_2dgs, {"sh_degree": 1, "render_mode": "RGB+ED"}),
}


def broken_scene(way: str, field: str) -> tuple[dict[str, Array], Array]:
    """Two Gaussians for each of `VALUES`: one has it in one of its numbers, one in all. Also returns those not to be drawn."""
    rng = np.random.default_rng(13)
    options = WAYS[way][1]
    scene = scene_of(rng, COUNT, sh_degree=options.get("sh_degree"), channels=9 if "color" in options else 3)
    arrays: dict[str, Array] = {name: getattr(scene, name) for name in ("means", "quats", "scales", "opacities", "colors")}
    if way != "surfels":
        arrays["extra_signals"] = rounded(rng.uniform(size=(COUNT, 2)))
    at = rng.permutation(COUNT)[: 2 * len(VALUES)].reshape(2, -1)
    rows = arrays[field].reshape(COUNT, -1)
    rows[at[0], rng.integers(2 if field == "scales" else rows.shape[1], size=len(VALUES))] = VALUES
    rows[at[1]] = VALUES[:, None]
    return arrays, at[:, :REFUSED].ravel()


def drawn(way: str, arrays: dict[str, Array], packed: bool) -> tuple[list[Array], dict[str, Array], Array]:
    """The images, the gradients of everything, and the radii."""
    rng = np.random.default_rng(14)
    camera, (render, options) = camera_of(rng, WIDTH, HEIGHT), WAYS[way]
    cameras = {"viewmats": camera.viewmat[None], "Ks": camera.K[None], "backgrounds": np.full((1, 3), 0.3)}
    leaves = {name: torch.tensor(x, dtype=torch.float32, requires_grad=True) for name, x in (arrays | cameras).items()}
    results = render(**leaves, width=WIDTH, height=HEIGHT, packed=packed, **options)
    images = [part for part in results[:-1] if isinstance(part, torch.Tensor)]
    images += [results[-1]["render_extra_signals"]] if "extra_signals" in arrays else []
    weights = [torch.tensor(rng.normal(size=part.shape), dtype=torch.float32) for part in images]
    sum((part * weight).sum() for part, weight in zip(images, weights, strict=True)).backward()
    gradients = {name: leaf.grad.numpy() for name, leaf in leaves.items()}
    return [part.detach().numpy() for part in images], gradients, results[-1]["radii"].numpy()


def assert_no_trace(way: str, arrays: dict[str, Array], gone: Array, packed: bool) -> Array:
    """Compare with a render without some of the Gaussians, and return the radii."""
    kept = np.setdiff1d(np.arange(COUNT), gone)
    with np.errstate(over="ignore"):
        images, gradients, radii = drawn(way, arrays, packed)
        expected, expected_gradients, _ = drawn(way, {name: x[kept] for name, x in arrays.items()}, packed)
    for image, without in zip(images, expected, strict=True):
        assert np.isfinite(image).all()
        np.testing.assert_array_equal(image, without)
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all(), name
        if name in arrays:
            assert not gradient[gone].any(), name
            gradient = gradient[kept]
        scale = np.abs(expected_gradients[name]).max()
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-4, atol=1e-5 * scale, err_msg=name)
    return radii


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("packed", [False, True], ids=("dense", "packed"))
def test_broken_gaussians_leave_no_trace(way: str, field: str, packed: bool) -> None:
    if way == "surfels" and field == "extra_signals":
        pytest.skip("surfels have no extra signals")
    arrays, refused = broken_scene(way, field)
    radii = assert_no_trace(way, arrays, refused, packed)
    assert radii.any()
    if not packed and field not in ("colors", "extra_signals"):
        assert not radii[0, refused].any()


def test_planes_hide_gaussians() -> None:
    """Gaussians behind the camera, or nearer than the near plane, leave no trace either."""
    arrays, _ = broken_scene("plain", "extra_signals")
    arrays["extra_signals"] = np.zeros((COUNT, 2))
    arrays["means"][[0, 17]], arrays["means"][39], arrays["opacities"][5] = [0, 0, -3], [0, 0, 0.005], 1e-3
    hidden = np.array([0, 5, 17, 39])
    assert not assert_no_trace("plain", arrays, hidden, packed=False)[0, hidden].any()
