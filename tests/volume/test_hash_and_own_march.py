"""Hash grids and own radiance fields through the volume kernels: against float64, every number and ray."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import shaders
from splat_py.gpu.kernels import UserType
from splat_py.volume import HashRadianceField, SlangField, render
from splat_py.volume.hash_grid import HIDDEN, HashShape
from tests.refusals import refused
from tests.volume import own_fields
from tests.volume import reference as ref
from tests.volume.reference import f64
from tests.volume.test_march import BOX, Sums, add_up, check_tangents, random_rays

BACKGROUND = np.array([0.25, 0.5, 0.125], np.float32)
STEPS_PER_UNIT = 9
SIDE = float((BOX[1] - BOX[0]).max())
# Dense and hashed levels, as many as in a fit.
SHAPE = HashShape((2, 3, 4, 5, 6, 8, 10, 12), 256)


def hash_grid(halves: bool = False) -> tuple[HashRadianceField, list[Tensor], list[Tensor], ref.Query]:
    """A field, its numbers, their float64 twins, and the oracle's query in the unit cube."""
    rng = np.random.default_rng(0)
    table, weights = rng.normal(size=(SHAPE.entries, 2)), rng.normal(size=SHAPE.weights) * 0.3
    table = table.astype(np.float16 if halves else np.float32)
    twins = [f64(a).requires_grad_() for a in (table, weights.astype(np.float32))]
    leaves = [twin.detach().float() for twin in twins]
    if halves:
        # Begins in the middle of a word.
        leaves[0] = torch.nn.functional.pad(leaves[0].half().flatten(), (1, 0))[1:].reshape(table.shape)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    query = ref.HashGrid(*twins, list(SHAPE.cells), SHAPE.size, 1 / SIDE).query
    return HashRadianceField(*leaves, SHAPE, BOX, BACKGROUND), leaves, twins, query


