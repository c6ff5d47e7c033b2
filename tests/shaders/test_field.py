"""slang/splat/field.slang: path replay of a field of one's own, which is no grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import slangpy as spy

from splat_py import shaders
from splat_py.gpu.device import get_device
from tests.shaders.oracle import Array
from tests.shaders.test_segment import BOX, COUNT, DIRECTIONS, ORIGINS
from tests.volume import reference as ref

MODULE = shaders.load(Path(__file__).with_name("blob_field.slang"))
PEAK = np.array([9.0, 0.3, -0.2, 0.1])
BACKGROUND = np.array([0.2, 0.5, 0.1])
RNG = np.random.default_rng(49)
V = RNG.normal(size=(COUNT, 5))


def marched(peak: Array, origin: Array, direction: Array) -> Array:
    """Colour, T and depth of a ray, in float64."""
    near, far = ref.chord(origin, direction, BOX)
    if far <= near:
        return np.array([*BACKGROUND, 1, 0])
    count = max(int(np.ceil((far - near) * 12 - 1e-3)), 1)
    step = (far - near) / count
    t = near + (np.arange(count) + 0.5) * step
    off = origin + t[:, None] * direction - [0.4, 0.5, 0.6]
    raw = peak * (np.exp(-8 * (off**2).sum(1)) * (1 + 0.5 * direction[1]))[:, None]
    through = np.exp(-np.maximum(raw[:, 0], 0) * step)
    T = np.concatenate([[1.0], np.cumprod(through)])
    w = T[:-1] * (1 - through)
    return np.array([*(w @ np.maximum(raw[:, 1:] + 0.5, 0) + T[-1] * BACKGROUND), T[-1], w @ t])


def losses(peak: Array, origins: Array, directions: Array) -> Array:
    return np.array([v @ marched(peak, o, d) for v, o, d in zip(V, origins, directions, strict=True)])


def test_march_and_replay_of_a_blob() -> None:
    """Results, gradients of its four numbers, and those of rays."""
    device = get_device().handle
    sums = spy.Tensor.from_numpy(device, np.zeros(4, np.float32))
    result = MODULE.marchBlob(sums, PEAK, ORIGINS, DIRECTIONS, BACKGROUND)
    wanted = np.array([marched(PEAK, o, d) for o, d in zip(ORIGINS, DIRECTIONS, strict=True)])
    for name, part in (("color", wanted[:, :3]), ("T", wanted[:, 3]), ("depth", wanted[:, 4])):
        np.testing.assert_allclose(result[name], part, rtol=2e-5, atol=1e-5, err_msg=name)
    found = MODULE.replayBlob(sums, PEAK, ORIGINS, DIRECTIONS, result, V[:, :3], V[:, 3], V[:, 4])
    np.testing.assert_allclose(found["background"], V[:, :3] * wanted[:, 3:4], rtol=1e-4, atol=1e-5)

    h = 1e-6
    v_peak = [
        (losses(PEAK + e, ORIGINS, DIRECTIONS) - losses(PEAK - e, ORIGINS, DIRECTIONS)).sum() / (2 * h) for e in np.eye(4) * h
    ]
    assert np.abs(v_peak).min() > 1e-2
    np.testing.assert_allclose(sums.to_numpy(), v_peak, rtol=2e-4, atol=1e-4)
    for which, name in enumerate(("origin", "direction")):
        for axis in range(3):
            step = np.zeros((2, COUNT, 3))
            step[which, :, axis] = 1e-7
            rays = np.array([ORIGINS, DIRECTIONS])
            numeric = (losses(PEAK, *(rays + step)) - losses(PEAK, *(rays - step))) / 2e-7
            np.testing.assert_allclose(found[name][:, axis], numeric, rtol=1e-3, atol=1e-3 * np.abs(numeric).max())
