"""ppisp.slang: its curves and their slopes, also where they bend. The whole is tested in tests/train/test_exposure.py."""

import numpy as np
import torch
from torch import Tensor

from splat_py.shaders import ppisp
from tests.shaders.oracle import assert_gradients, assert_like

X = np.array([-60.0, -3, -0.5, 0, 0.5, 3, 60])


def test_softplus_does_not_overflow() -> None:
    assert_like(ppisp.softplus, torch.nn.functional.softplus, [X])


def test_saturated_has_its_slope_on_both_bounds() -> None:
    x = np.array([-0.1, 0, 0.3, 1, 1.1])
    np.testing.assert_allclose(ppisp.saturated(x), x.clip(0, 1), rtol=1e-6)
    assert_gradients(ppisp.saturated, np.ones(5), [x], [np.array([0.0, 1, 1, 1, 0])])


def test_powers_have_no_slope_next_to_0() -> None:
    base, exponent = np.array([0.0, 1e-7, 1e-3, 0.4, 1]), np.array([0.3, 0.5, 0.7, 2, 3])
    np.testing.assert_allclose(ppisp.power(base, exponent), base**exponent, rtol=1e-5)
    slopes = np.where(base > 1e-6, exponent * base.clip(1e-9) ** (exponent - 1), 0)
    of_exponent = np.where(base > 1e-6, base**exponent * np.log(base.clip(1e-9)), 0)
    assert_gradients(ppisp.power, np.ones(5), [base, exponent], [slopes, of_exponent])


def test_primaries_move_by_two_numbers() -> None:
    rng = np.random.default_rng(3)

    def moved(primary: Tensor, scale: Tensor, first: Tensor, second: Tensor) -> Tensor:
        x, y, z = scale.T
        return torch.stack([primary[:, 0] + x * first + z * second, primary[:, 1] + z * first + y * second, x * 0 + 1], 1)

    arguments = [rng.uniform(size=(6, 2)), rng.normal(size=(6, 3)), rng.normal(size=6), rng.normal(size=6)]
    assert_like(ppisp.movedPrimary, moved, arguments, no_diff=[0, 1])


def test_variance_of_three_channels() -> None:
    rng = np.random.default_rng(4)
    channels = [rng.normal(size=8) for _ in range(3)]
    assert_like(ppisp.variance, lambda *c: torch.stack(c).var(0, unbiased=False), channels)
