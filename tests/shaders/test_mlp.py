"""slang/splat/mlp.slang against float64, every weight's gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import slangpy as spy

from splat_py import shaders
from splat_py.gpu.device import get_device
from tests.shaders.oracle import Array

MODULE = shaders.load(Path(__file__).with_name("mlp.slang"))
IN, OUT, COUNT = 5, 3, 40
RNG = np.random.default_rng(61)


def network(rows: Array, x: Array) -> Array:
    hidden = np.maximum(x @ rows[:, :IN].T + rows[:, IN], 0)
    return hidden @ rows[:, IN + 1 :]


@pytest.mark.parametrize("units", [1, 7])
def test_values_and_gradients(units: int) -> None:
    """Of the inputs, and of each weight, by finite differences of float64."""
    rows, x, v = RNG.normal(size=(units, IN + 1 + OUT)), RNG.normal(size=(COUNT, IN)), RNG.normal(size=(COUNT, 3))
    rows, x = (a.astype(np.float32).astype(float) for a in (rows, x))
    device = get_device().handle
    weights = spy.Tensor.from_numpy(device, rows.astype(np.float32))
    sums = spy.Tensor.from_numpy(device, np.zeros(rows.size, np.float32))
    np.testing.assert_allclose(MODULE.network(weights, sums, units, x), network(rows, x), rtol=1e-5, atol=1e-5)
    v_x = MODULE.gradient(weights, sums, units, x, v)

    def losses(rows: Array, x: Array) -> Array:
        return (v * np.tanh(network(rows, x))).sum(1)

    h = 1e-6
    for i, e in enumerate(np.eye(IN) * h):
        wanted = (losses(rows, x + e) - losses(rows, x - e)) / (2 * h)
        np.testing.assert_allclose(v_x[:, i], wanted, rtol=1e-4, atol=1e-4)
    found = sums.to_numpy().reshape(rows.shape)
    for place in np.ndindex(rows.shape):
        step = np.zeros_like(rows)
        step[place] = h
        wanted = ((losses(rows + step, x) - losses(rows - step, x)) / (2 * h)).sum()
        assert wanted != 0
        np.testing.assert_allclose(found[place], wanted, rtol=1e-3, atol=1e-4, err_msg=str(place))
