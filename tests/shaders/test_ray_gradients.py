"""slang/splat/ray_gradients.slang, over a grid in a tensor; tests/volume/test_rays.py tests it on the renderer's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import slangpy as spy

from splat_py import shaders
from splat_py.gpu.device import get_device
from tests.shaders.test_path_replay import FIELD, SIZE, K
from tests.shaders.test_segment import COUNT, DIRECTIONS, ORIGINS
from tests.volume import reference as ref

MODULE = shaders.load(Path(__file__).with_name("voxel_grid.slang"))
STEPS_PER_UNIT = 12.0
RNG = np.random.default_rng(48)


def test_unit_directions() -> None:
    """Against float64's differences. The reference normalises directions: gradients along them are left out."""
    v = RNG.normal(size=(COUNT, 3)), RNG.normal(size=COUNT), RNG.normal(size=COUNT)
    device = get_device().handle
    rows = np.concatenate([FIELD.density.reshape(-1, 1), FIELD.sh.reshape(-1, 3 * K)], axis=1).astype(np.float32)
    grid = spy.Tensor.from_numpy(device, rows), spy.Tensor.from_numpy(device, np.zeros(rows.size, np.float32)), SIZE
    sampling = STEPS_PER_UNIT, np.arange(COUNT), 5
    result = MODULE.marchGrid(*grid, ORIGINS, DIRECTIONS, FIELD.background, *sampling)
    found = MODULE.replayGrid(*grid, ORIGINS, DIRECTIONS, *sampling, result, *v)

    def losses(origins: np.ndarray, directions: np.ndarray) -> np.ndarray:
        results = ref.march(FIELD, origins, directions, STEPS_PER_UNIT, 5)
        return np.sum([(a * b).reshape(COUNT, -1).sum(1) for a, b in zip(results, v, strict=True)], axis=0)

    for which, name in enumerate(("origin", "direction")):
        wanted = np.zeros((COUNT, 3))
        for axis in range(3):
            step = np.zeros((2, COUNT, 3))
            step[which, :, axis] = 1e-7
            rays = np.array([ORIGINS, DIRECTIONS])
            wanted[:, axis] = (losses(*(rays + step)) - losses(*(rays - step))) / 2e-7
        actual = found[name]
        if name == "direction":
            actual = actual - DIRECTIONS * (actual * DIRECTIONS).sum(1, keepdims=True)
        assert (np.abs(wanted) > 1e-3).any(0).all()
        atol = 3e-4 * np.maximum(np.abs(wanted).max(1, keepdims=True), 0.1)
        assert (np.abs(actual - wanted) <= atol).all(), (name, np.abs(actual - wanted).max())
