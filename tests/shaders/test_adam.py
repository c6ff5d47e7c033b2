"""slang/splat/adam.slang."""

from __future__ import annotations

import numpy as np

import tests.reference as ref
from splat_py.shaders import adam as shader
from tests.shaders.oracle import assert_value


def test_adam_steps() -> None:
    """Many parameters over many steps, with gradients from tiny to huge and none at all."""
    rng = np.random.default_rng(4)
    count, rate, betas, epsilon = 50, 0.01, (0.9, 0.999), 1e-15
    parameter, first, second = rng.normal(size=count), np.zeros(count), np.zeros(count)
    magnitude = 10.0 ** rng.uniform(-8, 4, count)
    magnitude[0] = 0
    state = {"parameter": parameter, "m": first, "v": second}
    for step in range(1, 31):
        gradient = magnitude * rng.normal(size=count)
        settings = {
            "rate": rate,
            "beta1": betas[0],
            "beta2": betas[1],
            "epsilon": epsilon,
            "correction1": 1 - betas[0] ** step,
            "correction2": 1 - betas[1] ** step,
        }
        state = shader.adamStep(state, gradient, settings)
        parameter, first, second = ref.adam_step(
            parameter, gradient, first, second, step, lr=rate, beta1=betas[0], beta2=betas[1], eps=epsilon
        )
        assert_value(state["parameter"], parameter, rtol=1e-5, atol=3e-6)
        assert_value(state["m"], first, rtol=1e-5, atol=1e-6 * magnitude.max())
        assert_value(state["v"], second, rtol=2e-5, atol=0)
    assert state["parameter"][0] == np.float32(parameter[0])
