"""slang/splat/pixel_loss.slang, image_loss.slang and ssim.slang. An image's whole loss: tests/image/test_rasterizers.py."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d
from torch import Tensor

from splat_py.shaders import image_loss, pixel_loss, ssim
from tests.reference.arrays import Array
from tests.reference.ssim import C1, C2, WINDOW, ssim_map
from tests.shaders.oracle import assert_like, assert_value, float32

COUNT = 40
RNG = np.random.default_rng(44)
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "L1": torch.abs,
    "L2": torch.square,
    "Charbonnier": lambda d: (d * d + 1e-6).sqrt(),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_losses(name: str, channels: int) -> None:
    x = RNG.uniform(size=(COUNT, channels))
    y = x + RNG.normal(size=x.shape) * np.exp(RNG.uniform(-7, 0, size=x.shape))
    of_kind = pixel_loss.pixelLossOf[channels, name]
    assert_like(of_kind, lambda x, y: KINDS[name](x - y).mean(-1), [float32(x), float32(y)], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("linear", "loss"),
    [("false", lambda color, target: ((color - target) ** 2).mean(1)), ("true", lambda color, target: (color * target).sum(1))],
)
def test_losses_of_images(linear: str, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    color, target = RNG.uniform(size=(2, 50, 3))
    assert_like(image_loss.pixelLoss[linear], lambda c: loss(c, torch.from_numpy(target)), [color], [target])


def test_no_slope_where_both_are_equal() -> None:
    assert pixel_loss.magnitude(-2.0) == 2.0
    np.testing.assert_array_equal(pixel_loss.magnitude.gradients(3.0, np.array([-1.0, 0, 2]))[0], [-3, 0, 3])


ALPHA = RNG.uniform(0.02, 1, COUNT)
ACCUMULATED = ALPHA * np.exp(RNG.uniform(-3, 3, COUNT))


def test_disparity() -> None:
    assert_like(pixel_loss.expectedDisparity, lambda accumulated, alpha: alpha / accumulated, [ACCUMULATED, ALPHA])


def test_gradient_of_the_loss() -> None:
    known = ACCUMULATED / ALPHA * np.exp(RNG.uniform(-1, 1, COUNT))
    sign = np.sign(ALPHA / ACCUMULATED - 1 / known)
    assert -0.5 < sign.mean() < 0.5
    expected = sign[:, None] * np.stack([-ALPHA / ACCUMULATED**2, 1 / ACCUMULATED], -1)
    assert_value(pixel_loss.disparityGradient(ACCUMULATED, ALPHA, known), expected)


def test_there_is_none_where_nothing_is_known_or_shown() -> None:
    accumulated, alpha = np.array([1.0, 1, 1, 1e-3, 0, -1]), np.array([0.5, 0.5, 0.5, 1e-3, 0.5, 0.5])
    known = np.array([0.0, -1, np.nan, 1, 1, 1])
    assert not pixel_loss.disparityGradient(accumulated, alpha, known).any()


def moments(x: Array, y: Array, window: Array) -> dict[str, Array]:
    """Window means over images [H, W], with black around them."""
    fields = {"x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}
    for axis in range(2):
        fields = {name: correlate1d(field, window, axis=axis, mode="constant") for name, field in fields.items()}
    return fields


def images() -> tuple[Array, Array]:
    """A picture with flat, black and noisy parts, and a similar one."""
    rng = np.random.default_rng(10)
    x = np.kron(rng.uniform(size=(3, 4)), np.ones((8, 8)))
    x[:8, :8] = 0
    x[16:] += 0.2 * rng.normal(size=x[16:].shape)
    return x, np.clip(x + 0.1 * rng.normal(size=x.shape), 0, 1)


def test_window() -> None:
    weights = ssim.ssimWeight(np.arange(-5, 6))
    assert_value(weights, WINDOW, rtol=1e-6, atol=1e-8)
    assert abs(weights.astype(float).sum() - 1) < 1e-7


def test_ssim_of_moments() -> None:
    x, y = images()
    fields = moments(x, y, ssim.ssimWeight(np.arange(-5, 6)).astype(float))
    # The variance in flat parts is a difference of near equals.
    assert_value(ssim.ssimOfMoments(fields), ssim_map(x[..., None], y[..., None])[..., 0], atol=1e-4)


def test_ssim_gradients() -> None:
    def f(m: dict[str, Tensor]) -> Tensor:
        x, y = m["x"], m["y"]
        luminance = (2 * x * y + C1) / (x * x + y * y + C1)
        return luminance * (2 * (m["xy"] - x * y) + C2) / (m["xx"] - x * x + m["yy"] - y * y + C2)

    samples = np.random.default_rng(11).uniform(size=(200, 2, 30))
    (x, y), (xx, yy) = samples.mean(axis=2).T, (samples**2).mean(axis=2).T
    xy = samples.prod(axis=1).mean(axis=1)
    assert_like(ssim.ssimOfMoments, f, [{"x": x, "y": y, "xx": xx, "yy": yy, "xy": xy}], atol=1e-5)
