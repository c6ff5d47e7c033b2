"""Blobs for tests, and the ways to draw them."""

import numpy as np

from splat_py.gpu.device import get_device
from splat_py.image.rasterizers import RASTERIZERS, Rasterizer
from tests.image.reference import Array

# The ways that make lists, and all ways.
LISTING = ["group", "tiles"]
WAYS = ["autodiff", *LISTING]


def blobs_of(rng: np.random.Generator, count: int, deviation: float = 0.08, opacity: float = 0.0) -> Array:
    """Raw blobs [9, N] of all shapes, some with their centre beyond the edge; opacity is a logit."""
    raw = rng.normal(size=(9, count))
    share = (rng.uniform(-0.1, 1.1, (2, count)) + 0.25) / 1.5
    raw[0:2] = np.log(share / (1 - share))
    raw[2:4] = np.log(2 * deviation) + rng.normal(size=(2, count)) * 0.6
    raw[4] *= 2
    raw[8] += opacity
    return raw.astype(np.float32).astype(np.float64)


def rasterizer_of(way: str, raw: Array, width: int, height: int, native: bool | None = None) -> Rasterizer:
    return RASTERIZERS[way](get_device(), raw.shape[1], width, height, native)


def draw(way: str, raw: Array, width: int, height: int) -> Array:
    device = get_device()
    rasterizer = rasterizer_of(way, raw, width, height)
    parameters = device.memory.array(raw.astype(np.float32))
    image = device.memory.array(np.full((height, width, 3), np.nan, np.float32))
    rasterizer.reserve(parameters)
    with device.recording() as recorder:
        rasterizer.record_render(recorder, parameters, image)
    return image.numpy().astype(np.float64)


def differentiate(way: str, raw: Array, target: Array, linear: bool, native: bool | None = None) -> Array:
    """The gradient [9, N] of the mean squared error against `target` [H, W, 3], or of Σ image · target."""
    device = get_device()
    height, width, _ = target.shape
    rasterizer = rasterizer_of(way, raw, width, height, native)
    parameters = device.memory.array(raw.astype(np.float32))
    gradients = device.memory.array(np.full(raw.shape, np.nan, np.float32))
    rasterizer.reserve(parameters)
    given = device.memory.array(target.astype(np.float32))
    with device.recording() as recorder:
        if linear:
            rasterizer.record_render(recorder, parameters, device.memory.empty(target.shape))
            rasterizer.record_backward(recorder, parameters, given, gradients)
        else:
            rasterizer.record_lists(recorder, parameters)
            rasterizer.record_gradients(recorder, parameters, given, gradients)
    return gradients.numpy().astype(np.float64)


def assert_gradients(actual: Array, expected: Array) -> None:
    """Each number within 1e-4 relative, with a floor that follows the largest of its row, as sums have terms of both signs."""
    assert np.isfinite(actual).all()
    for row, (a, e) in enumerate(zip(actual, expected, strict=True)):
        largest = np.abs(e).max()
        assert largest > 0, f"row {row}: this test cannot fail"
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5 * largest, err_msg=f"row {row}")
