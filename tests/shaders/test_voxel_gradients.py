"""slang/splat/voxel_gradients.slang: whatever way a ray takes, it samples what is there and adds all of its gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import slangpy as spy

import tests.reference as ref
from splat_py import shaders
from splat_py.gpu.device import get_device
from splat_py.shaders import voxel_gradients as shader
from tests.shaders.test_volume import weights

MODULE = shaders.load(Path(__file__).with_name("voxel_grid.slang"))
SIZE = (5, 6, 4)
K = 4


def test_corners() -> None:
    """In either order, voxels and weights are those of the cell; by parity, slot i holds a voxel of i's parity."""
    rng = np.random.default_rng(44)
    base, fraction = rng.integers(0, np.array(SIZE) - 1, (50, 3)), rng.uniform(size=(50, 3))
    offsets = np.array([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)])
    plain, by_parity = (np.array(MODULE.cornersAround(SIZE, base, fraction, order)) for order in (False, True))
    voxels = base[:, None] + offsets
    np.testing.assert_array_equal(plain[..., 0], np.ravel_multi_index(tuple(np.moveaxis(voxels, -1, 0)), SIZE))
    np.testing.assert_allclose(plain[..., 1], weights(fraction), atol=1e-6)
    found = np.stack(np.unravel_index(by_parity[..., 0].astype(int), SIZE), axis=-1)
    np.testing.assert_array_equal(found % 2, np.broadcast_to(offsets, found.shape))
    order = np.argsort(by_parity[..., 0], axis=1), np.argsort(plain[..., 0], axis=1)
    np.testing.assert_allclose(
        np.take_along_axis(by_parity, order[0][..., None], 1), np.take_along_axis(plain, order[1][..., None], 1), atol=1e-6
    )


@pytest.mark.parametrize("stride", [0.1, 0.5, 1.0, 3.0])
def test_rays_in_all_directions(stride: float) -> None:
    """In all directions, across the grid and beyond its faces, with steps from a tenth of a voxel to three."""
    rng = np.random.default_rng(45)
    rays, count = 24, 9
    rows = rng.normal(size=(np.prod(SIZE), 1 + 3 * K))
    strides = rng.normal(size=(rays, 3))
    strides *= stride / np.linalg.norm(strides, axis=1, keepdims=True)
    strides[:3] = stride * np.eye(3)
    start = np.array(SIZE) / 2 - strides * count / 2 + rng.uniform(-1, 1, (rays, 3))
    directions = strides / np.linalg.norm(strides, axis=1, keepdims=True)
    v = rng.normal(size=(rays, 4))
    device = get_device().handle
    gradients = spy.Tensor.from_numpy(device, np.zeros(rows.size, np.float32))
    tensor = spy.Tensor.from_numpy(device, rows.astype(np.float32))
    start, strides = (a.astype(np.float32).astype(float) for a in (start, strides))
    actual = MODULE.sumAlong(tensor, gradients, SIZE, start, strides, count, directions, v)

    points = start[:, None] + strides[:, None] * np.arange(count)[:, None]
    base = np.floor(points - 0.5).astype(int)
    shares = weights((points - 0.5 - base).reshape(-1, 3)).reshape(rays, count, 8)
    corners = np.array([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)])
    voxels = np.clip(base[:, :, None] + corners, 0, np.array(SIZE) - 1)
    index = np.ravel_multi_index(tuple(np.moveaxis(voxels, -1, 0)), SIZE)
    basis = ref.sh_basis(directions, 1)
    sh = rows[:, 1:].reshape(-1, K, 3)
    raw = np.concatenate([rows[index][..., :1], np.einsum("wk,wnckr->wncr", basis, sh[index])], axis=-1)
    np.testing.assert_allclose(actual, np.einsum("wnc,wncr->wr", shares, raw), rtol=1e-4, atol=2e-4)

    v_rows = np.concatenate([v[:, :1], (basis[:, :, None] * v[:, None, 1:]).reshape(rays, -1)], axis=1)
    expected = np.zeros_like(rows)
    np.add.at(expected, index, shares[..., None] * v_rows[:, None, None])
    np.testing.assert_allclose(gradients.to_numpy().reshape(rows.shape), expected, rtol=1e-4, atol=2e-4)
    assert np.count_nonzero(expected) > expected.size / 4


def test_nothing_is_pending_at_first() -> None:
    assert not shader.noGradients()["sums"].any()
    device = get_device().handle
    gradients = spy.Tensor.from_numpy(device, np.zeros(13 * 8, np.float32))
    rows = spy.Tensor.from_numpy(device, np.ones((8, 13), np.float32))
    MODULE.sumAlong(rows, gradients, (2, 2, 2), np.ones((4, 3)), np.ones((4, 3)), 0, [0, 0, 1], np.ones((4, 4)))
    assert not gradients.to_numpy().any()
