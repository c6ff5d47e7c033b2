"""Gradients of rays: against float64, against the renderer's own differences, and in a fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from splat_py.volume import render
from tests.volume import reference as ref
from tests.volume.adding_up import Sums, add_up
from tests.volume.reference import Array, Field
from tests.volume.test_march import BOX, random_field, random_rays

STEPS_PER_UNIT = 9


def tensors(*arrays: Array) -> list[torch.Tensor]:
    return [torch.tensor(a, dtype=torch.float32) for a in arrays]


def adjoints(count: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(count, 3)), rng.normal(size=count), rng.normal(size=count)


def gradients(
    field: Field, rays: tuple[Array, Array], v: tuple[Array, Array, Array], **options: object
) -> tuple[list[Array], list[Array]]:
    """splat_py's, of origins and directions, and of density, sh and background in the same pass."""
    density, sh, background, origins, directions = leaves = tensors(field.density, field.sh, field.background, *rays)
    for leaf in leaves:
        leaf.requires_grad_()
    results = render(density, sh, origins, directions, BOX, background=background, steps_per_unit=STEPS_PER_UNIT, **options)  # type: ignore[arg-type]
    found = [g.double().numpy() for g in torch.autograd.grad(results, leaves, tensors(*v))]
    return found[3:], found[:3]


def reference(field: Field, rays: tuple[Array, Array], v: tuple[Array, Array, Array], seed: int | None) -> list[Array]:
    """Central differences of the reference in float64: no sample crosses a voxel's centre within 1e-7."""

    def losses(*moved: Array) -> Array:
        results = ref.march(field, *moved, STEPS_PER_UNIT, seed)
        return np.sum([(a * b).reshape(len(b), -1).sum(1) for a, b in zip(results, v, strict=True)], axis=0)

    found = [np.zeros_like(a) for a in rays]
    for which, axis in np.ndindex(2, 3):
        step = np.zeros((2, *rays[0].shape))
        step[which, :, axis] = 1e-7
        found[which][:, axis] = (losses(*np.add(rays, step)) - losses(*np.subtract(rays, step))) / 2e-7
    return found


def assert_like_reference(coefficients: int, inside: bool, seed: int | None, count: int = 64, **options: object) -> None:
    """Every scalar of every ray; and the grid's gradients are what they are where rays want none."""
    field, rays = random_field(coefficients), random_rays(count, inside)
    field = replace(field, contracted=bool(options.get("contracted")))
    v = adjoints(count)
    if seed is not None:
        options |= {"jitter": True, "seed": seed}
    found, of_grid = gradients(field, rays, v, **options)
    for name, actual, wanted in zip(("rays_o", "rays_d"), found, reference(field, rays, v, seed), strict=True):
        assert (np.abs(wanted) > 1e-3).any(0).all()
        # Of rays that graze the box a component is as exact as the largest.
        atol = 2e-4 * np.maximum(np.abs(wanted).max(1, keepdims=True), 0.1)
        assert (np.abs(actual - wanted) <= 2e-4 * np.abs(wanted) + atol).all(), (name, np.abs(actual - wanted).max())
    for actual, wanted in zip(of_grid, ref.march_backward(field, *rays, STEPS_PER_UNIT, *v, seed), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=2e-5 * float(np.abs(wanted).max()))


