"""slang/splat/spherical_harmonics.slang."""

from __future__ import annotations

import numpy as np
import pytest

import tests.reference as ref
from splat_py.shaders import spherical_harmonics as shader
from tests.shaders.oracle import assert_gradients, assert_value

COUNT = 60
RNG = np.random.default_rng(3)
DIRECTIONS = RNG.normal(size=(COUNT, 3))
# Along the axes most terms of the basis, or of its derivative, vanish.
DIRECTIONS[:6] = [[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]]
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)
DEGREES = [0, 1, 2, 3, 4]


@pytest.mark.parametrize("degree", DEGREES)
def test_basis(degree: int) -> None:
    basis = shader.shBasis[(degree + 1) ** 2]
    v = RNG.normal(size=(COUNT, (degree + 1) ** 2))
    assert_value(basis(DIRECTIONS), ref.sh_basis(DIRECTIONS, degree), rtol=1e-6)
    expected = np.einsum("nk,nki->ni", v, ref.sh_basis_jacobian(DIRECTIONS, degree))
    if degree == 0:
        np.testing.assert_array_equal(basis.gradients(v, DIRECTIONS)[0], 0)
    else:
        assert_gradients(basis, v, [DIRECTIONS], [expected], atol=2e-6)


@pytest.mark.parametrize("degree", DEGREES)
def test_color(degree: int) -> None:
    count = (degree + 1) ** 2
    sh = 2 * RNG.normal(size=(COUNT, count, 3))
    v = RNG.normal(size=(COUNT, 3))
    basis = ref.sh_basis(DIRECTIONS, degree)
    linear = np.einsum("nk,nkc->nc", basis, sh) + 0.5
    clamped = linear < 0
    assert 0.1 < np.mean(clamped) < 0.9 and np.abs(linear).min() > 1e-5
    assert_value(shader.shColor[count](DIRECTIONS, sh), np.maximum(linear, 0))

    # A clamped channel passes nothing.
    passed = np.where(clamped, 0, v)
    v_sh = basis[:, :, None] * passed[:, None, :]
    v_basis = np.einsum("nkc,nc->nk", sh, passed)
    v_directions = np.einsum("nk,nki->ni", v_basis, ref.sh_basis_jacobian(DIRECTIONS, degree))
    if degree == 0:
        v_d, v_sh_actual = shader.shColor[1].gradients(v, DIRECTIONS, sh)
        np.testing.assert_array_equal(v_d, 0)
        assert_value(v_sh_actual, v_sh)
    else:
        assert_gradients(shader.shColor[count], v, [DIRECTIONS, sh], [v_directions, v_sh], atol=1e-5)


@pytest.mark.parametrize("degree", DEGREES)
def test_sum(degree: int) -> None:
    """As the colour, but for the ½ and the limit."""
    count = (degree + 1) ** 2
    sh, v = 2 * RNG.normal(size=(COUNT, count, 3)), RNG.normal(size=(COUNT, 3))
    basis = ref.sh_basis(DIRECTIONS, degree)
    expected = np.einsum("nk,nkc->nc", basis, sh)
    assert (expected < -0.5).any()
    assert_value(shader.shSum[count](DIRECTIONS, sh), expected, atol=1e-5)
    v_sh = basis[:, :, None] * v[:, None, :]
    v_directions = np.einsum("nkc,nc,nki->ni", sh, v, ref.sh_basis_jacobian(DIRECTIONS, degree))
    if degree == 0:
        v_d, v_sh_actual = shader.shSum[1].gradients(v, DIRECTIONS, sh)
        np.testing.assert_array_equal(v_d, 0)
        assert_value(v_sh_actual, v_sh)
    else:
        assert_gradients(shader.shSum[count], v, [DIRECTIONS, sh], [v_directions, v_sh], atol=1e-5)
