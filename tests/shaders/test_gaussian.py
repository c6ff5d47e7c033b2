"""slang/splat/gaussian.slang."""

from __future__ import annotations

import numpy as np
import pytest

import tests.reference as ref
from splat_py.shaders import gaussian as shader
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 40
RNG = np.random.default_rng(2)
# Of any length, nearly degenerate ones and those of one component among them.
QUATS = RNG.normal(size=(COUNT, 4)) * np.exp(RNG.uniform(-1, 1, (COUNT, 1)))
QUATS[:6] = [
    [1, 0, 0, 0],
    [0, 2, 0, 0],
    [0, 0, -1, 0],
    [0, 0, 0, 0.5],
    [3e-2, -2e-2, 1e-2, 5e-2],
    [1e2, 0, -1e2, 2e2],
]
# From needles (1000 : 1) to pancakes.
SCALES = np.exp(RNG.uniform(np.log(1e-3), 0, (COUNT, 3)))


def test_sigmoid() -> None:
    x = np.array([-90.0, -20, -3, -0.5, 0, 0.5, 3, 20, 90])
    expected = 1 / (1 + np.exp(-x))
    assert_value(shader.sigmoid(x), expected)
    v = RNG.normal(size=x.shape)
    assert_gradients(shader.sigmoid, v, [x], [v * expected * (1 - expected)])


def test_activate() -> None:
    def scale(s: Array) -> Array:
        return np.exp(s)

    def opacity(o: Array) -> Array:
        return 1 / (1 + np.exp(-o))

    stored = {
        "mean": RNG.normal(size=(COUNT, 3)),
        "quat": QUATS,
        "scale": np.log(SCALES),
        "opacity": RNG.normal(size=COUNT),
    }
    expected = {
        "mean": stored["mean"],
        "quat": QUATS,
        "scale": SCALES,
        "opacity": opacity(stored["opacity"]),
    }
    assert_value(shader.activate(stored), expected)
    v = {name: RNG.normal(size=value.shape) for name, value in stored.items()}
    (v_scale,) = pullback(scale, v["scale"], stored["scale"])
    (v_opacity,) = pullback(opacity, v["opacity"], stored["opacity"])
    v_stored = {"mean": v["mean"], "quat": v["quat"], "scale": v_scale, "opacity": v_opacity}
    assert_gradients(shader.activate, v, [stored], [v_stored])


def test_rotation() -> None:
    v = RNG.normal(size=(COUNT, 3, 3))
    assert_value(shader.quatToRotation(QUATS), ref.quat_to_rotmat(QUATS))
    assert_gradients(shader.quatToRotation, v, [QUATS], [ref.quat_to_rotmat_backward(QUATS, v)], atol=2e-6)


@pytest.mark.parametrize("quat", [[0.0, 0, 0, 0], [1e-9, 0, 0, -1e-9], [1e-5, 2e-5, 0, -1e-5]])
def test_rotation_of_a_vanishing_quaternion_is_finite(quat: list[float]) -> None:
    quats = np.array([quat])
    v = RNG.normal(size=(1, 3, 3))
    assert_value(shader.quatToRotation(quats), ref.quat_to_rotmat(quats))
    (v_quat,) = shader.quatToRotation.gradients(v, quats)
    expected = ref.quat_to_rotmat_backward(quats, v)
    np.testing.assert_allclose(v_quat, expected, rtol=1e-4, atol=1e-6 * max(1.0, np.abs(expected).max()))


def test_covariance_root() -> None:
    v = RNG.normal(size=(COUNT, 3, 3))
    rotations = ref.quat_to_rotmat(QUATS)
    assert_value(shader.covarianceRoot(QUATS, SCALES), rotations * SCALES[:, None, :])
    v_quats = ref.quat_to_rotmat_backward(QUATS, v * SCALES[:, None, :])
    v_scales = np.sum(rotations * v, axis=1)
    assert_gradients(shader.covarianceRoot, v, [QUATS, SCALES], [v_quats, v_scales], atol=2e-6)


SIGMA = {"diagonal": RNG.normal(size=(COUNT, 3)), "others": RNG.normal(size=(COUNT, 3))}


def matrices(diagonal: Array, others: Array) -> Array:
    """[N, 3, 3] of a Covariance3D."""
    xx, yy, zz = diagonal.T
    xy, xz, yz = others.T
    return np.stack([np.stack(row, -1) for row in ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))], -2)


def test_times() -> None:
    def f(diagonal: Array, others: Array, vectors: Array) -> Array:
        return np.einsum("nij,nj->ni", matrices(diagonal, others), vectors)

    vectors, v = RNG.normal(size=(COUNT, 3)), RNG.normal(size=(COUNT, 3))
    assert_value(shader.times(SIGMA, vectors), f(*SIGMA.values(), vectors))
    v_diagonal, v_others, v_vectors = pullback(f, v, *SIGMA.values(), vectors)
    assert_gradients(shader.times, v, [SIGMA, vectors], [{"diagonal": v_diagonal, "others": v_others}, v_vectors])


def test_cofactors() -> None:
    """Σ⁻¹ det Σ, by NumPy's inverse."""

    def f(diagonal: Array, others: Array) -> Array:
        sigma = matrices(diagonal, others)
        c = np.linalg.inv(sigma) * np.linalg.det(sigma)[:, None, None]
        return np.stack([c[:, 0, 0], c[:, 1, 1], c[:, 2, 2], c[:, 0, 1], c[:, 0, 2], c[:, 1, 2]], -1)

    expected = f(*SIGMA.values())
    assert_value(shader.cofactors(SIGMA), {"diagonal": expected[:, :3], "others": expected[:, 3:]}, atol=1e-5)
    v = RNG.normal(size=(COUNT, 6))
    v_diagonal, v_others = pullback(f, v, *SIGMA.values())
    weights = {"diagonal": v[:, :3], "others": v[:, 3:]}
    expected_gradients = [{"diagonal": v_diagonal, "others": v_others}]
    assert_gradients(shader.cofactors, weights, [SIGMA], expected_gradients, atol=1e-5)
    # Where there is no inverse: n nᵀ of a plane with the normal n, and nothing of a line.
    flat = shader.cofactors({"diagonal": [4.0, 9.0, 0.0], "others": [0.0, 0.0, 0.0]})
    assert_value(flat, {"diagonal": [0, 0, 36], "others": [0, 0, 0]})
    needle = shader.cofactors({"diagonal": [1.0, 4.0, 9.0], "others": [2.0, 3.0, 6.0]})
    assert_value(needle, {"diagonal": [0, 0, 0], "others": [0, 0, 0]})


def test_covariance() -> None:
    v = RNG.normal(size=(COUNT, 3, 3))
    assert_value(shader.covariance(QUATS, SCALES), ref.covariance(QUATS, SCALES))
    expected = ref.covariance_backward(QUATS, SCALES, v)
    assert_gradients(shader.covariance, v, [QUATS, SCALES], expected, atol=2e-6)
