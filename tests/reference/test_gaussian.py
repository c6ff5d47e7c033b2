"""Rotations and covariances, and their gradients against central differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import tests.reference as ref
from tests.reference.checking import check_gradients, shapes


def test_rotation_is_scipys() -> None:
    quats = np.random.default_rng(0).normal(size=(50, 4))
    np.testing.assert_allclose(
        ref.quat_to_rotmat(quats), Rotation.from_quat(quats, scalar_first=True).as_matrix(), atol=1e-14
    )


@pytest.mark.parametrize("count", [0, 1, 5])
def test_rotation_gradient(count: int) -> None:
    rng = np.random.default_rng(1)
    quats, v = rng.normal(size=(count, 4)), rng.normal(size=(count, 3, 3))
    check_gradients(
        lambda q: float(np.sum(v * ref.quat_to_rotmat(q))), [quats], [ref.quat_to_rotmat_backward(quats, v)]
    )


def test_rotation_of_a_vanishing_quaternion() -> None:
    zero = np.zeros((1, 4))
    np.testing.assert_array_equal(ref.quat_to_rotmat(zero), np.eye(3)[None])
    tiny, v = np.array([[3e-9, -2e-9, 1e-9, 4e-9]]), np.random.default_rng(2).normal(size=(1, 3, 3))
    check_gradients(
        lambda q: 1e-8 * float(np.sum(v * ref.quat_to_rotmat(q))),
        [tiny],
        [1e-8 * ref.quat_to_rotmat_backward(tiny, v)],
        h=1e-12,
    )


def test_covariance_has_the_scales_as_its_axes() -> None:
    rng = np.random.default_rng(3)
    quats, scales, _ = shapes(rng, 20)
    eigenvalues = np.linalg.eigvalsh(ref.covariance(quats, scales))
    np.testing.assert_allclose(eigenvalues, np.sort(scales**2, axis=-1), rtol=1e-12)
    along_x = ref.quat_to_rotmat(quats)[:, :, 0]
    stretched = np.einsum("nij,nj->ni", ref.covariance(quats, scales), along_x)
    np.testing.assert_allclose(stretched, scales[:, :1] ** 2 * along_x, atol=1e-14)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_covariance_gradient(count: int) -> None:
    rng = np.random.default_rng(4)
    quats, scales, _ = shapes(rng, count)
    v = rng.normal(size=(count, 3, 3))  # not symmetric on purpose
    check_gradients(
        lambda q, s: float(np.sum(v * ref.covariance(q, s))),
        [quats, scales],
        ref.covariance_backward(quats, scales, v),
    )
