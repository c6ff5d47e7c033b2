"""slang/splat/splat2d.slang: what a pixel evaluates, through the interface."""

from __future__ import annotations

import numpy as np
import pytest

from splat_py.shaders import splat2d as shader
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 40
RNG = np.random.default_rng(49)


def alpha_of(mean: Array, conic: Array, opacity: Array, pixels: Array) -> Array:
    x, y = (pixels - mean).T
    a, b, c = conic.T
    return opacity * np.exp(-0.5 * (a * x * x + 2 * b * x * y + c * y * y))


@pytest.mark.parametrize("stop", ["SceneStop", "ImageStop"])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_evaluation(channels: int, stop: str) -> None:
    """Opacity and channels, and the gradient of every field."""
    evaluate = shader.evaluate[channels, 6 + channels, f"Splat2D<{channels}, {stop}>"]
    mean, pixels = RNG.uniform(0, 8, (COUNT, 2)), RNG.integers(0, 8, (COUNT, 2)) + 0.5
    roots = RNG.normal(size=(COUNT, 2, 2)) * 0.4
    matrices = roots @ roots.swapaxes(1, 2)
    conic = np.stack([matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 1, 1]], axis=1)
    opacity, color = RNG.uniform(0.1, 0.9, COUNT), RNG.uniform(size=(COUNT, channels))
    splat = {"mean": mean, "conic": conic, "opacity": opacity, "color": color}
    assert_value(evaluate(splat, pixels), {"alpha": alpha_of(mean, conic, opacity, pixels), "features": color})

    v_alpha, v_features = RNG.normal(size=COUNT), RNG.normal(size=(COUNT, channels))
    v_mean, v_conic, v_opacity = pullback(
        lambda m, c, o: alpha_of(m, c, o, pixels), v_alpha, mean, conic, opacity
    )
    expected = {"mean": v_mean, "conic": v_conic, "opacity": v_opacity, "color": v_features}
    v = {"alpha": v_alpha, "features": v_features}
    assert_gradients(evaluate, v, [splat, pixels], [expected, None], atol=2e-6)
