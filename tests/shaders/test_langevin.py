"""slang/splat/langevin.slang."""

from __future__ import annotations

import numpy as np

from splat_py.shaders import langevin as shader
from tests.reference.mcmc import Rotation, sigmoid
from tests.shaders.oracle import assert_gradients, assert_value

RNG = np.random.default_rng(6)
COUNT = 60
LOG_SCALES, LOGITS = RNG.uniform(-3, 0.5, (COUNT, 3)), RNG.uniform(-7, 4, COUNT)


def test_mean_noise() -> None:
    quats, normals = RNG.normal(size=(COUNT, 4)), RNG.normal(size=(COUNT, 3))
    rotations = Rotation.from_quat(quats, scalar_first=True)
    faint = sigmoid(-100 * (sigmoid(LOGITS) - 0.005))[:, None]
    expected = rotations.apply(np.exp(2 * LOG_SCALES) * rotations.inv().apply(normals)) * faint
    assert_value(shader.meanNoise(quats, LOG_SCALES, LOGITS, normals), expected, rtol=3e-5)


def test_size_prior() -> None:
    weights = np.array([0.7, 0.2])
    o, s, v = sigmoid(LOGITS), np.exp(LOG_SCALES), RNG.normal(size=COUNT)
    assert_value(shader.sizePrior(LOG_SCALES, LOGITS, weights), 0.7 * o + 0.2 * s.sum(axis=1))
    gradients = [v[:, None] * 0.2 * s, v * 0.7 * o * (1 - o), None]
    assert_gradients(shader.sizePrior, v, [LOG_SCALES, LOGITS, weights], gradients)
