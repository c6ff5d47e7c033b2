"""slang/splat/splat2d.slang, shape.slang, pixels.slang, falloff.slang and falloff2d.slang, through their interfaces."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import shaders
from splat_py.shaders import blending, footprint, shape
from splat_py.shaders import splat2d as shader
from tests.shaders.oracle import Array, assert_like, assert_value
from tests.shaders.test_footprint import conics

COUNT = 40
RNG = np.random.default_rng(49)


def sigma_of(mean: Tensor, conic: Tensor, pixels: Array) -> Tensor:
    (x, y), (a, b, c) = (torch.from_numpy(pixels) - mean).T, conic.T
    return a * x * x + 2 * b * x * y + c * y * y


@pytest.mark.parametrize("stop", ["SceneStop", "SceneStop99", "ImageStop"])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_alpha(channels: int, stop: str) -> None:
    """α, and the gradient of every field; channels have none here."""
    alpha = shader.alphaOf[channels, 6 + channels, f"Splat2D<{channels}, 3, 0, {stop}, GaussianFalloff, Ellipse>"]
    mean, pixels = RNG.uniform(0, 8, (COUNT, 2)), RNG.integers(0, 8, (COUNT, 2)) + 0.5
    roots = RNG.normal(size=(COUNT, 2, 2)) * 0.4
    matrices = roots @ roots.swapaxes(1, 2)
    conic = np.stack([matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 1, 1]], axis=1)
    opacity, color = RNG.uniform(0.1, 0.9, COUNT), RNG.uniform(size=(COUNT, channels))
    splat = {"mean": mean, "shape": conic, "opacity": opacity, "color": color, "extras": np.zeros((COUNT, 4, 4))}

    def f(splat: dict[str, Tensor]) -> Tensor:
        return splat["opacity"] * (-0.5 * sigma_of(splat["mean"], splat["shape"], pixels)).exp()

    assert_like(alpha, f, [splat], [pixels], atol=2e-6)
    # The function of README's example gives the renderer's α to the last bit.
    np.testing.assert_array_equal(alpha(splat, pixels), blending.evaluateAlpha(mean, conic, opacity, pixels))


@pytest.mark.parametrize(("stop", "limit"), [("SceneStop", 0.999), ("SceneStop99", 0.99), ("ImageStop", 0.999)])
def test_alpha_is_at_most_the_stop_rule_s(stop: str, limit: float) -> None:
    splat = {
        "mean": [[2.5, 3.5]] * 3,
        "shape": [[0.5, 0.1, 0.4]] * 3,
        "opacity": [0.98, 0.995, 1.0],
        "color": [[0.0]] * 3,
        "extras": np.zeros((4, 4)),
    }
    alpha, pixels = shader.alphaOf[1, 7, f"Splat2D<1, 3, 0, {stop}, GaussianFalloff, Ellipse>"], np.array([[2.5, 3.5]] * 3)
    assert_value(alpha(splat, pixels), np.minimum([0.98, 0.995, 1.0], limit))
    v_splat, _ = shaders.gradients(alpha, np.ones(3), splat, pixels)
    np.testing.assert_array_equal(v_splat["opacity"], np.array([0.98, 0.995, 1.0]) < limit)


def test_sigma_of_an_ellipse() -> None:
    mean, pixels = RNG.uniform(0, 8, (COUNT, 2)), RNG.integers(0, 8, (COUNT, 2)) + 0.5
    conic = conics(*np.exp(RNG.uniform(-0.5, 2, (2, COUNT))), RNG.uniform(0, np.pi, COUNT))
    sigma = shape.sigmaOf[3, "Ellipse"]
    assert_like(sigma, lambda m, c: sigma_of(m, c, pixels), [mean, conic], [pixels], value=(1e-4, 1e-5), atol=1e-4)


def test_bounds_of_an_ellipse() -> None:
    mean, opacity = RNG.uniform(0, 48, (COUNT, 2)), RNG.uniform(0, 1, COUNT)
    conic = conics(*np.exp(RNG.uniform(-0.5, 2, (2, COUNT))), RNG.uniform(0, np.pi, COUNT))
    expected = footprint.footprint["GaussianFalloff"](mean, conic, opacity, np.zeros((4, 4)))
    actual = shape.boundsOf[3, "Ellipse"](mean, conic, footprint.sigmaMaxOf["GaussianFalloff"](opacity, np.zeros((4, 4))))
    assert set(actual) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name])
    assert np.all(expected["radius"] < 0)


PLACES = """
import splat.pixels;

