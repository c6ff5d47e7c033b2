"""slang/splat/hash_grid.slang against float64: dense and hashed levels, and the gradient of every entry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import slangpy as spy
import torch

from splat_py import shaders
from splat_py.gpu.device import get_device
from tests.shaders.oracle import Array
from tests.volume.hash_reference import HashGrid, entries_of, f64, weight_count

MODULE = shaders.load(Path(__file__).with_name("hash_grid.slang"))
CELLS, SIZE, LEVELS = [2, 6, 10], 64, 3
COUNT = sum(entries_of(CELLS, SIZE))
RNG = np.random.default_rng(62)
GRID = HashGrid(
    f64(RNG.normal(size=(COUNT, 2)).astype(np.float32)).requires_grad_(),
    f64((RNG.normal(size=weight_count(LEVELS)) * 0.5).astype(np.float32)).requires_grad_(),
    CELLS,
    SIZE,
    2.0,
)


def away_from_faces(count: int) -> Array:
    """Places that float32 puts into the same cells."""
    places = RNG.uniform(size=(4 * count, 3)).astype(np.float32).astype(float)
    kept = (np.abs(places[:, :, None] * CELLS - np.round(places[:, :, None] * CELLS)) > 1e-4).all((1, 2))
    return places[kept][:count]


def tensors() -> tuple[spy.Tensor, ...]:
    """Table, weights, and gradients of both, all 0."""
    arrays = GRID.table.detach(), GRID.weights.detach(), np.zeros(GRID.table.numel() + GRID.weights.numel())
    return tuple(spy.Tensor.from_numpy(get_device().handle, np.asarray(a, np.float32)) for a in arrays)


def test_features() -> None:
    places = np.concatenate([away_from_faces(60), np.array(list(np.ndindex(2, 2, 2)), float)])
    found = MODULE.features(*tensors(), COUNT, places)
    np.testing.assert_allclose(found, GRID.features(f64(places)).detach(), rtol=1e-4, atol=2e-5)


def test_gradients() -> None:
    """Of each entry, and of the place."""
    places, v = f64(away_from_faces(200)).requires_grad_(), RNG.normal(size=(200, 2 * LEVELS))
    table, weights, sums = tensors()
    v_places = MODULE.addFeatures(table, weights, sums, COUNT, places.detach().numpy(), v)
    v_table, wanted = torch.autograd.grad(GRID.features(places), (GRID.table, places), f64(v))
    found = sums.to_numpy()[: 2 * COUNT].reshape(COUNT, 2)
    np.testing.assert_allclose(found, v_table, rtol=1e-4, atol=1e-4)
    assert (found != 0).mean() > 0.9
    np.testing.assert_allclose(v_places, wanted, rtol=1e-3, atol=1e-3)


def test_vertices_that_do_not_fit_share_entries() -> None:
    """With the primes of the paper: (x ⊕ 2654435761 y ⊕ 805459861 z) modulo the size."""
    level = shaders.hash_grid.hashLevel(10, 64, 27)
    assert level == {"cells": 10, "first": 27, "entries": 64, "isHashed": True}
    vertices = np.array(list(np.ndindex(11, 11, 11)))
    found = shaders.hash_grid.hashEntry(level, vertices.astype(np.uint32)) - 27
    wanted = [(x ^ (y * 2654435761) ^ (z * 805459861)) % 64 for x, y, z in vertices.tolist()]
    np.testing.assert_array_equal(found, wanted)
    assert not shaders.hash_grid.hashLevel(3, 64, 0)["isHashed"]
