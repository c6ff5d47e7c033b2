"""One step of Adam (Kingma & Ba 2015, algorithm 1)."""

import numpy as np

from tests.reference.arrays import Array


def adam_step(
    parameter: Array,
    gradient: Array,
    first: Array,
    second: Array,
    step: int,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-15,
) -> tuple[Array, Array, Array]:
    """Return the new (parameter, first, second). `step` counts from 1; eps is added outside the root."""
    first = beta1 * first + (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * gradient**2
    unbiased_first = first / (1 - beta1**step)
    unbiased_second = second / (1 - beta2**step)
    return parameter - lr * unbiased_first / (np.sqrt(unbiased_second) + eps), first, second
