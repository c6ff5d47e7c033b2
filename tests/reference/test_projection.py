"""Rotations, covariances and `project`: values by independent formulas. Gradients are in test_rendering.py."""

import numpy as np
import torch
from scipy.spatial.transform import Rotation

import tests.reference as ref
from tests.reference.arrays import Array
from tests.reference.checking import (
    CENTRED,
    HEIGHT,
    OFF_CENTRE,
    WIDTH,
    check_gradients,
    intrinsics,
    random_viewmat,
    shapes,
    to_world,
)
from tests.reference.gaussian import rotations
from tests.reference.projection import perspective_jacobian

# Camera-space points: inside the frustum, then beyond the clamp on each side and at two corners.
INSIDE = [[0.3, -0.2, 3.0], [-0.7, 0.6, 4.0]]
SIDES = [[6.0, 0.4, 3.5], [-6.0, 0.3, 3.0], [0.2, 6.0, 4.0], [0.1, -6.0, 2.5]]
POINTS = np.array([*INSIDE, *SIDES, [5.0, -7.0, 3.0], [-5.0, 6.0, 2.0]])


def test_rotations_are_scipys() -> None:
    quats = np.random.default_rng(0).normal(size=(50, 4))
    expected = Rotation.from_quat(quats, scalar_first=True).as_matrix()
    np.testing.assert_allclose(rotations(torch.from_numpy(quats)), expected, atol=1e-14)


def test_rotation_of_a_vanishing_quaternion() -> None:
    """The rotation is the identity; near it, the guarded norm is a constant."""
    tiny, v = np.array([[3e-9, -2e-9, 1e-9, 4e-9]]), torch.from_numpy(np.random.default_rng(2).normal(size=(1, 3, 3)))
    np.testing.assert_array_equal(rotations(0 * torch.from_numpy(tiny))[0], np.eye(3))
    quats = torch.tensor(tiny, requires_grad=True)
    (v_quats,) = torch.autograd.grad((v * rotations(quats)).sum() * 1e-8, quats)
    check_gradients(lambda q: 1e-8 * float((v * rotations(torch.from_numpy(q))).sum()), [tiny], [v_quats.numpy()], h=1e-12)


def test_covariance_has_the_scales_as_its_axes() -> None:
    quats, scales, _ = shapes(np.random.default_rng(3), 20)
    covariances = ref.covariance(quats, scales)
    np.testing.assert_allclose(np.linalg.eigvalsh(covariances), np.sort(scales**2, axis=-1), rtol=1e-12)
    along_x = rotations(torch.from_numpy(quats))[:, :, 0].numpy()
    np.testing.assert_allclose(np.einsum("nij,nj->ni", covariances, along_x), scales[:, :1] ** 2 * along_x, atol=1e-14)


def test_limits_are_a_third_wider_than_a_centred_image() -> None:
    limits = ref.frustum_limits(intrinsics(CENTRED), WIDTH, HEIGHT)
    half = np.array([WIDTH / 2 / 13, HEIGHT / 2 / 12])
    np.testing.assert_allclose(limits, np.stack([-1.3 * half, 1.3 * half], axis=-1))
    off = ref.frustum_limits(intrinsics(OFF_CENTRE), WIDTH, HEIGHT)
    np.testing.assert_allclose(off[0], [-4.2 / 13 - 0.3 * half[0], (WIDTH - 4.2) / 13 + 0.3 * half[0]])
    np.testing.assert_allclose(off[1], [-7.9 / 12 - 0.3 * half[1], (HEIGHT - 7.9) / 12 + 0.3 * half[1]])


def test_jacobian_is_the_pixels_derivative_inside_and_constant_slope_outside() -> None:
    K = intrinsics(OFF_CENTRE)
    limits = ref.frustum_limits(K, WIDTH, HEIGHT)
    slopes = POINTS[:, :2] / POINTS[:, 2:]
    assert (slopes < limits[:, 0]).any(axis=0).all() and (slopes > limits[:, 1]).any(axis=0).all()
    J = perspective_jacobian(torch.from_numpy(POINTS), torch.from_numpy(K), WIDTH, HEIGHT).numpy()
    nearest = np.concatenate([np.clip(slopes, limits[:, 0], limits[:, 1]) * POINTS[:, 2:], POINTS[:, 2:]], axis=-1)
    for row in range(2):
        for point, expected in zip(nearest, J[:, row], strict=True):
            check_gradients(lambda p, row=row: float((K @ p)[row] / p[2]), [point], [expected])


def projection_scene(rng: np.random.Generator, viewmat: Array) -> list[Array]:
    """Points clamped on all sides, one so small that ρ reaches its floor, one behind the camera, one beyond far."""
    points = np.concatenate([POINTS, [[0.2, 0.1, 3], [0.1, 0.2, -2], [0, 0, 200]]])
    quats, scales, opacities = shapes(rng, len(points))
    scales[8] = [1e-3, 2e-3, 5e-4]
    return [to_world(points, viewmat), quats, scales, opacities]


def test_projection_values() -> None:
    """Σ₂ from the pixel map's numerical Jacobian; ρ and its floor; the values of culled Gaussians."""
    rng = np.random.default_rng(8)
    viewmat, K = random_viewmat(rng), intrinsics(OFF_CENTRE)
    means, quats, scales, opacities = inputs = projection_scene(rng, viewmat)
    plain, smooth = (ref.project(*inputs, viewmat, K, WIDTH, HEIGHT, far=100, antialiased=mip) for mip in (False, True))

    def pixel(p: Array) -> Array:
        t = viewmat[:3, :3] @ p + viewmat[:3, 3]
        return np.asarray((K @ t)[:2] / t[2])

    for i in (0, 1):  # the ones inside the clamp
        P = np.stack([(pixel(means[i] + d) - pixel(means[i] - d)) / 2e-5 for d in 1e-5 * np.eye(3)], axis=-1)
        sharp = P @ ref.covariance(quats, scales)[i] @ P.T
        blurred = sharp + 0.3 * np.eye(2)
        a, b, c = plain.conics[i]
        np.testing.assert_allclose([[a, b], [b, c]], np.linalg.inv(blurred), rtol=1e-7)
        np.testing.assert_allclose(plain.means2d[i], pixel(means[i]))
        rho = np.sqrt(np.linalg.det(sharp) / np.linalg.det(blurred))
        np.testing.assert_allclose(smooth.opacities[i], rho * opacities[i], rtol=1e-7)
    np.testing.assert_allclose(smooth.opacities[8], 0.005 * opacities[8])
    np.testing.assert_allclose(plain.opacities[:9], opacities[:9])
    np.testing.assert_array_equal(plain.visible, [True] * 9 + [False] * 2)
    for culled in (plain.means2d, plain.depths, plain.conics, plain.opacities):
        assert not culled[9:].any()
    # This Gaussian is so small that the guard clamps the determinant.
    sharper = ref.project(*inputs, viewmat, K, WIDTH, HEIGHT, eps2d=0)
    assert sharper.conics[8, [0, 2]].max() < 1e6 * 1e-4


def test_non_finite_gaussians_are_culled() -> None:
    rng = np.random.default_rng(9)
    viewmat = random_viewmat(rng)
    means, quats, scales, opacities = inputs = projection_scene(rng, viewmat)
    means[0, 1], quats[1, 2], scales[2, 0], opacities[3] = np.nan, np.nan, np.inf, np.nan
    found = ref.project(*inputs, viewmat, intrinsics(CENTRED), WIDTH, HEIGHT, far=100)
    np.testing.assert_array_equal(found.visible, [False] * 4 + [True] * 5 + [False] * 2)
