"""slang/splat/grid_field.slang; its gradients are those of test_path_replay.py and test_ray_gradients.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import slangpy as spy

import tests.reference as ref
from splat_py import shaders
from splat_py.gpu.device import get_device
from tests.shaders.test_path_replay import FIELD, SIZE, K
from tests.shaders.test_volume import weights

MODULE = shaders.load(Path(__file__).with_name("voxel_grid.slang"))
RNG = np.random.default_rng(50)


@pytest.mark.parametrize("replays", [False, True])
def test_query(replays: bool) -> None:
    """Everywhere in the box, in all directions: what eight voxels have between them."""
    device = get_device().handle
    rows = np.concatenate([FIELD.density.reshape(-1, 1), FIELD.sh.reshape(-1, 3 * K)], axis=1)
    grid = spy.Tensor.from_numpy(device, rows.astype(np.float32)), spy.Tensor.from_numpy(device, np.zeros(1, np.float32)), SIZE
    positions, directions = RNG.uniform(size=(80, 3)), RNG.normal(size=(80, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    actual = MODULE.queryGrid(*grid, positions, directions, replays)

    points = np.clip(positions * SIZE, 0.5, np.array(SIZE) - 0.5) - 0.5
    base = np.floor(points).astype(int)
    corners = np.array([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)])
    voxels = np.clip(base[:, None] + corners, 0, np.array(SIZE) - 1)
    found = rows[np.ravel_multi_index(tuple(np.moveaxis(voxels, -1, 0)), SIZE)]
    between = np.einsum("nc,ncr->nr", weights(points - base), found)
    basis = ref.sh_basis(directions, 1)
    wanted = np.concatenate([between[:, :1], np.einsum("nk,nkr->nr", basis, between[:, 1:].reshape(-1, K, 3))], axis=1)
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)
