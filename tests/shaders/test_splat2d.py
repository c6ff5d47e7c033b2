"""slang/splat/splat2d.slang: what a pixel evaluates, through the interface."""

from __future__ import annotations

import numpy as np
import pytest

from splat_py import shaders
from splat_py.shaders import splat2d as shader
from tests.shaders.oracle import Array, assert_value, pullback

COUNT = 40
RNG = np.random.default_rng(49)


def alpha_of(mean: Array, conic: Array, opacity: Array, pixels: Array) -> Array:
    x, y = (pixels - mean).T
    a, b, c = conic.T
    return opacity * np.exp(-0.5 * (a * x * x + 2 * b * x * y + c * y * y))


@pytest.mark.parametrize("stop", ["SceneStop", "SceneStop99", "ImageStop"])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_alpha(channels: int, stop: str) -> None:
    """Opacity, and the gradient of every field; channels have none here."""
    alpha = shader.alphaOf[channels, 6 + channels, f"Splat2D<{channels}, 3, 0, {stop}, GaussianFalloff, Ellipse>"]
    mean, pixels = RNG.uniform(0, 8, (COUNT, 2)), RNG.integers(0, 8, (COUNT, 2)) + 0.5
    roots = RNG.normal(size=(COUNT, 2, 2)) * 0.4
    matrices = roots @ roots.swapaxes(1, 2)
    conic = np.stack([matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 1, 1]], axis=1)
    opacity, color = RNG.uniform(0.1, 0.9, COUNT), RNG.uniform(size=(COUNT, channels))
    splat = {"mean": mean, "shape": conic, "opacity": opacity, "color": color, "extras": np.zeros(4)}
    assert_value(alpha(splat, pixels), alpha_of(mean, conic, opacity, pixels))

    v = RNG.normal(size=COUNT)
    v_mean, v_conic, v_opacity = pullback(lambda m, c, o: alpha_of(m, c, o, pixels), v, mean, conic, opacity)
    v_splat, v_pixels = shaders.gradients(alpha, v, splat, pixels)
    for name, expected in {"mean": v_mean, "shape": v_conic, "opacity": v_opacity}.items():
        assert_value(v_splat[name], expected, rtol=1e-4, atol=2e-6)
    assert v_pixels is None and not v_splat["color"].any()


@pytest.mark.parametrize(("stop", "limit"), [("SceneStop", 0.999), ("SceneStop99", 0.99), ("ImageStop", 0.999)])
def test_alpha_is_at_most_the_stop_rule_s(stop: str, limit: float) -> None:
    """And there it has no gradient."""
    splat = {
        "mean": [[2.5, 3.5]] * 3,
        "shape": [[0.5, 0.1, 0.4]] * 3,
        "opacity": [0.98, 0.995, 1.0],
        "color": [[0.0]] * 3,
        "extras": [0.0] * 4,
    }
    alpha, pixels = shader.alphaOf[1, 7, f"Splat2D<1, 3, 0, {stop}, GaussianFalloff, Ellipse>"], np.array([[2.5, 3.5]] * 3)
    assert_value(alpha(splat, pixels), np.minimum([0.98, 0.995, 1.0], limit))
    v_splat, _ = shaders.gradients(alpha, np.ones(3), splat, pixels)
    np.testing.assert_array_equal(v_splat["opacity"], np.array([0.98, 0.995, 1.0]) < limit)
