"""slang/splat/blending.slang."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py.shaders import blending as shader
from tests.reference.blending import MAX_ALPHA
from tests.shaders.oracle import Array, assert_like, assert_value

COUNT = 60
RNG = np.random.default_rng(9)
CHANNELS = [1, 3, 4]


def test_alpha() -> None:
    means, pixels = RNG.uniform(0, 8, (COUNT, 2)), RNG.integers(0, 8, (COUNT, 2)) + 0.5
    roots = RNG.normal(size=(COUNT, 2, 2)) * 0.5
    roots[:5] *= 1e-2  # far larger than a pixel
    matrices = roots @ roots.swapaxes(1, 2)
    conics = np.stack([matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 1, 1]], axis=1)
    opacities = RNG.uniform(0.1, 1, COUNT)
    # Opaque and close by: clamped, so without a gradient.
    opacities[:10], means[:10] = 1, pixels[:10] + 1e-3

    def f(mean: Tensor, conic: Tensor, opacity: Tensor) -> Tensor:
        (x, y), (a, b, c) = (torch.from_numpy(pixels) - mean).T, conic.T
        return limited(opacity, (-0.5 * (a * x * x + 2 * b * x * y + c * y * y)).exp(), MAX_ALPHA)

    assert_like(shader.evaluateAlpha, f, [means, conics, opacities], [pixels], atol=2e-6)
    falloffs = RNG.uniform(0, 1, COUNT)
    for limit in (0.99, 0.5):
        falloffs[:10] = 1
        assert_like(shader.limitAlpha, partial(limited, limit=limit), [opacities, falloffs], [limit], atol=2e-6)


def limited(opacity: Tensor, falloff: Tensor, limit: float) -> Tensor:
    raw = opacity * falloff
    assert 10 <= (raw > limit).sum() <= COUNT - 10 and (raw - limit).abs().min() > 1e-5
    return raw.clamp(max=limit)


def states(channels: int) -> tuple[dict[str, Array], Array, Array]:
    """A pixel's state, and the alpha and colour of the splat behind it."""
    state = {"color": RNG.normal(size=(COUNT, channels)), "T": 10 ** RNG.uniform(-4, 0, COUNT)}
    alpha = RNG.uniform(1 / 255, MAX_ALPHA, COUNT)
    alpha[:4] = [1 / 255, MAX_ALPHA, MAX_ALPHA, 0.5]
    state["T"][:4] = 1
    return state, alpha, RNG.normal(size=(COUNT, channels))


@pytest.mark.parametrize("channels", CHANNELS)
def test_transform(channels: int) -> None:
    def f(state: dict[str, Tensor], alpha: Tensor, color: Tensor) -> dict[str, Tensor]:
        return {"color": state["color"] + (alpha * state["T"])[:, None] * color, "T": state["T"] * (1 - alpha)}

    assert_like(shader.transformPixelState[channels], f, states(channels))


@pytest.mark.parametrize("channels", CHANNELS)
def test_undo_is_the_inverse_of_transform(channels: int) -> None:
    state, alpha, color = states(channels)
    after = shader.transformPixelState[channels](state, alpha, color)
    before = shader.undoPixelState[channels](after, alpha, color)
    # The relative error of 1 - α is up to 1/(1 - α) ≤ 1000 times that of α.
    error = 4 * np.finfo(np.float32).eps / (1 - alpha)
    assert np.all(np.abs(before["T"] / state["T"] - 1) < error)
    size = 1 + np.abs(color) + np.abs(state["color"])
    assert np.all(np.abs(before["color"] - state["color"]) < error[:, None] * size)


@pytest.mark.parametrize("channels", CHANNELS)
def test_composite(channels: int) -> None:
    state, _, background = states(channels)
    assert_like(shader.composite[channels], lambda s, behind: s["color"] + s["T"][:, None] * behind, [state, background])


def test_steps_of_distortion() -> None:
    """The sum of distortion over all pairs, and the gradients of every step's state, α and channels."""
    rng = np.random.default_rng(55)
    count, channels = 30, 4
    state = {"color": rng.uniform(size=(count, channels)), "T": rng.uniform(0.1, 1, count)}
    alpha, color = rng.uniform(0.05, 0.9, count), rng.uniform(size=(count, channels))

    def step(state: dict[str, Tensor], alpha: Tensor, color: Tensor) -> dict[str, Tensor]:
        before, T = state["color"], state["T"]
        brought = torch.cat([color[:, :-1], 2 * (color[:, -2:-1] * (1 - T)[:, None] - before[:, -2:-1])], 1)
        return {"color": before + (T * alpha)[:, None] * brought, "T": T * (1 - alpha)}

    function = shader.blendStep[channels, "DistortionBlending"]
    assert_like(function, step, [state, alpha, color])

    weights, depths = np.zeros((count, 3)), rng.uniform(1, 5, (count, 3))
    after = {"color": np.zeros((count, channels)), "T": np.ones(count)}
    for i in range(3):
        weights[:, i] = np.asarray(after["T"]) * alpha
        channel = np.stack([np.zeros(count), np.zeros(count), depths[:, i], np.zeros(count)], 1)
        after = function(after, alpha, channel)
    pairs = sum(weights[:, i] * weights[:, j] * (depths[:, i] - depths[:, j]) for i in range(3) for j in range(i))
    assert_value(after["color"][:, -1], 2 * pairs, rtol=1e-4, atol=1e-5)
