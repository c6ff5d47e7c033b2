"""Radiance fields of one's own through the volume kernels: against float64, every number and ray."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import SplatError, shaders
from splat_py.gpu.kernels import UserType
from splat_py.volume import OwnRadianceField, render
from tests.volume import hash_reference as ref
from tests.volume import own_fields
from tests.volume.adding_up import Sums, add_up
from tests.volume.hash_reference import f64
from tests.volume.test_march import BOX, random_rays

BACKGROUND = np.array([0.25, 0.5, 0.125], np.float32)
STEPS_PER_UNIT = 9
SIDE = float((BOX[1] - BOX[0]).max())


@dataclass(frozen=True)
class Twin:
    """What the oracle marches through."""

    params: Tensor

    def query(self, places: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Densities a world unit, and colours."""
        found = own_fields.mixed(self.params, places, directions)
        return found[:, 0].clip(min=0) / SIDE, found[:, 1:].clip(min=0)


def assert_like_reference(count: int, inside: bool = False, seed: int | None = None) -> None:
    """Results, and gradients of every number; with a seed samples jitter, and rays want a gradient."""
    kind = UserType("Mixed", own_fields.MIXED)
    params = torch.from_numpy(np.random.default_rng(3).uniform(-0.4, 0.8, 31).astype(np.float32)).requires_grad_()
    field = OwnRadianceField(kind, params, BOX, BACKGROUND)
    twin = Twin(f64(params.detach()).requires_grad_())
    rays = random_rays(count, inside)
    singles, doubles = ([convert(a) for a in rays] for convert in (lambda a: torch.tensor(a, dtype=torch.float32), f64))
    leaves, wanted_leaves = [params], [twin.params]
    if seed is not None:
        leaves += [a.requires_grad_() for a in singles]
        wanted_leaves += [a.requires_grad_() for a in doubles]
    how = {"jitter": seed is not None, "seed": seed or 0}
    results = render(field, None, *singles, steps_per_unit=STEPS_PER_UNIT, **how)  # type: ignore[arg-type]
    found = torch.cat([results[0], results[1][:, None], results[2][:, None]], 1)
    wanted = ref.march(twin, f64(BOX), f64(BACKGROUND), (doubles[0], doubles[1]), STEPS_PER_UNIT, seed)
    np.testing.assert_allclose(found.detach(), wanted.detach(), rtol=1e-4, atol=2e-5)

    v = f64(np.random.default_rng(1).normal(size=wanted.shape))
    actual = torch.autograd.grad(found, leaves, v.float())
    expected = torch.autograd.grad(wanted, wanted_leaves, v)
    # Every one that is read takes part.
    assert (expected[0][:30] != 0).all() and expected[0][30] == 0
    for name, one, other in zip(("params", "rays_o", "rays_d"), actual, expected, strict=False):
        scale = other.abs().amax(1, keepdim=True).clip(min=0.1) if name.startswith("rays") else other.abs().max()
        off = (one.double() - other).abs() - 1e-3 * other.abs()
        assert (off <= 1e-4 * scale).all(), (name, float((off / scale).max()))


@pytest.mark.parametrize(
    ("how", "inside", "seed"), [("float atomics", False, 7), ("compare-and-swap", False, 7), (2, True, None), (2, False, 7)]
)
def test_like_float64(how: Sums, inside: bool, seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    add_up(how, monkeypatch)
    assert_like_reference(40, inside, seed)


def test_unusable_input() -> None:
    kind = shaders.source(own_fields.MIXED)
    with pytest.raises(SplatError, match=r"params is .* Mixed takes torch.float32 \[31\]"):
        OwnRadianceField(kind, torch.zeros(30), BOX, BACKGROUND)
    with pytest.raises(SplatError, match="params holds a number that is not finite"):
        OwnRadianceField(kind, torch.full((31,), torch.nan), BOX, BACKGROUND)
    with pytest.raises(SplatError, match="Mixed has PARAMS = None; say how many"):
        OwnRadianceField.new(shaders.source(own_fields.MIXED.replace("PARAMS", "NUMBERS")), BOX)
    with pytest.raises(SplatError, match="no type that implements IFieldFunction"):
        OwnRadianceField.new(shaders.source("public float one() { return 1.0; }"), BOX)
    field = OwnRadianceField.new(kind, BOX, seed=1)
    assert field.params[30] == 0.25 and -0.2 <= field.params.min() < -0.1
    with pytest.raises(SplatError, match="sh and box"):
        render(field, torch.zeros(1), torch.zeros(2, 3), torch.ones(2, 3))