public float4 places(float2 first, float2 offset, bool inside)
{
    Pixels<2> pixels = { first, { float2(0.0), offset }, { true, inside } };
    Pixels<1> second = pixels.only(1);
    return float4(pixels.position(1), second.position(0)) * (second.inside[0] ? 1.0 : -1.0);
}
"""


def test_one_of_the_pixels_is_where_it_was() -> None:
    places = shaders.source(PLACES).places
    first, offset = np.array([[10.5, 3.5], [0.5, 7.5]]), np.array([[1.0, 2.0], [3.0, 0.0]])
    expected = np.concatenate([first + offset] * 2, axis=1)
    assert_value(places(first, offset, True), expected)
    assert_value(places(first, offset, False), -expected)


VALUES = 80
# Values by σ and the own number, its name and range, and the largest σ.
KINDS: dict[str, tuple[Callable[[Tensor, Any], Tensor], str, float, float, float]] = {
    "GaussianFalloff": (lambda sigma, _: (-0.5 * sigma).exp(), "", 0, 0, 12),
    "GeneralizedExponential": (lambda sigma, own: (-0.5 * sigma ** own["beta"]).exp(), "beta", 0.4, 2.5, 9),
    "BetaKernel": (lambda sigma, own: (1 - sigma / 9) ** (4 * own["b"].exp()), "b", -1.5, 1.5, 8.9),
}


@pytest.mark.parametrize("name", KINDS)
def test_values_and_gradients(name: str) -> None:
    f, field, low, high, furthest = KINDS[name]
    rng = np.random.default_rng(7)
    sigma, own = rng.uniform(0.01, furthest, VALUES), {field: rng.uniform(low, high, VALUES)} if field else {}
    assert_like(shaders.falloff.falloffOf[name], f, [sigma, own], value=(2e-5, 1e-6), atol=1e-5)


def test_generalized_exponential_at_the_mean() -> None:
    """The power's infinite derivative there counts as zero."""
    function = shaders.falloff.falloffOf["GeneralizedExponential"]
    np.testing.assert_allclose(function(0.0, {"beta": 0.5}), 1, atol=1e-3)
    v_sigma, v_own = shaders.gradients(function, 1.0, 0.0, {"beta": 0.5})
    assert v_sigma == 0 and np.isfinite(v_own["beta"])


def test_beta_kernel_beyond_its_edge() -> None:
    function = shaders.falloff.falloffOf["BetaKernel"]
    assert function(9.5, {"b": 0.0}) < 1e-6
    v_sigma, _ = shaders.gradients(function, 1.0, 9.5, {"b": 0.0})
    assert v_sigma == 0


# --- by Δ in standard deviations, and an own type through the interface ---

OWN = """
import splat.prelude;
struct Lopsided : IFalloff2D
{
    float x, y;

    [Differentiable]
    float value(float2 d, float3 conic)
    {
        float2 u = standardised(d, conic);
        return exp(dot(u, u) * -0.5) * sigmoid(u.x * x + d.y * y);
    }

    float sigmaMax(float opacity)
    {
        return opacity * 2.0 + x;
    }
}
"""


def inputs(seed: int) -> tuple[Array, Array, dict[str, Array]]:
    rng = np.random.default_rng(seed)
    conic = conics(*np.exp(rng.uniform(-0.5, 1.5, (2, VALUES))), rng.uniform(0, np.pi, VALUES))
    return rng.uniform(-3, 3, (VALUES, 2)), conic, {name: rng.normal(size=VALUES) for name in "xy"}


def standardised(d: Tensor, conic: Tensor) -> Tensor:
    (x, y), (a, b, c) = d.T, conic.T
    return torch.stack([(a * x + b * y) / a.sqrt(), y * (c - b * b / a).sqrt()], 1)


def test_standardised() -> None:
    d, conic, _ = inputs(11)
    u = standardised(*map(torch.from_numpy, (d, conic)))
    (x, y), (a, b, c) = d.T, conic.T
    np.testing.assert_allclose((u * u).sum(1), a * x * x + 2 * b * x * y + c * y * y, rtol=1e-9)
    assert_like(shaders.falloff2d.standardised, standardised, [d, conic], value=(1e-4, 1e-5), rtol=1e-3, atol=1e-4)


def test_ones_own() -> None:
    def value(d: Tensor, conic: Tensor, own: dict[str, Tensor]) -> Tensor:
        u = standardised(d, conic)
        return (-0.5 * (u * u).sum(1)).exp() * (u[:, 0] * own["x"] + d[:, 1] * own["y"]).sigmoid()

    own, arguments = shaders.source(OWN), inputs(13)
    assert_like(shaders.falloff2d.falloff2DOf[own], value, arguments, value=(1e-4, 1e-6), rtol=1e-3, atol=1e-4)
    opacity = np.linspace(0.1, 1, VALUES)
    assert_value(shaders.falloff2d.sigmaMaxOfOffsets[own](opacity, arguments[2]), opacity * 2 + arguments[2]["x"])


def test_nothing_depends_on_a_value_of_no_weight() -> None:
    """Even where the type's own derivative is infinite."""
    text = OWN.replace("exp(dot(u, u) * -0.5)", "sqrt(d.x * 0.0)")
    *of_place, of_own = shaders.falloff2d.falloff2DOf[shaders.source(text)].gradients(np.zeros(VALUES), *inputs(15))
    assert not any(part.any() for part in (*of_place, *of_own.values()))
