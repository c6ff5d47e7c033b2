"""Hash grids through the volume kernels: against float64, every weight, entry and ray."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from splat_py.volume import HashRadianceField, render
from splat_py.volume.hash_volume import HashShape
from tests.volume import hash_reference as ref
from tests.volume.adding_up import Sums, add_up
from tests.volume.hash_reference import f64
from tests.volume.test_march import BOX, random_rays

BACKGROUND = np.array([0.25, 0.5, 0.125])
STEPS_PER_UNIT = 9
# Dense, and hashed; as many levels as those of a fit.
SHAPE = HashShape((2, 3, 4, 5, 6, 8, 10, 12), 256)


def random_grid(halves: bool = False) -> ref.HashGrid:
    rng = np.random.default_rng(0)
    table, weights = rng.normal(size=(SHAPE.entries, 2)), rng.normal(size=SHAPE.weights) * 0.3
    table = table.astype(np.float16 if halves else np.float32)
    leaves = (f64(a).requires_grad_() for a in (table, weights.astype(np.float32)))
    return ref.HashGrid(*leaves, list(SHAPE.cells), SHAPE.size, 1 / (BOX[1] - BOX[0]).max())


def field_of(grid: ref.HashGrid) -> HashRadianceField:
    table, weights = (a.detach().float().requires_grad_() for a in (grid.table, grid.weights))
    return HashRadianceField(table, weights, SHAPE, BOX, BACKGROUND.astype(np.float32))


def assert_like_reference(count: int, inside: bool = False, seed: int | None = None, halves: bool = False) -> None:
    """Results, and gradients of every weight and entry; with a seed samples jitter, and rays want a gradient."""
    grid, rays = random_grid(halves), random_rays(count, inside)
    field = field_of(grid)
    if halves:
        # That begins in the middle of a word.
        behind_one = torch.nn.functional.pad(field.table.detach().half().flatten(), (1, 0))[1:]
        field = replace(field, table=behind_one.reshape(field.table.shape).requires_grad_())
    singles, doubles = ([convert(a) for a in rays] for convert in (lambda a: torch.tensor(a, dtype=torch.float32), f64))
    leaves, wanted_leaves = [field.table, field.weights], [grid.table, grid.weights]
    if seed is not None:
        leaves += [a.requires_grad_() for a in singles]
        wanted_leaves += [a.requires_grad_() for a in doubles]
    how = {"jitter": seed is not None, "seed": seed or 0, "skip_empty": False}
    results = render(field, None, *singles, steps_per_unit=STEPS_PER_UNIT, **how)  # type: ignore[arg-type]
    found = torch.cat([results[0], results[1][:, None], results[2][:, None]], 1)
    wanted = ref.march(grid, f64(BOX), f64(BACKGROUND), (doubles[0], doubles[1]), STEPS_PER_UNIT, seed)
    np.testing.assert_allclose(found.detach(), wanted.detach(), rtol=1e-4, atol=2e-5)

    v = f64(np.random.default_rng(1).normal(size=wanted.shape))
    actual = torch.autograd.grad(found, leaves, v.float())
    expected = torch.autograd.grad(wanted, wanted_leaves, v)
    for name, one, other in zip(("table", "weights", "rays_o", "rays_d"), actual, expected, strict=False):
        assert (other != 0).double().mean() > 0.5, name
        # Of what many samples add to, an element is as exact as the largest; of a ray, as its own largest.
        scale = other.abs().amax(1, keepdim=True).clip(min=0.1) if name.startswith("rays") else other.abs().max()
        off = (one.double() - other).abs() - 1e-3 * other.abs()
        assert (off <= 1e-4 * scale).all(), (name, float((off / scale).max()))


@pytest.mark.parametrize(
    ("how", "inside", "seed"), [("float atomics", False, 7), ("compare-and-swap", False, 7), (2, False, None), (2, True, 7)]
)
def test_like_float64(how: Sums, inside: bool, seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    add_up(how, monkeypatch)
    assert_like_reference(40, inside, seed)


@pytest.mark.parametrize("how", ["float atomics", 2])
def test_halves(how: Sums, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the table; gradients are as exact as halves can be."""
    add_up(how, monkeypatch)
    assert_like_reference(30, inside=True, halves=True)
