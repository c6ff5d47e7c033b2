"""slang/splat/hash_grid.slang against float64: dense and hashed levels, and the gradient of every entry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import slangpy as spy

from splat_py import shaders
from splat_py.gpu.device import get_device
from tests.shaders.oracle import Array
from tests.volume.hash_reference import HashGrid, entries_of, weight_count

MODULE = shaders.load(Path(__file__).with_name("hash_grid.slang"))
CELLS, SIZE, LEVELS = [2, 6, 10], 64, 3
COUNT = sum(entries_of(CELLS, SIZE))
RNG = np.random.default_rng(62)
GRID = HashGrid(
    RNG.normal(size=(COUNT, 2)).astype(np.float32).astype(float),
    (RNG.normal(size=weight_count(LEVELS)) * 0.5).astype(np.float32).astype(float),
    CELLS,
    SIZE,
    2.0,
)


def away_from_faces(count: int) -> Array:
    """Places, with the cube's corners among them, that are no closer to a cell's face than differences reach."""
    places = RNG.uniform(size=(4 * count, 3)).astype(np.float32).astype(float)
    kept = (np.abs(places[:, :, None] * CELLS - np.round(places[:, :, None] * CELLS)) > 1e-4).all((1, 2))
    return places[kept][:count]


def tensors(grid: HashGrid) -> tuple[spy.Tensor, ...]:
    """Table, weights, and gradients of both, all 0."""
    arrays = grid.table, grid.weights, np.zeros(grid.table.size + grid.weights.size)
    return tuple(spy.Tensor.from_numpy(get_device().handle, a.astype(np.float32)) for a in arrays)


def test_features() -> None:
    places = np.concatenate([away_from_faces(60), np.array(list(np.ndindex(2, 2, 2)), float)])
    found = MODULE.features(*tensors(GRID), COUNT, places)
    np.testing.assert_allclose(found, GRID.features(places), rtol=1e-4, atol=2e-5)


def test_gradients() -> None:
    """Features are linear in the table: each entry's gradient is a difference, exactly."""
    places, v = away_from_faces(200), RNG.normal(size=(200, 2 * LEVELS))
    table, weights, sums = tensors(GRID)
    v_places = MODULE.addFeatures(table, weights, sums, COUNT, places, v)
    found = sums.to_numpy()[: 2 * COUNT].reshape(COUNT, 2)
    for place in np.ndindex(COUNT, 2):
        one = np.zeros((COUNT, 2))
        one[place] = 1
        wanted = (v * HashGrid(one, GRID.weights, CELLS, SIZE, 2).features(places)).sum()
        np.testing.assert_allclose(found[place], wanted, rtol=1e-4, atol=1e-4, err_msg=str(place))
    assert (found != 0).mean() > 0.9
    for axis, e in enumerate(np.eye(3) * 1e-6):
        wanted = (v * (GRID.features(places + e) - GRID.features(places - e))).sum(1) / 2e-6
        np.testing.assert_allclose(v_places[:, axis], wanted, rtol=1e-3, atol=1e-3)


def test_vertices_that_do_not_fit_share_entries() -> None:
    """With the primes of the paper: (x ⊕ 2654435761 y ⊕ 805459861 z) modulo the size."""
    level = shaders.hash_grid.hashLevel(10, 64, 27)
    assert level == {"cells": 10, "first": 27, "entries": 64, "isHashed": True}
    vertices = np.array(list(np.ndindex(11, 11, 11)))
    found = shaders.hash_grid.hashEntry(level, vertices.astype(np.uint32)) - 27
    wanted = [(x ^ (y * 2654435761) ^ (z * 805459861)) % 64 for x, y, z in vertices.tolist()]
    np.testing.assert_array_equal(found, wanted)
    assert not shaders.hash_grid.hashLevel(3, 64, 0)["isHashed"]
