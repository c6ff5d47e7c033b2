"""slang/splat/hash_field.slang against float64: what it says, and the gradient of each weight, entry, place and direction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from splat_py import shaders
from tests.shaders.test_hash_grid import COUNT, GRID, away_from_faces, tensors
from tests.volume.hash_reference import f64

MODULE = shaders.load(Path(__file__).with_name("hash_grid.slang"))
RNG = np.random.default_rng(63)
PLACES = f64(away_from_faces(100)).requires_grad_()
DIRECTIONS = f64(RNG.normal(size=(100, 3)))
DIRECTIONS = (DIRECTIONS / DIRECTIONS.norm(dim=1, keepdim=True)).requires_grad_()
RAYS = PLACES.detach().numpy(), DIRECTIONS.detach().numpy()


def expected() -> torch.Tensor:
    density, color = GRID.query(PLACES, DIRECTIONS)
    return torch.cat([density[:, None], color - 0.5], 1)


def test_query() -> None:
    found = MODULE.query(*tensors(), COUNT, *RAYS)
    np.testing.assert_allclose(found, expected().detach(), rtol=1e-4, atol=1e-5)


def test_gradients() -> None:
    v = RNG.normal(size=(100, 4))
    table, weights, sums = tensors()
    found = MODULE.addQuery(table, weights, sums, COUNT, *RAYS, v)
    wanted = torch.autograd.grad(expected(), (GRID.table, GRID.weights, PLACES, DIRECTIONS), f64(v))
    both = np.split(sums.to_numpy(), [2 * COUNT])
    actual = both[0].reshape(COUNT, 2), both[1], found["place"], found["direction"]
    for name, one, other in zip(("table", "weights", "place", "direction"), actual, wanted, strict=True):
        assert (other != 0).double().mean() > 0.8, name
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()), err_msg=name)


def test_the_reference_by_finite_differences() -> None:
    """Along a random direction of everything at once."""
    v = f64(RNG.normal(size=(100, 4)))
    leaves = GRID.table, GRID.weights, PLACES, DIRECTIONS
    steps = [f64(RNG.normal(size=leaf.shape)) * 1e-6 for leaf in leaves]
    gradients = torch.autograd.grad((v * expected()).sum(), leaves)
    ends = []
    with torch.no_grad():
        for sign in (1, -2):
            for leaf, step in zip(leaves, steps, strict=True):
                leaf += sign * step
            ends.append(float((v * expected()).sum()))
        for leaf, step in zip(leaves, steps, strict=True):
            leaf += step
    slope = sum(float((g * s).sum()) for g, s in zip(gradients, steps, strict=True))
    assert abs((ends[0] - ends[1]) / 2 - slope) < 1e-4 * abs(slope)
