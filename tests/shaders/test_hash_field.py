"""slang/splat/hash_field.slang and mlp.slang against float64: dense and hashed levels, and every gradient."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import shaders
from tests.reference.arrays import leaf
from tests.shaders.kernels import tensor
from tests.shaders.oracle import Array, float32
from tests.volume.reference import HashGrid, entries_of, f64, weight_count

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
    """Places that float32 and float64 put into the same cells."""
    places = RNG.uniform(size=(4 * count, 3)).astype(np.float32).astype(float)
    kept = (np.abs(places[:, :, None] * CELLS - np.round(places[:, :, None] * CELLS)) > 1e-4).all((1, 2))
    return places[kept][:count]


def table() -> dict[str, Any]:
    """The shader's table, whose gradients are 0."""
    gradients = tensor(np.zeros(GRID.table.numel() + GRID.weights.numel()))
    return {
        "entries": tensor(GRID.table.detach()),
        "network": tensor(GRID.weights.detach()),
        "gradients": gradients,
        "count": COUNT,
    }


def test_features() -> None:
    places = np.concatenate([away_from_faces(60), np.array(list(np.ndindex(2, 2, 2)), float)])
    found = MODULE.features(table(), places)
    np.testing.assert_allclose(found, GRID.features(f64(places)).detach(), rtol=1e-4, atol=2e-5)


def test_vertices_that_do_not_fit_share_entries() -> None:
    """The hash has the paper's primes: (x ⊕ 2654435761 y ⊕ 805459861 z) modulo the size."""
    level = shaders.hash_field.hashLevel(10, 64, 27)
    assert level == {"cells": 10, "first": 27, "entries": 64, "isHashed": True}
    vertices = np.array(list(np.ndindex(11, 11, 11)))
    found = shaders.hash_field.hashEntry(level, vertices.astype(np.uint32)) - 27
    wanted = [(x ^ (y * 2654435761) ^ (z * 805459861)) % 64 for x, y, z in vertices.tolist()]
    np.testing.assert_array_equal(found, wanted)
    assert not shaders.hash_field.hashLevel(3, 64, 0)["isHashed"]


RAY_RNG = np.random.default_rng(63)
PLACES = f64(away_from_faces(100)).requires_grad_()
DIRECTIONS = f64(RAY_RNG.normal(size=(100, 3)))
DIRECTIONS = (DIRECTIONS / DIRECTIONS.norm(dim=1, keepdim=True)).requires_grad_()
DENSITY, COLOR = GRID.query(PLACES, DIRECTIONS)
EXPECTED = torch.cat([DENSITY[:, None], COLOR - 0.5], 1)
RAYS = PLACES.detach().numpy(), DIRECTIONS.detach().numpy()


def test_query() -> None:
    found = MODULE.query(table(), *RAYS)
    np.testing.assert_allclose(found, EXPECTED.detach(), rtol=1e-4, atol=1e-5)


def test_gradients() -> None:
    v = RAY_RNG.normal(size=(100, 4))
    given = table()
    found = MODULE.addQuery(given, *RAYS, v)
    wanted = torch.autograd.grad(EXPECTED, (GRID.table, GRID.weights, PLACES, DIRECTIONS), f64(v), retain_graph=True)
    both = np.split(given["gradients"].to_numpy(), [2 * COUNT])
    actual = both[0].reshape(COUNT, 2), both[1], found["place"], found["direction"]
    for name, one, other in zip(("table", "weights", "place", "direction"), actual, wanted, strict=True):
        assert (other != 0).double().mean() > 0.8, name
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()), err_msg=name)


def test_largest_density() -> None:
    """An exponent is at most 15."""
    found = shaders.hash_field.hashEmission(np.array([-2.0, 14, 16, 1000]), np.zeros(3), 0.5)
    np.testing.assert_allclose(found[:, 0], 0.5 * np.exp([-2, 14, 15, 15]), rtol=1e-5)


NETWORK = shaders.load(Path(__file__).with_name("mlp.slang"))
IN, OUT, INPUTS = 5, 3, 40


@pytest.mark.parametrize("units", [1, 7])
def test_values_and_gradients(units: int) -> None:
    rng = np.random.default_rng(61 + units)
    rows, x, v = (float32(rng.normal(size=size)) for size in ((units, IN + 1 + OUT), (INPUTS, IN), (INPUTS, 3)))
    network = {"rows": tensor(rows), "gradients": tensor(np.zeros(rows.size)), "units": units}
    leaves = leaf(rows), leaf(x)
    y = (leaves[1] @ leaves[0][:, :IN].T + leaves[0][:, IN]).relu() @ leaves[0][:, IN + 1 :]
    np.testing.assert_allclose(NETWORK.network(network, x), y.detach(), rtol=1e-5, atol=1e-5)
    v_x = NETWORK.gradient(network, x, v)
    squashed = torch.stack([y[:, 0].tanh(), y[:, 1].tanh(), y[:, 2].tanh() * y[:, 0]], 1)
    v_rows, wanted = torch.autograd.grad((torch.from_numpy(v) * squashed).sum(), leaves)
    np.testing.assert_allclose(v_x, wanted, rtol=1e-4, atol=1e-4)
    assert v_rows.all()
    np.testing.assert_allclose(network["gradients"].to_numpy().reshape(rows.shape), v_rows, rtol=1e-3, atol=1e-4)
