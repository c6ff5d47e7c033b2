"""Exposures of photographs: exposed renders, their gradients, and the learning step."""

import numpy as np

from tests.reference.adam import adam_step
from tests.reference.arrays import Array

NEUTRAL = np.eye(3, 4).ravel()


def expose(exposure: Array, colors: Array) -> Array:
    """Expose colours: [12], [..., 3] → [..., 3]."""
    affine = exposure.reshape(3, 4)
    return colors @ affine[:, :3].T + affine[:, 3]


def expose_backward(exposure: Array, colors: Array, v_shown: Array) -> tuple[Array, Array]:
    """Gradients of the exposure and the colours."""
    with_one = np.concatenate([colors, np.ones((*colors.shape[:-1], 1))], -1)
    return (v_shown.reshape(-1, 3).T @ with_one.reshape(-1, 4)).ravel(), v_shown @ exposure.reshape(3, 4)[:, :3]


def updated(
    state: dict[str, Array], photograph: int, gradient: Array, epoch: int, *, lr: float, weight: float
) -> dict[str, Array]:
    """The state [P, 12] with moments, after one photograph's step."""
    values, first, second = (state[f"exposures{suffix}"].copy() for suffix in ("", ".m", ".v"))
    gradient = gradient + weight * (values[photograph] - NEUTRAL)
    before = values[photograph], gradient, first[photograph], second[photograph]
    values[photograph], first[photograph], second[photograph] = adam_step(*before, epoch + 1, lr=lr, beta1=0.5, beta2=0.9)
    return {"exposures": values - values.mean(0) + NEUTRAL, "exposures.m": first, "exposures.v": second}
