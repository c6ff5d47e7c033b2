"""slang/splat/blending.slang."""

from __future__ import annotations

import numpy as np
import pytest

from splat_py.shaders import blending as shader
from tests.reference.blending import MAX_ALPHA
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 60
RNG = np.random.default_rng(9)
CHANNELS = [1, 3, 4]


def test_alpha() -> None:
    def f(mean: Array, conic: Array, opacity: Array) -> Array:
        x, y = (pixels - mean).T
        a, b, c = conic.T
        return opacity * np.exp(-0.5 * (a * x * x + 2 * b * x * y + c * y * y))

    means, pixels = RNG.uniform(0, 8, (COUNT, 2)), RNG.integers(0, 8, (COUNT, 2)) + 0.5
    roots = RNG.normal(size=(COUNT, 2, 2)) * 0.5
    roots[:5] *= 1e-2  # far larger than a pixel
    matrices = roots @ roots.swapaxes(1, 2)
    conics = np.stack([matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 1, 1]], axis=1)
    opacities = RNG.uniform(0.1, 1, COUNT)
    # Opaque and close by: clamped, and so without a gradient.
    opacities[:10], means[:10] = 1, pixels[:10] + 1e-3
    raw = f(means, conics, opacities)
    clamped = raw > MAX_ALPHA
    assert clamped.sum() >= 10 and (~clamped).sum() >= 10 and np.abs(raw - MAX_ALPHA).min() > 1e-5

    assert_value(shader.evaluateAlpha(means, conics, opacities, pixels), np.minimum(raw, MAX_ALPHA))
    v = RNG.normal(size=COUNT)
    expected = pullback(f, np.where(clamped, 0, v), means, conics, opacities)
    assert_gradients(shader.evaluateAlpha, v, [means, conics, opacities, pixels], [*expected, None], atol=2e-6)
    for limit in (0.99, 0.5):
        limited = raw > limit
        assert limited.sum() >= 10 and (~limited).sum() >= 10 and np.abs(raw - limit).min() > 1e-5
        arguments = [means, conics, opacities, pixels, limit]
        assert_value(shader.evaluateAlphaUpTo(*arguments), np.minimum(raw, limit))
        expected = pullback(f, np.where(limited, 0, v), means, conics, opacities)
        assert_gradients(shader.evaluateAlphaUpTo, v, arguments, [*expected, None, None], atol=2e-6)


def states(channels: int) -> tuple[dict[str, Array], Array, Array]:
    """A pixel's state, and the alpha and colour of the splat behind it."""
    state = {"color": RNG.normal(size=(COUNT, channels)), "T": 10 ** RNG.uniform(-4, 0, COUNT)}
    alpha = RNG.uniform(1 / 255, MAX_ALPHA, COUNT)
    alpha[:4] = [1 / 255, MAX_ALPHA, MAX_ALPHA, 0.5]
    state["T"][:4] = 1
    return state, alpha, RNG.normal(size=(COUNT, channels))


@pytest.mark.parametrize("channels", CHANNELS)
def test_transform(channels: int) -> None:
    """The adjoint as the contract has it: dL/dc = αT g, dL/dα = T (g·c - τ), dL/dT = (1 - α) τ + α g·c."""
    state, alpha, color = states(channels)
    T = state["T"]
    expected = {
        "color": state["color"] + (alpha * T)[:, None] * color,
        "T": T * (1 - alpha),
    }
    transform = shader.transformPixelState[channels]
    assert_value(transform(state, alpha, color), expected)

    g, tau = RNG.normal(size=(COUNT, channels)), RNG.normal(size=COUNT)
    g_dot_c = np.sum(g * color, axis=1)
    v_state = {"color": g, "T": (1 - alpha) * tau + alpha * g_dot_c}
    v_alpha, v_color = T * (g_dot_c - tau), (alpha * T)[:, None] * g
    assert_gradients(transform, {"color": g, "T": tau}, [state, alpha, color], [v_state, v_alpha, v_color])


@pytest.mark.parametrize("channels", CHANNELS)
def test_undo_is_the_inverse_of_transform(channels: int) -> None:
    state, alpha, color = states(channels)
    after = shader.transformPixelState[channels](state, alpha, color)
    before = shader.undoPixelState[channels](after, alpha, color)
    # 1 - α has up to 1/(1 - α) ≤ 1000 times the relative error of α.
    error = 4 * np.finfo(np.float32).eps / (1 - alpha)
    assert np.all(np.abs(before["T"] / state["T"] - 1) < error)
    size = 1 + np.abs(color) + np.abs(state["color"])
    assert np.all(np.abs(before["color"] - state["color"]) < error[:, None] * size)


@pytest.mark.parametrize("channels", CHANNELS)
def test_composite(channels: int) -> None:
    state, _, background = states(channels)
    composite = shader.composite[channels]
    assert_value(composite(state, background), state["color"] + state["T"][:, None] * background)
    v = RNG.normal(size=(COUNT, channels))
    v_state = {"color": v, "T": np.sum(v * background, axis=1)}
    assert_gradients(composite, v, [state, background], [v_state, state["T"][:, None] * v])


def test_steps_of_distortion() -> None:
    """Its sum over all pairs, and the gradients of every step's state, α and channels."""
    rng = np.random.default_rng(55)
    count, channels = 30, 4
    state = {"color": rng.uniform(size=(count, channels)), "T": rng.uniform(0.1, 1, count)}
    alpha, color = rng.uniform(0.05, 0.9, count), rng.uniform(size=(count, channels))

    def step(before: Array, T: Array, alpha: Array, color: Array) -> Array:
        brought = np.concatenate([color[:, :-1], 2 * (color[:, -2:-1] * (1 - T)[:, None] - before[:, -2:-1])], 1)
        return np.concatenate([before + (T * alpha)[:, None] * brought, (T * (1 - alpha))[:, None]], 1)

    function = shader.blendStep[channels, "DistortionBlending"]
    inputs = state["color"], state["T"], alpha, color
    expected = step(*inputs)
    assert_value(function(state, alpha, color), {"color": expected[:, :-1], "T": expected[:, -1]})
    v = rng.normal(size=expected.shape)
    v_color, v_T, v_alpha, v_channels = pullback(step, v, *inputs)
    v_output = {"color": v[:, :-1], "T": v[:, -1]}
    assert_gradients(function, v_output, [state, alpha, color], [{"color": v_color, "T": v_T}, v_alpha, v_channels])

    weights, depths = np.zeros((count, 3)), rng.uniform(1, 5, (count, 3))
    after = {"color": np.zeros((count, channels)), "T": np.ones(count)}
    for i in range(3):
        weights[:, i] = np.asarray(after["T"]) * alpha
        channel = np.stack([np.zeros(count), np.zeros(count), depths[:, i], np.zeros(count)], 1)
        after = function(after, alpha, channel)
    pairs = sum(weights[:, i] * weights[:, j] * (depths[:, i] - depths[:, j]) for i in range(3) for j in range(i))
    assert_value(after["color"][:, -1], 2 * pairs, rtol=1e-4, atol=1e-5)
