"""slang/splat/constructed_scalar.slang: the compiler's derivative of the scalar is the closed form of the replay."""

from __future__ import annotations

import numpy as np

from splat_py import shaders
from splat_py.shaders import constructed_scalar as shader
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 200
RNG = np.random.default_rng(44)
DENSITY = RNG.uniform(0, 20, COUNT) * (RNG.uniform(size=COUNT) < 0.9)
COLOR = RNG.uniform(0, 1, (COUNT, 3))
STEP = RNG.uniform(0.01, 0.3, COUNT)
DISTANCE = RNG.uniform(0, 4, COUNT)
STATE = {
    "T": RNG.uniform(0, 1, COUNT),
    "R": RNG.normal(size=COUNT),
    "vColor": RNG.normal(size=(COUNT, 3)),
    "vDepth": RNG.normal(size=COUNT),
}
ARGUMENTS = [{"density": DENSITY, "color": COLOR}, STEP, DISTANCE, STATE]


def remaining(density: Array, color: Array, step: Array, t: Array) -> Array:
    """R_i as a function of the sample alone: what it emits and what it lets through of a fixed rest."""
    g = (STATE["vColor"] * color).sum(-1) + STATE["vDepth"] * t
    own = STATE["T"] * (1 - np.exp(-density * step)) * g
    alone = STATE["T"] * (1 - np.exp(-DENSITY * STEP)) * ((STATE["vColor"] * COLOR).sum(-1) + STATE["vDepth"] * DISTANCE)
    return own + (STATE["R"] - alone) * np.exp(DENSITY * STEP - density * step)


def expected() -> dict[str, Array]:
    parts = pullback(remaining, np.ones(COUNT), DENSITY, COLOR, STEP, DISTANCE)
    return dict(zip(("density", "color", "step", "t"), parts, strict=True))


def test_value_is_what_remains() -> None:
    """Whatever the sample: its terms are built for their derivatives."""
    assert_value(shader.constructedScalar(*ARGUMENTS), STATE["R"], rtol=1e-5, atol=2e-6)


def test_automatic_derivative() -> None:
    """Of every argument, against float64."""
    want = expected()
    medium = {"density": want["density"], "color": want["color"]}
    assert_gradients(shader.constructedScalar, np.ones(COUNT), ARGUMENTS, [medium, want["step"], want["t"], None], atol=1e-5)


def test_closed_form_is_the_automatic_derivative() -> None:
    """Sample by sample, and both are the contract's: ∂/∂c = v w, ∂/∂σ = δ (T g - R)."""
    closed = shader.constructedScalar_bwd(*ARGUMENTS)
    medium, step, t, state = shaders.gradients(shader.constructedScalar, np.ones(COUNT), *ARGUMENTS)
    assert state is None or not any(np.any(value) for value in state.values() if value is not None)
    for name, automatic in (("density", medium["density"]), ("color", medium["color"]), ("step", step), ("t", t)):
        np.testing.assert_allclose(closed[name], automatic, rtol=1e-4, atol=1e-5, err_msg=name)
        assert np.count_nonzero(automatic) > COUNT / 2
    for name, want in expected().items():
        np.testing.assert_allclose(closed[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
    w = STATE["T"] * (1 - np.exp(-DENSITY * STEP))
    g = (STATE["vColor"] * COLOR).sum(1) + STATE["vDepth"] * DISTANCE
    np.testing.assert_allclose(closed["color"], STATE["vColor"] * w[:, None], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(closed["density"], STEP * (STATE["T"] * g - STATE["R"]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(closed["T"], STATE["T"] - w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(closed["R"], STATE["R"] - w * g, rtol=1e-4, atol=1e-5)


def test_behind_something_opaque() -> None:
    """Where nothing comes through in float32 both forms stay finite and equal."""
    arguments = [
        {"density": 1e6, "color": [0.2, 0.5, 0.9]},
        0.1,
        1.0,
        {"T": 0.5, "R": 0.3, "vColor": [1.0, 2, 3], "vDepth": 1.0},
    ]
    closed = shader.constructedScalar_bwd(*arguments)
    medium, step, t, _ = shaders.gradients(shader.constructedScalar, 1.0, *arguments)
    np.testing.assert_allclose(medium["density"], 0.1 * (0.5 * 4.9 * 0 - (0.3 - 0.5 * 4.9)), rtol=1e-5)
    for name, automatic in (("density", medium["density"]), ("color", medium["color"]), ("step", step), ("t", t)):
        np.testing.assert_allclose(closed[name], automatic, rtol=1e-5, err_msg=name)
