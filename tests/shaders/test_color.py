"""slang/splat/color.slang and spherical_harmonics.slang."""

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py.render.colors import network_weights
from splat_py.shaders import color, spherical_harmonics
from tests.reference.spherical_harmonics import basis_at
from tests.shaders.oracle import assert_like, float32

COUNT = 60
RNG = np.random.default_rng(3)
DIRECTIONS = RNG.normal(size=(COUNT, 3))
# Along the axes most terms of the basis, or of its derivative, vanish.
DIRECTIONS[:6] = [[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]]
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)
DEGREES = [0, 1, 2, 3, 4]


@pytest.mark.parametrize("degree", DEGREES[1:])
def test_basis(degree: int) -> None:
    assert_like(
        spherical_harmonics.shBasis[(degree + 1) ** 2],
        lambda d: basis_at(d, degree),
        [DIRECTIONS],
        value=(1e-6, 1e-6),
        atol=2e-6,
    )


@pytest.mark.parametrize("limited", [True, False], ids=["colour", "sum"])
@pytest.mark.parametrize("degree", DEGREES)
def test_color_of_harmonics(degree: int, limited: bool) -> None:
    """A clamped channel passes no gradient; the sum has neither the ½ nor the limit."""

    def f(directions: Tensor, sh: Tensor) -> Tensor:
        linear = torch.einsum("nk,nkc->nc", basis_at(directions, degree), sh)
        assert 0.1 < (linear < -0.5).double().mean() < 0.9 and (linear + 0.5).abs().min() > 1e-5
        return (linear + 0.5).relu() if limited else linear

    count = (degree + 1) ** 2
    function = (spherical_harmonics.shColor if limited else spherical_harmonics.shSum)[count]
    assert_like(function, f, [DIRECTIONS, 2 * RNG.normal(size=(COUNT, count, 3))], value=(1e-5, 1e-5), atol=1e-5)


HIDDEN = 4
AXES = RNG.normal(size=(COUNT, 3)) * np.exp(RNG.uniform(-2, 3, size=(COUNT, 1)))
AXES[::4] *= 1e-5  # Slang's own square root would have too small a derivative


@pytest.mark.parametrize(("kind", "function"), [("SphericalHarmonics", "shColor"), ("HarmonicSum", "shSum")])
def test_harmonics_are_an_instance(kind: str, function: str) -> None:
    """Equal to the last bit, and without a gradient of weights that do not exist."""
    features, v = RNG.normal(size=(COUNT, 9, 3)), RNG.normal(size=(COUNT, 3))
    shaded, plain = color.colorOf[9, 1, kind], getattr(spherical_harmonics, function)[9]
    np.testing.assert_array_equal(shaded(DIRECTIONS, features, np.zeros(1)), plain(DIRECTIONS, features))
    v_directions, v_features, v_weights = shaded.gradients(v, DIRECTIONS, features, np.zeros(1))
    for found, expected in zip((v_directions, v_features), plain.gradients(v, DIRECTIONS, features), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert not v_weights.any()


def lobe(directions: Tensor, axes: Tensor) -> Tensor:
    return ((axes * directions).sum(-1) - axes.norm(dim=-1)).exp()


def test_a_lobe() -> None:
    assert_like(color.sphericalGaussian, lobe, [DIRECTIONS, AXES], atol=1e-5)


def test_no_axis_is_no_error() -> None:
    """A lobe that is the same everywhere, whose axis can grow."""
    assert color.sphericalGaussian([0, 0, 1], [0, 0, 0]) == pytest.approx(1, abs=1e-5)
    _, v_axis = color.sphericalGaussian.gradients(1.0, [0, 0, 1.0], [0, 0, 0.0])
    np.testing.assert_allclose(v_axis, [0, 0, 1], atol=1e-5)


@pytest.mark.parametrize("vectors", [1, 3, 7])
def test_lobes(vectors: int) -> None:
    def lobes(directions: Tensor, features: Tensor, weights: Tensor) -> Tensor:
        total = features[:, 0] + 0.5
        for k in range(1, vectors - 1, 2):
            total = total + features[:, k + 1] * lobe(directions, features[:, k])[:, None]
        assert 0.05 < (total <= 0).double().mean() < 0.6
        return total.relu()

    arguments = [DIRECTIONS, RNG.normal(size=(COUNT, vectors, 3)), np.zeros(1)]
    assert_like(color.colorOf[vectors, 1, "SphericalGaussians"], lobes, arguments, atol=1e-5)


def test_network() -> None:
    def network(directions: Tensor, features: Tensor, weights: Tensor) -> Tensor:
        x = torch.cat([features.reshape(COUNT, -1), basis_at(directions, 2)], -1)
        rows = weights[:-3].reshape(HIDDEN, -1)
        hidden = (x @ rows[:, :-4].T + rows[:, -4]).relu()
        return (hidden @ rows[:, -3:] + weights[-3:]).sigmoid()

    weights = 0.7 * RNG.normal(size=network_weights(3 * 2, HIDDEN))
    inputs = [float32(a) for a in (DIRECTIONS, RNG.normal(size=(COUNT, 2, 3)), weights)]
    assert_like(color.colorOf[2, weights.size, "ColorNetwork"], network, inputs, value=(1e-5, 1e-5), rtol=1e-3, atol=1e-4)
