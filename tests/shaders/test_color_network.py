"""slang/splat/color_network.slang."""

from __future__ import annotations

import numpy as np

import tests.reference as ref
from splat_py.shaders import color
from splat_py.splats.colors import network_weights
from tests.shaders.oracle import Array

COUNT, VECTORS, HIDDEN = 40, 2, 4
W = network_weights(3 * VECTORS, HIDDEN)
RNG = np.random.default_rng(43)
DIRECTIONS = RNG.normal(size=(COUNT, 3))
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)


def colors_of(directions: Array, features: Array, weights: Array) -> Array:
    x = np.concatenate([features.reshape(COUNT, -1), ref.sh_basis(directions, 2)], -1)
    rows = weights[:-3].reshape(HIDDEN, -1)
    hidden = np.maximum(x @ rows[:, :-4].T + rows[:, -4], 0)
    return 1 / (1 + np.exp(-(hidden @ rows[:, -3:] + weights[-3:])))


def test_values_and_every_gradient() -> None:
    """By finite differences of float64; the weights' sum over all directions."""
    features, weights = RNG.normal(size=(COUNT, VECTORS, 3)), 0.7 * RNG.normal(size=W)
    inputs = [a.astype(np.float32).astype(float) for a in (DIRECTIONS, features, weights)]
    v = RNG.normal(size=(COUNT, 3))
    shaded = color.colorOf[VECTORS, W, "ColorNetwork"]
    np.testing.assert_allclose(shaded(*inputs), colors_of(*inputs), rtol=1e-5, atol=1e-5)
    found = shaded.gradients(v, *inputs)
    for position, array in enumerate(inputs):
        each = position < 2
        for place in np.ndindex(array.shape[1:] if each else array.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [a.copy() for a in inputs]
                moved[position][(slice(None), *place) if each else place] += step
                ends.append((v * colors_of(*moved)).sum(1))
            wanted = (ends[0] - ends[1]) / 2e-6
            actual = found[position][(slice(None), *place) if each else place]
            assert wanted.any()
            np.testing.assert_allclose(actual, wanted if each else wanted.sum(), rtol=1e-3, atol=1e-4, err_msg=str(place))
