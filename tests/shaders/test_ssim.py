"""slang/splat/ssim.slang."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import correlate1d

from splat_py.shaders import ssim as shader
from tests.reference.arrays import Array
from tests.reference.ssim import C1, C2, WINDOW, ssim_map
from tests.shaders.oracle import assert_gradients, assert_value, pullback


def moments(x: Array, y: Array, window: Array) -> dict[str, Array]:
    """Window means over images [H, W], black around them."""
    fields = {"x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}
    for axis in range(2):
        fields = {name: correlate1d(field, window, axis=axis, mode="constant") for name, field in fields.items()}
    return fields


def images() -> tuple[Array, Array]:
    """A picture with flat, black and noisy parts, and another one like it."""
    rng = np.random.default_rng(10)
    x = np.kron(rng.uniform(size=(3, 4)), np.ones((8, 8)))
    x[:8, :8] = 0
    x[16:] += 0.2 * rng.normal(size=x[16:].shape)
    return x, np.clip(x + 0.1 * rng.normal(size=x.shape), 0, 1)


def test_window() -> None:
    weights = shader.ssimWeight(np.arange(-5, 6))
    assert_value(weights, WINDOW, rtol=1e-6, atol=1e-8)
    assert abs(weights.astype(float).sum() - 1) < 1e-7


def test_ssim_of_moments() -> None:
    x, y = images()
    fields = moments(x, y, shader.ssimWeight(np.arange(-5, 6)).astype(float))
    # Where the picture is flat, its variance is a difference of near equals.
    assert_value(shader.ssimOfMoments(fields), ssim_map(x[..., None], y[..., None])[..., 0], atol=1e-4)


def test_ssim_gradients() -> None:
    def f(x: Array, y: Array, xx: Array, yy: Array, xy: Array) -> Array:
        luminance = (2 * x * y + C1) / (x * x + y * y + C1)
        return luminance * (2 * (xy - x * y) + C2) / (xx - x * x + yy - y * y + C2)

    rng = np.random.default_rng(11)
    count = 200
    samples = rng.uniform(size=(count, 2, 30))
    x, y = samples.mean(axis=2).T
    xx, yy = (samples**2).mean(axis=2).T
    xy = samples.prod(axis=1).mean(axis=1)
    fields = {"x": x, "y": y, "xx": xx, "yy": yy, "xy": xy}
    assert_value(shader.ssimOfMoments(fields), f(**fields))
    v = rng.normal(size=count)
    expected = dict(zip(fields, pullback(f, v, *fields.values()), strict=True))
    assert_gradients(shader.ssimOfMoments, v, [fields], [expected], atol=1e-5)
