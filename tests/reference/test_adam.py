"""Adam against its closed form."""

from __future__ import annotations

import numpy as np

import tests.reference as ref


def test_adam_is_its_closed_form() -> None:
    """After t steps the moments are exponentially weighted means of the gradients, weights summing to one."""
    rng = np.random.default_rng(25)
    gradients, start = rng.normal(size=(7, 4)), rng.normal(size=4)
    parameter, first, second = start, np.zeros(4), np.zeros(4)
    expected = start.copy()
    for step in range(1, 8):
        parameter, first, second = ref.adam_step(
            parameter, gradients[step - 1], first, second, step, lr=0.02, beta1=0.8, beta2=0.95, eps=1e-3
        )
        mean = np.average(gradients[:step], axis=0, weights=0.8 ** np.arange(step)[::-1])
        square = np.average(gradients[:step] ** 2, axis=0, weights=0.95 ** np.arange(step)[::-1])
        expected -= 0.02 * mean / (np.sqrt(square) + 1e-3)
        np.testing.assert_allclose(parameter, expected, rtol=1e-12)


def test_adam_first_step_is_the_rate() -> None:
    gradient = np.array([3.0, -1e-6, 40.0])
    parameter, _, _ = ref.adam_step(np.zeros(3), gradient, np.zeros(3), np.zeros(3), 1, lr=0.1)
    np.testing.assert_allclose(parameter, -0.1 * np.sign(gradient), rtol=1e-8)