def own() -> tuple[SlangField, list[Tensor], list[Tensor], ref.Query]:
    params = torch.from_numpy(np.random.default_rng(3).uniform(-0.4, 0.8, 31).astype(np.float32)).requires_grad_()
    twin = f64(params.detach()).requires_grad_()

    def query(places: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        found = own_fields.mixed(twin, places, directions)
        return found[:, 0].clip(min=0) / SIDE, found[:, 1:].clip(min=0)

    return SlangField(UserType("Mixed", own_fields.MIXED), params, BOX, BACKGROUND), [params], [twin], query


def assert_like_reference(made: Any, count: int, inside: bool, seed: int | None = None, **how: Any) -> list[Tensor]:
    """Check results and gradients of every number, and return the gradients; a seed adds jitter and gradients of rays."""
    field, leaves, twins, query = made
    numbers, rays = len(leaves), random_rays(count, inside)
    singles, doubles = ([convert(a) for a in rays] for convert in (lambda a: torch.tensor(a, dtype=torch.float32), f64))
    if seed is not None:
        leaves += [a.requires_grad_() for a in singles]
        twins += [a.requires_grad_() for a in doubles]
    how |= {"jitter": seed is not None, "seed": seed or 0}

    def march(*tensors: Tensor) -> tuple[Tensor]:
        again = replace(field, **dict(zip(field._names, tensors, strict=False)))
        results = render(again, None, *(tensors[numbers:] or singles), steps_per_unit=STEPS_PER_UNIT, **how)
        return (torch.cat([results[0], results[1][:, None], results[2][:, None]], 1),)

    (found,) = march(*leaves)
    box = f64(BOX)
    wanted = ref.march_through(
        lambda x, d: query((x - box[0]) / SIDE, d), box, f64(BACKGROUND), tuple(doubles), STEPS_PER_UNIT, seed
    )
    np.testing.assert_allclose(found.detach(), wanted.detach(), rtol=1e-4, atol=2e-5)

    v = f64(np.random.default_rng(1).normal(size=wanted.shape))
    expected = torch.autograd.grad(wanted, twins, v)
    gradients = torch.autograd.grad(found, leaves, v.float())
    check_tangents(march, leaves, [v.float()], gradients)
    for i, (one, other) in enumerate(zip(gradients, expected, strict=True)):
        assert (other != 0).double().mean() > 0.5, i
        # Sums over many samples are as precise as the largest element; a ray as its own largest.
        scale = other.abs().amax(1, keepdim=True).clip(min=0.1) if i >= numbers else other.abs().max()
        off = (one.double() - other).abs() - 1e-3 * other.abs()
        assert (off <= 1e-4 * scale).all(), (i, float((off / scale).max()))
    return expected


WAYS = ("how", "inside", "seed")


@pytest.mark.parametrize(WAYS, [("float atomics", False, 7), ("compare-and-swap", False, 7), (2, False, None), (2, True, 7)])
def test_hash_grids(how: Sums, inside: bool, seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    add_up(how, monkeypatch)
    assert_like_reference(hash_grid(), 40, inside, seed, skip_empty=False)


@pytest.mark.parametrize(WAYS, [("float atomics", False, 7), ("compare-and-swap", False, 7), (2, True, None), (2, False, 7)])
def test_own_fields(how: Sums, inside: bool, seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    add_up(how, monkeypatch)
    v_params = assert_like_reference(own(), 40, inside, seed)[0]
    assert (v_params[:30] != 0).all() and v_params[30] == 0, "every number that is read has a gradient"


@pytest.mark.parametrize("how", ["float atomics", 2])
def test_halves(how: Sums, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's gradients are as precise as halves allow."""
    add_up(how, monkeypatch)
    assert_like_reference(hash_grid(halves=True), 30, inside=True, skip_empty=False)


def test_empty_cells_of_a_hash_grid_are_skipped_to_their_ends() -> None:
    """Blobs with nothing between them: the logarithm of the density is a hundred times the first feature."""
    shape, rng = HashShape((6,), 512), np.random.default_rng(5)
    table = torch.zeros(shape.entries, 2)
    table[:, 0] = torch.tensor(rng.choice([-1.0, 0.03], shape.entries, p=[0.5, 0.5]))
    weights = torch.zeros(shape.weights)
    units = weights[: 4 * HIDDEN].view(HIDDEN, 4)
    units[0], units[1] = torch.tensor([1.0, 0, 0, 100]), torch.tensor([-1.0, 0, 0, -100])
    field = HashRadianceField(table, weights, shape, BOX, BACKGROUND)
    rays = [torch.tensor(a, dtype=torch.float32) for a in random_rays(200, False)]
    every, some = (render(field, None, *rays, steps_per_unit=300, skip_empty=skip)[1] for skip in (False, True))
    assert every.std() > 0.15
    # A skipped step absorbs at most a thousandth.
    torch.testing.assert_close(some, every, rtol=0, atol=2e-2)


def test_unusable_own_fields() -> None:
    kind = shaders.source(own_fields.MIXED)
    refused(r"params is .* Mixed takes torch.float32 \[31\]", SlangField, kind, torch.zeros(30), BOX, BACKGROUND)
    refused("params holds a number that is not finite", SlangField, kind, torch.full((31,), torch.nan), BOX, BACKGROUND)
    for source, message in (
        (own_fields.MIXED.replace("PARAMS", "NUMBERS"), "Mixed has PARAMS = None; say how many"),
        ("public float one() { return 1.0; }", "no type that implements IFieldFunction"),
    ):
        refused(message, SlangField.new, shaders.source(source), BOX)
    field = SlangField.new(kind, BOX, seed=1)
    assert field.params[30] == 0.25 and -0.2 <= field.params.min() < -0.1
    refused("sh, box and contracted", render, field, torch.zeros(1), torch.zeros(2, 3), torch.ones(2, 3))
