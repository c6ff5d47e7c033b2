"""slang/splat/field_function.slang: an own field against float64, and mistakes that `check` finds in one."""

import numpy as np
import pytest
import torch

from splat_py import SplatError, shaders
from splat_py.shaders.field_functions import FieldQueries
from tests.volume.own_fields import BLOBS, MIXED, mixed

FUNCTION = shaders.field_function


def test_queries_and_gradients() -> None:
    """Gradients of numbers read one by one, as a row and by a network; and of places and directions."""
    queries, rng = FieldQueries(shaders.source(MIXED)), np.random.default_rng(5)
    params = rng.uniform(-0.4, 0.8, 31).astype(np.float32)
    places = rng.uniform(0, 1, (50, 3)).astype(np.float32)
    directions, v = (rng.normal(size=(50, n)).astype(np.float32) for n in (3, 4))
    leaves = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (params, places, directions)]
    expected = mixed(*leaves)
    np.testing.assert_allclose(queries.values(params, places, directions), expected.detach(), rtol=1e-5, atol=1e-5)
    wanted = torch.autograd.grad(expected, leaves, torch.tensor(v, dtype=torch.float64))
    for found, one in zip(queries.gradients(params, places, directions, v), wanted, strict=True):
        np.testing.assert_allclose(found, one, rtol=2e-4, atol=2e-5 * float(one.abs().max()))


def test_first_values() -> None:
    """First values of a type without its own, and of a type with its own."""
    random = np.array([0, 0.5, 1], np.float32)
    found = FUNCTION.firstOf["Fog"](np.arange(3, dtype=np.uint32), random)
    np.testing.assert_allclose(found, [-0.1, 0, 0.1], atol=1e-7)
    found = FUNCTION.firstOf[shaders.source(MIXED)](np.array([29, 30, 2], np.uint32), random)
    np.testing.assert_allclose(found, [-0.2, 0.25, 0.8], atol=1e-7)


def test_ones_own_passes_the_check() -> None:
    """It also compiles to Metal and WGSL."""
    shaders.check(shaders.source(MIXED))


@pytest.mark.parametrize(
    ("text", "right", "wrong", "message"),
    [
        (MIXED, "weightAt<Weights>(weights, 25 + i) * f", "detach(weightAt<Weights>(weights, 25 + i)) * f", "number 27 is 0,"),
        (MIXED, "row[0] * direction.x", "row[0] * detach(direction.x)", r"by direction\[0\] is 0 at place = \("),
        (BLOBS, "dot(off, off)", "dot(detach(off), off)", r"by place\[\d\] is .* where finite differences have"),
        (BLOBS, "sum.x + 1e-3", "sum.x - sum.x", "query is not finite|is nan at"),
        (BLOBS, "PARAMS", "NUMBERS", "Blobs has PARAMS = None; say how many numbers it reads"),
        (BLOBS, "exp(blob[3])", "exq(blob[3])", "line 16: undefined identifier 'exq'"),
    ],
)
def test_what_check_finds(text: str, right: str, wrong: str, message: str) -> None:
    assert right in text
    with pytest.raises(SplatError, match=message):
        shaders.check(shaders.source(text.replace(right, wrong)))
