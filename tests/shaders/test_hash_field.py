"""slang/splat/hash_field.slang against float64: what it says, and the gradient of each weight, entry, place and direction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from splat_py import shaders
from tests.shaders.oracle import Array
from tests.shaders.test_hash_grid import COUNT, GRID, away_from_faces, tensors
from tests.volume.hash_reference import HashGrid

MODULE = shaders.load(Path(__file__).with_name("hash_grid.slang"))
RNG = np.random.default_rng(63)
PLACES = away_from_faces(100)
DIRECTIONS = RNG.normal(size=(100, 3))
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)
V = RNG.normal(size=(100, 4))


def losses(grid: HashGrid, places: Array, directions: Array) -> Array:
    density, color = grid.query(places, directions)
    return V[:, 0] * density + (V[:, 1:] * color).sum(1)


def test_query() -> None:
    density, color = GRID.query(PLACES, DIRECTIONS)
    found = MODULE.query(*tensors(GRID), COUNT, PLACES, DIRECTIONS)
    np.testing.assert_allclose(found[:, 0], density, rtol=1e-4)
    np.testing.assert_allclose(found[:, 1:] + 0.5, color, rtol=1e-4, atol=1e-5)


def test_gradients() -> None:
    """By finite differences of float64: every weight, and every entry of the table."""
    table, weights, sums = tensors(GRID)
    found = MODULE.addQuery(table, weights, sums, COUNT, PLACES, DIRECTIONS, V)
    gradient = sums.to_numpy()
    h = 1e-6
    for name, first, values in (("table", 0, GRID.table), ("weights", 2 * COUNT, GRID.weights)):
        wanted = np.zeros(values.size)
        for i in range(values.size):
            step = np.zeros(values.shape)
            step.flat[i] = h
            ends = [losses(replace(GRID, **{name: values + sign * step}), PLACES, DIRECTIONS).sum() for sign in (1, -1)]
            wanted[i] = (ends[0] - ends[1]) / (2 * h)
        assert (wanted != 0).mean() > 0.8, name
        actual = gradient[first : first + values.size]
        np.testing.assert_allclose(actual, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max(), err_msg=name)
    for axis, e in enumerate(np.eye(3) * h):
        for name, step in (("place", (e, 0)), ("direction", (0, e))):
            wanted = losses(GRID, PLACES + step[0], DIRECTIONS + step[1]) - losses(GRID, PLACES - step[0], DIRECTIONS - step[1])
            wanted /= 2 * h
            atol = 1e-4 * np.abs(wanted).max()
            np.testing.assert_allclose(found[name][:, axis], wanted, rtol=2e-3, atol=atol, err_msg=f"{name} {axis}")
