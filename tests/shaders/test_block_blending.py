"""slang/splat/block_blending.slang: α of a block, and its gradient from moments. What it blends is tested in tests/image."""

from __future__ import annotations

import numpy as np

from splat_py import shaders
from splat_py.shaders import block_blending as shader
from tests.shaders.oracle import Array, assert_value, pullback

COUNT = 300
RNG = np.random.default_rng(31)
OFFSETS = np.stack(np.meshgrid(np.arange(4), np.arange(2)), -1).reshape(8, 2)
PARTS = {"mean": slice(0, 2), "shape": slice(2, 5), "opacity": 5}


def random_splats() -> tuple[Array, Array]:
    """Rows of mean, conic, opacity around blocks, and the blocks' first pixel centres: wide ones, and needles."""
    first = RNG.integers(0, 50, (COUNT, 2)) + 0.5
    mean = first + RNG.uniform(-4, 8, (COUNT, 2))
    deviation, correlation = np.exp(RNG.uniform(-1, 2, (COUNT, 2))), RNG.uniform(-0.95, 0.95, COUNT)
    xx, yy = deviation.T**2
    xy = correlation * deviation.prod(1)
    conic = np.stack([yy, -xy, xx], 1) / (xx * yy - xy * xy)[:, None]
    rows = np.concatenate([mean, conic, RNG.uniform(0.1, 1.2, (COUNT, 1))], 1)
    return rows.astype(np.float32).astype(np.float64), first


def alphas(rows: Array, first: Array) -> Array:
    """[N, 8]."""
    x, y = np.moveaxis(first[:, None] + OFFSETS - rows[:, None, :2], -1, 0)
    a, b, c = rows[:, 2:5].T[:, :, None]
    return np.minimum(rows[:, 5:] * np.exp(-0.5 * (a * x * x + 2 * b * x * y + c * y * y)), 0.999)


def test_blocks() -> None:
    rows, first = random_splats()
    splats = {name: rows[:, part] for name, part in PARTS.items()}
    splats |= {"color": np.zeros((COUNT, 3)), "extras": np.zeros((COUNT, 4))}
    expected = alphas(rows, first)
    assert (expected == 0.999).any()
    assert_value(shader.blockAlphas(splats, first), expected, rtol=1e-4, atol=1e-6)
    v = RNG.normal(size=(COUNT, 8))
    (gradient,) = pullback(lambda rows: alphas(rows, first), v, rows)
    actual, _ = shaders.gradients(shader.blockAlphas, v, splats, first)
    for name, part in PARTS.items():
        largest = np.abs(gradient[:, part]).max()
        np.testing.assert_allclose(actual[name], gradient[:, part], rtol=1e-3, atol=1e-5 * largest)
    assert not actual["color"].any()
