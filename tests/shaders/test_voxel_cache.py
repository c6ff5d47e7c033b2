"""slang/splat/voxel_cache.slang: whatever way a ray takes, the cache looks up what is there and hands in what it owes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import slangpy as spy

import tests.reference as ref
from splat_py import shaders
from splat_py.device import get_device
from splat_py.shaders import voxel_cache as shader
from tests.shaders.test_volume import weights

MODULE = shaders.load(Path(__file__).with_name("voxel_grid.slang"))
SIZE = (5, 6, 4)
K = 4


def test_parity_fraction() -> None:
    """From the even corner to the odd one, in each axis."""
    rng = np.random.default_rng(44)
    base, fraction = rng.integers(-1, 9, (50, 3)), rng.uniform(size=(50, 3))
    expected = np.where(base % 2 == 0, fraction, 1 - fraction)
    np.testing.assert_allclose(shader.parityFraction({"base": base, "fraction": fraction}), expected, atol=1e-6)


@pytest.mark.parametrize("stride", [0.1, 0.5, 1.0, 3.0])
def test_walks(stride: float) -> None:
    """In all directions, across the grid and beyond its faces, with steps from a tenth of a voxel to three."""
    rng = np.random.default_rng(45)
    walks, count = 24, 9
    rows = rng.normal(size=(np.prod(SIZE), 1 + 3 * K))
    strides = rng.normal(size=(walks, 3))
    strides *= stride / np.linalg.norm(strides, axis=1, keepdims=True)
    strides[:3] = stride * np.eye(3)
    start = np.array(SIZE) / 2 - strides * count / 2 + rng.uniform(-1, 1, (walks, 3))
    directions = strides / np.linalg.norm(strides, axis=1, keepdims=True)
    v = rng.normal(size=(walks, 4))
    device = get_device().handle
    gradients = spy.Tensor.from_numpy(device, np.zeros(rows.size, np.float32))
    tensor = spy.Tensor.from_numpy(device, rows.astype(np.float32))
    start, strides = (a.astype(np.float32).astype(float) for a in (start, strides))
    actual = MODULE.walk(tensor, gradients, SIZE, start, strides, count, directions, v)

    points = start[:, None] + strides[:, None] * np.arange(count)[:, None]
    base = np.floor(points - 0.5).astype(int)
    shares = weights((points - 0.5 - base).reshape(-1, 3)).reshape(walks, count, 8)
    corners = np.array([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)])
    voxels = np.clip(base[:, :, None] + corners, 0, np.array(SIZE) - 1)
    index = np.ravel_multi_index(tuple(np.moveaxis(voxels, -1, 0)), SIZE)
    basis = ref.sh_basis(directions, 1)
    sh = rows[:, 1:].reshape(-1, K, 3)
    seen = np.concatenate([rows[index][..., :1], np.einsum("wk,wnckr->wncr", basis, sh[index])], axis=-1)
    np.testing.assert_allclose(actual, np.einsum("wnc,wncr->wr", shares, seen), rtol=1e-4, atol=2e-4)

    v_rows = np.concatenate([v[:, :1], (basis[:, :, None] * v[:, None, 1:]).reshape(walks, -1)], axis=1)
    expected = np.zeros_like(rows)
    np.add.at(expected, index, shares[..., None] * v_rows[:, None, None])
    np.testing.assert_allclose(gradients.to_numpy().reshape(rows.shape), expected, rtol=1e-4, atol=2e-4)
    assert np.count_nonzero(expected) > expected.size / 4


def test_an_empty_cache_owes_nothing() -> None:
    cache = shader.emptyCache()
    assert not cache["values"].any()
    device = get_device().handle
    gradients = spy.Tensor.from_numpy(device, np.zeros(13 * 8, np.float32))
    rows = spy.Tensor.from_numpy(device, np.ones((8, 13), np.float32))
    MODULE.walk(rows, gradients, (2, 2, 2), np.ones((4, 3)), np.ones((4, 3)), 0, [0, 0, 1], np.ones((4, 4)))
    assert not gradients.to_numpy().any()
