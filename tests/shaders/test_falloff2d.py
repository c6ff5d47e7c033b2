"""slang/splat/falloff2d.slang: Δ in standard deviations, and a type of one's own through the interface."""

from __future__ import annotations

import numpy as np

from splat_py import shaders
from splat_py.shaders import falloff2d as shader
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback
from tests.shaders.test_footprint import conics

COUNT = 60
OWN = """
import splat.prelude;
struct Lopsided : IFalloff2D
{
    [Differentiable]
    static float value(float2 d, float3 conic, float4 extras)
    {
        float2 u = standardised(d, conic);
        return exp(dot(u, u) * -0.5) * sigmoid(u.x * extras.x + d.y * extras.y);
    }

    static float sigmaMax(float opacity, float4 extras)
    {
        return opacity * 2.0 + extras.x;
    }
}
"""


def inputs(seed: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    conic = conics(*np.exp(rng.uniform(-0.5, 1.5, (2, COUNT))), rng.uniform(0, np.pi, COUNT))
    return rng.uniform(-3, 3, (COUNT, 2)), conic, rng.normal(size=(COUNT, 4))


def standardised(d: Array, conic: Array) -> Array:
    (x, y), (a, b, c) = d.T, conic.T
    return np.stack([(a * x + b * y) / np.sqrt(a), y * np.sqrt(c - b * b / a)], 1)


def test_standardised() -> None:
    d, conic, _ = inputs(11)
    u = standardised(d, conic)
    (x, y), (a, b, c) = d.T, conic.T
    np.testing.assert_allclose((u * u).sum(1), a * x * x + 2 * b * x * y + c * y * y, rtol=1e-9)
    assert_value(shader.standardised(d, conic), u, rtol=1e-4, atol=1e-5)
    v = np.random.default_rng(12).normal(size=(COUNT, 2))
    expected = pullback(standardised, v, d, conic)
    assert_gradients(shader.standardised, v, [d, conic], expected, rtol=1e-3, atol=1e-4)


def test_ones_own() -> None:
    def value(d: Array, conic: Array, extras: Array) -> Array:
        u = standardised(d, conic)
        return np.exp(-0.5 * (u * u).sum(1)) / (1 + np.exp(-u[:, 0] * extras[:, 0] - d[:, 1] * extras[:, 1]))

    own, arguments = shaders.source(OWN), inputs(13)
    function = shader.falloff2DOf[own]
    assert_value(function(*arguments), value(*arguments), rtol=1e-4, atol=1e-6)
    v = np.random.default_rng(14).normal(size=COUNT)
    assert_gradients(function, v, [*arguments], pullback(value, v, *arguments), rtol=1e-3, atol=1e-4)
    opacity = np.linspace(0.1, 1, COUNT)
    assert_value(shader.sigmaMaxOfOffsets[own](opacity, arguments[2]), opacity * 2 + arguments[2][:, 0])


def test_nothing_depends_on_a_value_of_no_weight() -> None:
    """Where the type's own derivative is infinite."""
    text = OWN.replace("exp(dot(u, u) * -0.5)", "sqrt(d.x * 0.0)")
    for part in shader.falloff2DOf[shaders.source(text)].gradients(np.zeros(COUNT), *inputs(15)):
        assert not part.any()
