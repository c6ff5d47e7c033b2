"""The Adam kernel against the reference, several steps long."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import tests.reference as ref
from splat_py.gpu.arrays import Array as DeviceArray
from splat_py.gpu.device import get_device
from splat_py.gpu.kernels import linear_groups

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-15


@pytest.mark.parametrize(("rows", "row", "head"), [(1, 1, 1), (70, 3, 3), (31, 48, 3), (5000, 4, 4)])
def test_steps(rows: int, row: int, head: int) -> None:
    """Rows whose first `head` numbers learn at another rate: as spherical harmonics do."""
    device = get_device()
    rng = np.random.default_rng(row)
    rate, head_rate = 1e-3, 2e-2
    rates = np.where(np.arange(row) < head, head_rate, rate)
    parameter = rng.normal(size=(rows, row)).astype(np.float32)
    expected, first, second = parameter.astype(np.float64), np.zeros((rows, row)), np.zeros((rows, row))
    zeros = np.zeros((rows, row), np.float32)
    arrays = {
        "parameters": device.memory.array(parameter),
        "firstMoments": device.memory.array(zeros),
        "secondMoments": device.memory.array(zeros),
        "status": device.memory.array(np.zeros(2, np.uint32)),
    }
    for step in range(1, 6):
        # Sizes from 1e-6 to 1: Adam does not care; and a parameter in ten that gets none at all.
        gradient = rng.normal(size=(rows, row)) * 10.0 ** rng.uniform(-6, 0, (rows, row))
        gradient[rng.random((rows, row)) < 0.1] = 0.0
        gradient = gradient.astype(np.float32)
        _dispatch(arrays, gradient, step, row, head, rate, head_rate)
        expected, first, second = ref.adam_step(
            expected, gradient.astype(np.float64), first, second, step, lr=rates, beta1=BETA1, beta2=BETA2, eps=EPSILON
        )
        np.testing.assert_allclose(arrays["firstMoments"].numpy(), first, rtol=1e-5, atol=1e-7 * np.abs(first).max())
        # 1 - β₂ of a β₂ rounded to float32 is off by 1.3e-5.
        np.testing.assert_allclose(arrays["secondMoments"].numpy(), second, rtol=2e-5, atol=1e-7 * second.max())
        np.testing.assert_allclose(arrays["parameters"].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_a_step_that_does_not_count_changes_nothing() -> None:
    device = get_device()
    rng = np.random.default_rng(0)
    names = ("parameters", "firstMoments", "secondMoments")
    values = {name: rng.uniform(size=(20, 3)).astype(np.float32) for name in names}
    arrays = {name: device.memory.array(array) for name, array in values.items()}
    arrays["status"] = device.memory.array(np.array([1234, 1], np.uint32))
    _dispatch(arrays, np.ones((20, 3), np.float32), 2, 3, 3, 1e-3, 1e-3)
    for name in names:
        np.testing.assert_array_equal(arrays[name].numpy(), values[name])


@pytest.mark.parametrize(("row", "bounded"), [(1, True), (3, False)])
def test_gradients_in_the_rows_of_splats(row: int, bounded: bool) -> None:
    """What splats take of each Gaussian: gradients lie behind those of colours, and parameters may have bounds."""
    device = get_device()
    rng = np.random.default_rng(2)
    parameter = rng.uniform(-1, 1, (70, row)).astype(np.float32)
    rows = rng.normal(size=(70, 9 + row)).astype(np.float32)
    zeros = np.zeros((70, row), np.float32)
    arrays = {
        "parameters": device.memory.array(parameter),
        "firstMoments": device.memory.array(zeros),
        "secondMoments": device.memory.array(zeros),
        "status": device.memory.array(np.zeros(2, np.uint32)),
    }
    layout = {"STRIDE": 9 + row, "OFFSET": 9, "BOUNDED": bounded}
    _dispatch(arrays, rows, 1, row, 0, 0.5, 0.0, count=parameter.size, least=-0.7, largest=0.2, **layout)
    expected, _, _ = ref.adam_step(
        parameter.astype(np.float64), rows[:, 9:], zeros, zeros, 1, lr=0.5, beta1=BETA1, beta2=BETA2, eps=EPSILON
    )
    if bounded:
        assert (expected < -0.7).any() and (expected > 0.2).any()
        expected = expected.clip(-0.7, 0.2)
    # 1 - β₂ as above.
    np.testing.assert_allclose(arrays["parameters"].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_the_inactive_rest_of_a_row_stays() -> None:
    """Spherical harmonics above the degree in use: parameters and moments stay."""
    device = get_device()
    rng = np.random.default_rng(1)
    names = ("parameters", "firstMoments", "secondMoments")
    values = {name: rng.uniform(size=(20, 12)).astype(np.float32) for name in names}
    arrays = {name: device.memory.array(array) for name, array in values.items()}
    arrays["status"] = device.memory.array(np.zeros(2, np.uint32))
    _dispatch(arrays, np.ones((20, 12), np.float32), 3, 12, 3, 1e-3, 1e-2, active=6)
    for name in names:
        np.testing.assert_array_equal(arrays[name].numpy()[:, 6:], values[name][:, 6:])
        assert (arrays[name].numpy()[:, :6] != values[name][:, :6]).all()


def _dispatch(
    arrays: dict[str, DeviceArray],
    gradient: npt.NDArray[np.float32],
    step: int,
    row: int,
    head: int,
    rate: float,
    head_rate: float,
    active: int | None = None,
    count: int | None = None,
    least: float = 0.0,
    largest: float = 0.0,
    **layout: int | bool,
) -> None:
    device = get_device()
    uniforms = {
        "count": gradient.size if count is None else count,
        "active": row if active is None else active,
        "rate": rate,
        "headRate": head_rate,
        "beta1": BETA1,
        "beta2": BETA2,
        "epsilon": EPSILON,
        "correction1": 1 - BETA1**step,
        "correction2": 1 - BETA2**step,
        "least": least,
        "largest": largest,
    }
    recorder = device.record()
    gradients = {"gradients": device.memory.array(gradient)}
    constants = {"ROW": row, "HEAD": head, **layout}
    recorder.dispatch("optimize", "adam", linear_groups(gradient.size), uniforms, arrays | gradients, **constants)
    recorder.submit()