@pytest.mark.parametrize(
    ("how", "coefficients", "inside", "seed", "skip_empty"),
    [
        ("float atomics", 1, False, 7, True),
        ("float atomics", 4, True, None, False),
        (2, 1, True, None, True),
        (2, 4, False, 7, False),
        (2, 9, True, 7, True),
    ],
)
def test_gradients_of_rays(
    how: Sums, coefficients: int, inside: bool, seed: int | None, skip_empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_up(how, monkeypatch)
    assert_like_reference(coefficients, inside, seed, skip_empty=skip_empty)


@pytest.mark.parametrize(
    ("how", "inside", "seed"), [("float atomics", False, 7), ("compare-and-swap", False, 7), (2, True, None)]
)
def test_gradients_of_rays_through_contracted_space(
    how: Sums, inside: bool, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of the grid's, from rays that all go on to infinity."""
    add_up(how, monkeypatch)
    assert_like_reference(4, inside, seed, 24, contracted=True)


def smooth_field(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A blob that is empty at the box's faces, in fine voxels: nothing but the kinks of the interpolation, which are small."""
    axes = [low + (np.arange(side) + 0.5) / side * (high - low) for low, high in BOX.T]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1) - BOX.mean(0)
    blob = 6 * np.exp(-(x**2 / np.array([0.04, 0.06, 0.09])).sum(-1))
    sh = np.stack([x[..., 0], x[..., 1] * 2, x[..., 2]], axis=-1)[..., None, :]
    density, color = tensors(np.where(blob > 0.01, blob, 0), sh)
    return density, color


@pytest.mark.parametrize("seed", [None, 5])
def test_against_the_renderers_differences(seed: int | None) -> None:
    """Each of the six numbers, over all rays, on a smooth field and with bricks to pass over."""
    grid = smooth_field(48)
    rng = np.random.default_rng(12)
    origins = BOX.mean(0) + np.array([0.0, 0.2, 4.0]) + rng.normal(0, 0.2, (400, 3))
    rays = tensors(origins, BOX.mean(0) + rng.normal(0, 0.15, (400, 3)) - origins)
    v = tensors(*(np.abs(a) for a in adjoints(400)))
    options = {} if seed is None else {"jitter": True, "seed": seed}

    def loss(origins: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        # Of one chord each: the number of samples does not change.
        results = render(*grid, origins, directions, BOX, steps_per_unit=40, **options)  # type: ignore[arg-type]
        return sum(((a * b).sum(dtype=torch.float64) for a, b in zip(results, v, strict=True)), torch.tensor(0.0))

    leaves = [ray.clone().requires_grad_() for ray in rays]
    found = torch.autograd.grad(loss(*leaves), leaves)
    for which, axis in np.ndindex(2, 3):
        step = 4e-3
        ends = []
        for sign in (1, -1):
            moved = [ray.clone() for ray in rays]
            moved[which][:, axis] += sign * step
            ends.append(float(loss(*moved)))
        numeric, actual = (ends[0] - ends[1]) / (2 * step), float(found[which][:, axis].sum())
        scale = float(found[which].sum(0).abs().max())
        assert abs(actual - numeric) < 1.5e-2 * scale, (which, axis, actual, numeric)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    """One of a ray's two ends alone, and nothing for rays without adjoints or past the box."""
    field, rays = random_field(1), random_rays(40)
    density, sh, origins, directions = tensors(field.density, field.sh, *rays)
    both = [origins.clone().requires_grad_(), directions.clone().requires_grad_()]
    colors = render(density, sh, *both, BOX, steps_per_unit=STEPS_PER_UNIT)[0]
    expected = torch.autograd.grad(colors[:20].sum(), both)
    missed = (colors == 0).all(-1)
    assert missed.any() and not missed.all()
    for gradient in expected:
        assert not gradient[20:].any() and not gradient[missed].any() and gradient[:20].any()
    for which in range(2):
        ends = [origins.clone(), directions.clone()]
        ends[which].requires_grad_()
        colors = render(density, sh, *ends, BOX, steps_per_unit=STEPS_PER_UNIT)[0]
        (alone,) = torch.autograd.grad(colors[:20].sum(), ends[which])
        assert torch.equal(alone, expected[which])


def test_directions_of_any_length() -> None:
    """Only a direction counts: its gradient has nothing along it and shrinks with its length."""
    field, rays = random_field(4), random_rays(40)
    density, sh, origins, directions = tensors(field.density, field.sh, *rays)
    found = []
    for length in (1.0, 2.0):
        ends = directions.mul(length).requires_grad_()
        results = render(density, sh, origins, ends, BOX, steps_per_unit=STEPS_PER_UNIT)
        found.append(torch.autograd.grad(results[0].sum() + results[2].sum(), ends)[0])
    torch.testing.assert_close(found[0], found[1] * 2, rtol=1e-4, atol=1e-5)
    assert (found[0] * directions).sum(-1).abs().max() < 1e-4 * found[0].abs().max()


def test_a_displacement_is_found() -> None:
    """A camera's displacement from one picture, by descent along the rays' gradient alone."""
    grid = smooth_field(20)
    x, y = np.meshgrid(*(np.linspace(-0.14, 0.14, 12),) * 2)
    origins, directions = tensors(
        np.tile(BOX.mean(0) - np.array([0, 0, 4]), (144, 1)), np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3)
    )

    def picture(move: torch.Tensor) -> torch.Tensor:
        results = render(*grid, origins + move, directions, BOX, steps_per_unit=24)
        return torch.cat([results[0], results[1][:, None], results[2][:, None]], dim=1)

    truth = torch.tensor([0.12, -0.1, 0.2])
    wanted = picture(truth)
    move = torch.zeros(3, requires_grad=True)
    optimiser = torch.optim.LBFGS([move], max_iter=20, line_search_fn="strong_wolfe")

    def evaluate() -> torch.Tensor:
        optimiser.zero_grad()
        loss = (picture(move) - wanted).square().mean()
        loss.backward()
        return loss

    optimiser.step(evaluate)  # type: ignore[no-untyped-call]
    assert (move - truth).detach().abs().max() < 0.01, move
