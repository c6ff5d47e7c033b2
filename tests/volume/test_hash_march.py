"""Hash grids through the volume kernels: against float64, every weight, entry and ray."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from splat_py.gpu.device import get_device
from splat_py.volume import HashRadianceField, marching, render
from splat_py.volume.hash_volume import HashShape
from tests.volume import hash_reference as ref
from tests.volume.reference import Array
from tests.volume.test_march import BOX, random_rays

BACKGROUND = np.array([0.25, 0.5, 0.125])
STEPS_PER_UNIT = 9
# Dense, as many entries as vertices nearly, and hashed.
SHAPE = HashShape((2, 5, 9), 256)


def random_grid(seed: int = 0, shape: HashShape = SHAPE) -> ref.HashGrid:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(shape.entries, 2))
    weights = rng.normal(size=shape.weights) * 0.3
    table, weights = (a.astype(np.float32).astype(float) for a in (table, weights))
    return ref.HashGrid(table, weights, list(shape.cells), shape.size, 1 / (BOX[1] - BOX[0]).max())


def field_of(grid: ref.HashGrid) -> HashRadianceField:
    table, weights = (torch.tensor(a, dtype=torch.float32) for a in (grid.table, grid.weights))
    return HashRadianceField(table, weights, HashShape(tuple(grid.cells), grid.size), BOX, BACKGROUND.astype(np.float32))


def march(grid: ref.HashGrid, origins: Array, directions: Array) -> Array:
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return ref.march(grid, BOX, BACKGROUND, origins, unit, STEPS_PER_UNIT)


def assert_like_reference(count: int, inside: bool = False) -> None:
    """Results, and gradients of each weight, of some of the entries, and of each ray, by float64's finite differences."""
    grid, rays = random_grid(), random_rays(count, inside)
    field = field_of(grid)
    leaves = [field.table, field.weights, *(torch.tensor(a, dtype=torch.float32) for a in rays)]
    for leaf in leaves:
        leaf.requires_grad_()
    results = render(field, None, *leaves[2:], steps_per_unit=STEPS_PER_UNIT, skip_empty=False)
    wanted = march(grid, *rays)
    found = torch.cat([results[0], results[1][:, None], results[2][:, None]], 1)
    np.testing.assert_allclose(found.detach(), wanted, rtol=1e-4, atol=2e-5)

    v = np.random.default_rng(1).normal(size=wanted.shape)
    gradients = [g.double().numpy() for g in torch.autograd.grad(found, leaves, torch.tensor(v, dtype=torch.float32))]
    rng = np.random.default_rng(2)
    for name, gradient in zip(("table", "weights"), gradients, strict=False):
        values = getattr(grid, name)
        places = rng.permutation(values.size)[:60]
        atol = 2e-4 * np.abs(gradient).max()
        assert (gradient.flat[places] != 0).mean() > 0.5
        for place in places:
            step = np.zeros(values.shape)
            step.flat[place] = 1e-6
            ends = [(v * march(replace(grid, **{name: values + sign * step}), *rays)).sum() for sign in (1, -1)]
            np.testing.assert_allclose(gradient.flat[place], (ends[0] - ends[1]) / 2e-6, rtol=2e-3, atol=atol, err_msg=name)
    for which, name in enumerate(("rays_o", "rays_d")):
        for axis in range(3):
            moved = np.zeros((2, count, 3))
            moved[which, :, axis] = 1e-7
            ends = [(v * march(grid, *(np.array(rays) + sign * moved))).sum(1) for sign in (1, -1)]
            numeric = (ends[0] - ends[1]) / 2e-7
            off = np.abs(gradients[2 + which][:, axis] - numeric)
            assert (off <= 1e-3 * np.abs(numeric) + 1e-3 * max(np.abs(numeric).max(), 0.1)).all(), (name, axis, off.max())


@pytest.mark.parametrize(("groups", "inside"), [(0, False), (2, False), (2, True)])
def test_like_float64(groups: int, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that add up atomically, as on a GPU, and in replicas."""
    if groups and not get_device().software:
        pytest.skip("gradients are added up without atomics only on CPU drivers")
    monkeypatch.setattr(marching, "_persistent_groups", lambda device: groups)
    assert_like_reference(40, inside)
