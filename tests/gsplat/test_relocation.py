"""Relocation against equation 9 of Kheradmand et al. 2024 as it is written, and against what the equation is for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gsplat.relocation import compute_relocation


def table(size: int) -> Tensor:
    return torch.tensor([[math.comb(n, k) for k in range(size)] for n in range(size)], dtype=torch.float32)


def equation_9(opacity: float, n: int) -> tuple[float, float]:
    """The new opacity, and the factor of scales."""
    new = 1 - (1 - min(opacity, 1 - 2**-24)) ** (1 / n)
    terms = [math.comb(i - 1, k) * (-1) ** k * new ** (k + 1) / math.sqrt(k + 1) for i in range(1, n + 1) for k in range(i)]
    return new, opacity / math.fsum(terms)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_against_the_equation(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    count = 400
    opacities = torch.from_numpy(np.concatenate([rng.uniform(0.005, 0.99, count - 3), [1e-4, 0.9999, 1.0]]).astype(np.float32))
    ratios = torch.from_numpy(np.concatenate([rng.integers(1, 52, count - 3), [51, 51, 40]]))
    scales = torch.from_numpy(rng.uniform(0.01, 3, (count, 3)).astype(np.float32))
    given = ratios.clone()
    new_opacities, new_scales = compute_relocation(opacities.reshape(shape), scales, ratios, table(51))
    assert new_opacities.shape == opacities.reshape(shape).shape and new_scales.dtype == torch.float32
    assert torch.equal(ratios, given)
    expected = [equation_9(float(o), int(n)) for o, n in zip(opacities, ratios, strict=True)]
    np.testing.assert_allclose(new_opacities.flatten(), [new for new, _ in expected], rtol=1e-6)
    np.testing.assert_allclose(new_scales, scales * torch.tensor([[f] for _, f in expected]), rtol=2e-6)


@pytest.mark.parametrize(("opacity", "n"), [(0.3, 2), (0.9, 5), (0.99, 17), (0.999, 51)])
def test_what_it_is_for(opacity: float, n: int) -> None:
    """n Gaussians blended look as the one did: the same opacity at the centre, the same sum along a line through it."""
    opacities, scales = torch.tensor([opacity]), torch.full((1, 3), 0.7)
    (new,), ((scale, _, _),) = compute_relocation(opacities, scales, torch.tensor([n]), table(51))
    assert 1 - (1 - float(new)) ** n == pytest.approx(opacity, rel=1e-5)
    blended, _ = quad(lambda x: 1 - (1 - float(new) * math.exp(-0.5 * (x / float(scale)) ** 2)) ** n, -9, 9)
    assert blended == pytest.approx(opacity * 0.7 * math.sqrt(2 * math.pi), rel=1e-5)


def test_one_stays_as_it_is_and_ratios_stay_in_the_table() -> None:
    opacities, scales = torch.tensor([0.2, 0.0, 0.7, 0.7]), torch.rand(4, 3)
    new, new_scales = compute_relocation(opacities, scales, torch.tensor([1, 3, 0, 99]), table(4))
    torch.testing.assert_close(new[:3], opacities[:3])
    torch.testing.assert_close(new_scales[:3], scales[:3])
    assert float(new[3]) == pytest.approx(equation_9(0.7, 4)[0])
    assert compute_relocation(opacities[:0], scales[:0], torch.empty(0), table(4))[1].shape == (0, 3)


def test_min_opacity_holds_before_scales_are_computed() -> None:
    opacities, scales = torch.tensor([2e-3, 0.2, 1.0]), torch.ones(3, 3)
    new, new_scales = compute_relocation(opacities, scales, torch.tensor([4, 2, 1]), table(8), min_opacity=0.005)
    np.testing.assert_allclose(new, [0.005, equation_9(0.2, 2)[0], 1 - 2**-23], rtol=1e-6)
    terms = [math.comb(4, k + 1) * (-1) ** k * 0.005 ** (k + 1) / math.sqrt(k + 1) for k in range(4)]
    assert float(new_scales[0, 0]) == pytest.approx(2e-3 / sum(terms), rel=1e-5)


def test_messages() -> None:
    opacities, scales, ratios = torch.rand(3), torch.rand(3, 3), torch.ones(3)
    with pytest.raises(SplatError, match=r"ratios \[N\], not \[3\], \[3, 3\] and \[2\]"):
        compute_relocation(opacities, scales, ratios[:2], table(4))
    with pytest.raises(SplatError, match="square"):
        compute_relocation(opacities, scales, ratios, table(4)[:2])
