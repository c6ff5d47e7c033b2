"""slang/splat/path_replay.slang, on a grid in a tensor; tests/volume tests it on the renderer's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import slangpy as spy

from splat_py import shaders
from splat_py.gpu.device import get_device
from tests.shaders.test_segment import COUNT, DIRECTIONS, ORIGINS, float32
from tests.volume import reference as ref
from tests.volume.reference import Field

MODULE = shaders.load(Path(__file__).with_name("voxel_grid.slang"))
BOX = np.array([[0.0, 0, 0], [1, 1, 1]])
SIZE = (4, 5, 3)
K = 4
RNG = np.random.default_rng(47)


FIELD = Field(
    float32(RNG.uniform(-1, 5, SIZE)),
    float32(RNG.normal(0, 0.8, (*SIZE, K, 3))),
    BOX,
    float32(RNG.uniform(size=3)),
)


@pytest.mark.parametrize("seed", [0, 5])
def test_march_and_replay(seed: int) -> None:
    """Results and gradients, also with jitter, which the replay repeats."""
    device = get_device().handle
    rows = np.concatenate([FIELD.density.reshape(-1, 1), FIELD.sh.reshape(-1, 3 * K)], axis=1)
    gradients = spy.Tensor.from_numpy(device, np.zeros(rows.size, np.float32))
    grid = spy.Tensor.from_numpy(device, rows.astype(np.float32)), gradients, SIZE
    rays, sampling = (ORIGINS, DIRECTIONS), (12.0, np.arange(COUNT), seed)
    result = MODULE.marchGrid(*grid, *rays, FIELD.background, *sampling)
    jitter = seed or None
    color, T, depth = ref.march(FIELD, ORIGINS, DIRECTIONS, 12, jitter)
    for name, wanted in (("color", color), ("T", T), ("depth", depth)):
        np.testing.assert_allclose(result[name], wanted, rtol=2e-5, atol=1e-5, err_msg=name)
    assert T.min() < 0.1 and T.max() == 1

    v = RNG.normal(size=(COUNT, 3)), RNG.normal(size=COUNT), RNG.normal(size=COUNT)
    found = MODULE.replayGrid(*grid, *rays, *sampling, result, *v)
    expected = ref.march_backward(FIELD, ORIGINS, DIRECTIONS, 12, *v, jitter)
    actual = gradients.to_numpy().reshape(rows.shape)
    atol = 2e-5 * float(np.abs(expected[1]).max())
    np.testing.assert_allclose(actual[:, 0].reshape(SIZE), expected[0], rtol=2e-4, atol=atol)
    np.testing.assert_allclose(actual[:, 1:].reshape(*SIZE, K, 3), expected[1], rtol=2e-4, atol=atol)
    np.testing.assert_allclose(found["background"].sum(axis=0), expected[2], rtol=1e-4)
    assert found["origin"].any() and found["direction"].any()
