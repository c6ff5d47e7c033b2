"""Gradients of rays against float64."""

from dataclasses import replace

import pytest
import torch

from splat_py.volume import render
from tests.volume import test_march
from tests.volume.reference import Array
from tests.volume.test_march import BOX, Sums, add_up, random_field, random_rays

STEPS_PER_UNIT = 9


def tensors(*arrays: Array) -> list[torch.Tensor]:
    return [torch.tensor(a, dtype=torch.float32) for a in arrays]


def assert_like_reference(
    coefficients: int, inside: bool, seed: int | None, count: int = 64, contracted: bool = False, **options: object
) -> None:
    field = replace(random_field(coefficients), contracted=contracted)
    test_march.assert_like_reference(field, random_rays(count, inside), STEPS_PER_UNIT, seed, of_rays=True, **options)


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
    add_up(how, monkeypatch)
    assert_like_reference(4, inside, seed, 24, contracted=True)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    """Only one of a ray's two ends, and no gradient for rays without adjoints or past the box."""
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
