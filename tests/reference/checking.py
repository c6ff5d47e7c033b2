"""Helpers of the reference's own tests: central differences, a camera and Gaussians."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.spatial.transform import Rotation

from tests.reference.arrays import Array

WIDTH, HEIGHT = 14, 11
CENTRED = (WIDTH / 2, HEIGHT / 2)
OFF_CENTRE = (4.2, 7.9)


def check_gradients(
    f: Callable[..., float],
    inputs: Sequence[Array],
    gradients: Sequence[Array],
    *,
    h: float = 1e-4,
    fourth_order: bool = True,
) -> None:
    """Compare each scalar of each gradient with the central difference of `f(*inputs)`.

    The default stencil is of fourth order; next to hard decisions, use the narrow one of second order.
    """
    stencil = [(1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12)] if fourth_order else [(1, 0.5), (-1, -0.5)]
    for position, (array, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        assert gradient.shape == array.shape
        expected = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            for offset, weight in stencil:
                moved = list(inputs)
                moved[position] = array.copy()
                moved[position][index] += offset * h
                expected[index] += weight * f(*moved) / h
        scale = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8 * scale, err_msg=f"input {position}")


def random_viewmat(rng: np.random.Generator) -> Array:
    """A world → camera matrix: any rotation, the origin about four in front of the camera."""
    viewmat = np.eye(4)
    viewmat[:3, :3] = Rotation.random(rng=rng).as_matrix()
    viewmat[:3, 3] = 0.3 * rng.normal(size=3) + [0, 0, 4]
    return viewmat


def intrinsics(centre: tuple[float, float]) -> Array:
    return np.array([[13.0, 0, centre[0]], [0, 12.0, centre[1]], [0, 0, 1]])


def to_world(points: Array, viewmat: Array) -> Array:
    return (points - viewmat[:3, 3]) @ viewmat[:3, :3]


def shapes(rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
    """quats (not normalised), anisotropic scales, opacities."""
    return (
        rng.normal(size=(count, 4)),
        np.exp(rng.uniform(np.log(0.03), np.log(0.8), size=(count, 3))),
        rng.uniform(0.2, 0.9, size=count),
    )
