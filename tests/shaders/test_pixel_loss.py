"""slang/splat/pixel_loss.slang."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from splat_py.shaders import pixel_loss
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 40
RNG = np.random.default_rng(44)
# Each, with an absolute value that complex steps can take.
KINDS: dict[str, Callable[[Array], Array]] = {
    "L1": lambda d: np.where(d.real < 0, -d, d),
    "L2": lambda d: d * d,
    "Charbonnier": lambda d: np.sqrt(d * d + 1e-6),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_losses(name: str, channels: int) -> None:
    x, v = RNG.uniform(size=(COUNT, channels)), RNG.normal(size=COUNT)
    y = x + RNG.normal(size=x.shape) * np.exp(RNG.uniform(-7, 0, size=x.shape))
    x, y = (a.astype(np.float32).astype(float) for a in (x, y))
    function = pixel_loss.pixelLossOf[channels, name]

    def expected(x: Array, y: Array) -> Array:
        return KINDS[name](x - y).mean(-1)

    assert_value(function(x, y), expected(x, y))
    assert_gradients(function, v, [x, y], pullback(expected, v, x, y), rtol=1e-3, atol=1e-5)


def test_no_slope_where_both_are_equal() -> None:
    assert pixel_loss.magnitude(-2.0) == 2.0
    np.testing.assert_array_equal(pixel_loss.magnitude.gradients(3.0, np.array([-1.0, 0, 2]))[0], [-3, 0, 3])
