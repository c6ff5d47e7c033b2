"""`project` and its gradients, those of `Ks` and of clamped Gaussians included, against central differences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

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


def scattered_points() -> Array:
    """Camera-space points: inside the frustum, then beyond the clamp on each side and at two corners."""
    return np.array(
        [
            [0.3, -0.2, 3.0],
            [-0.7, 0.6, 4.0],
            [6.0, 0.4, 3.5],
            [-6.0, 0.3, 3.0],
            [0.2, 6.0, 4.0],
            [0.1, -6.0, 2.5],
            [5.0, -7.0, 3.0],
            [-5.0, 6.0, 2.0],
        ]
    )


def test_limits_are_a_third_wider_than_a_centred_image() -> None:
    limits = ref.frustum_limits(intrinsics(CENTRED), WIDTH, HEIGHT)
    half = np.array([WIDTH / 2 / 13, HEIGHT / 2 / 12])
    np.testing.assert_allclose(limits, np.stack([-1.3 * half, 1.3 * half], axis=-1))
    off = ref.frustum_limits(intrinsics(OFF_CENTRE), WIDTH, HEIGHT)
    np.testing.assert_allclose(off[0], [-4.2 / 13 - 0.3 * half[0], (WIDTH - 4.2) / 13 + 0.3 * half[0]])
    np.testing.assert_allclose(off[1], [-7.9 / 12 - 0.3 * half[1], (HEIGHT - 7.9) / 12 + 0.3 * half[1]])


def test_jacobian_is_the_pixels_derivative_inside_and_constant_slope_outside() -> None:
    t, K = scattered_points(), intrinsics(OFF_CENTRE)
    limits = ref.frustum_limits(K, WIDTH, HEIGHT)
    J = ref.perspective_jacobian(t, K, WIDTH, HEIGHT)
    slopes = np.clip(t[:, :2] / t[:, 2:], limits[:, 0], limits[:, 1])
    nearest = np.concatenate([slopes * t[:, 2:], t[:, 2:]], axis=-1)
    for row in range(2):
        for point, expected in zip(nearest, J[:, row], strict=True):
            check_gradients(lambda p, row=row: float((K @ p)[row] / p[2]), [point], [expected])


@pytest.mark.parametrize("centre", [CENTRED, OFF_CENTRE])
def test_jacobian_gradient_with_clamped_points(centre: tuple[float, float]) -> None:
    t, K = scattered_points(), intrinsics(centre)
    limits = ref.frustum_limits(K, WIDTH, HEIGHT)
    slopes = t[:, :2] / t[:, 2:]
    assert (slopes < limits[:, 0]).any(axis=0).all() and (slopes > limits[:, 1]).any(axis=0).all()
    v = np.random.default_rng(5).normal(size=(len(t), 2, 3))
    check_gradients(
        lambda p, k: float(np.sum(v * ref.perspective_jacobian(p, k, WIDTH, HEIGHT))),
        [t, K],
        ref.perspective_jacobian_backward(t, K, WIDTH, HEIGHT, v),
    )


@pytest.mark.parametrize("point", scattered_points(), ids=str)
def test_intrinsics_gradient_of_each_jacobian_alone(point: Array) -> None:
    """Where x/z (y/z) is clamped, J₀₂ (J₁₂) is a limit's: it moves with cx (cy), and no longer with fx (fy)."""
    t, K = point[None], intrinsics(OFF_CENTRE)
    limits, slope = ref.frustum_limits(K, WIDTH, HEIGHT), point[:2] / point[2]
    clamped = (slope < limits[:, 0]) | (slope > limits[:, 1])
    for axis in range(2):
        v = np.zeros((1, 2, 3))
        v[0, axis, 2] = 1.0
        _, v_K = ref.perspective_jacobian_backward(t, K, WIDTH, HEIGHT, v)
        check_gradients(
            lambda k, v=v: float(np.sum(v * ref.perspective_jacobian(t, k, WIDTH, HEIGHT))), [K], [v_K]
        )
        if clamped[axis]:
            np.testing.assert_allclose(v_K[axis], np.eye(3)[2] / point[2], atol=1e-15)
        else:
            np.testing.assert_allclose(v_K[axis], np.eye(3)[axis] * -slope[axis] / point[2], atol=1e-15)


@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_conic_gradient(size: float) -> None:
    """The smaller size has determinants below 1e-6, where the guard holds them."""
    rng = np.random.default_rng(6)
    root = rng.normal(size=(6, 2, 2))
    cov = size * (root @ root.swapaxes(-1, -2) + 0.2 * np.eye(2))
    packed = np.stack([cov[:, 0, 0], cov[:, 0, 1], cov[:, 1, 1]], axis=-1)
    assert (np.linalg.det(cov) < 1e-6).all() == (size < 1)
    v = rng.normal(size=(6, 3))

    def full(p: Array) -> Array:
        return np.stack([p[:, [0, 1]], p[:, [1, 2]]], axis=-2)

    v_cov = ref.conic_backward(cov, v)
    v_packed = np.stack([v_cov[:, 0, 0], 2 * v_cov[:, 0, 1], v_cov[:, 1, 1]], axis=-1)
    check_gradients(lambda p: float(np.sum(v * ref.conic(full(p)))), [packed], [v_packed], h=size * 1e-4)
    if size == 1.0:
        a, b, c = ref.conic(cov).T
        np.testing.assert_allclose(np.stack([np.stack([a, b]), np.stack([b, c])]).T, np.linalg.inv(cov))


def projection_scene(rng: np.random.Generator, viewmat: Array) -> list[Array]:
    """Clamped points on all sides, one so small that ρ is floored, one behind the camera, one beyond far."""
    points = np.concatenate([scattered_points(), [[0.2, 0.1, 3], [0.1, 0.2, -2], [0, 0, 200]]])
    quats, scales, opacities = shapes(rng, len(points))
    scales[8] = [1e-3, 2e-3, 5e-4]
    return [to_world(points, viewmat), quats, scales, opacities]


def projected(inputs: Sequence[Array], antialiased: bool = False) -> ref.Projected:
    means, quats, scales, opacities, viewmat, K = inputs
    return ref.project(
        means, quats, scales, opacities, viewmat, K, WIDTH, HEIGHT,
        far=100, antialiased=antialiased,
    )  # fmt: skip


def projected_backward(
    inputs: Sequence[Array], v: Sequence[Array], antialiased: bool = False
) -> ref.ProjectionGradients:
    means, quats, scales, opacities, viewmat, K = inputs
    v_means2d, v_depths, v_conics, v_opacities = v
    return ref.project_backward(
        means, quats, scales, opacities, viewmat, K, WIDTH, HEIGHT,
        v_means2d, v_depths, v_conics, v_opacities, far=100, antialiased=antialiased,
    )  # fmt: skip


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("centre", [CENTRED, OFF_CENTRE])
def test_projection_gradient(antialiased: bool, centre: tuple[float, float]) -> None:
    rng = np.random.default_rng(7)
    viewmat, K = random_viewmat(rng), intrinsics(centre)
    inputs = [*projection_scene(rng, viewmat), viewmat, K]
    count = len(inputs[0])
    v = [rng.normal(size=shape) for shape in [(count, 2), (count,), (count, 3), (count,)]]

    def f(*x: Array) -> float:
        p = projected(x, antialiased)
        outputs = [p.means2d, p.depths, p.conics, p.opacities]
        return float(sum(np.sum(a * b) for a, b in zip(v, outputs, strict=True)))

    visible = projected(inputs).visible
    np.testing.assert_array_equal(visible, [True] * 9 + [False] * 2)
    out = projected_backward(inputs, v, antialiased)
    assert not out.means[~visible].any() and not out.quats[~visible].any()
    assert out.viewmat[:3].all() and not out.viewmat[3].any()
    check_gradients(
        f,
        inputs,
        [out.means, out.quats, out.scales, out.opacities, out.viewmat, out.K],
        h=2e-5,  # of the smallest Gaussian's scale, a twenty-fifth
    )


def test_projection_values() -> None:
    """Σ₂ from the pixel map's numerical Jacobian; ρ and its floor; what a culled Gaussian leaves."""
    rng = np.random.default_rng(8)
    viewmat, K = random_viewmat(rng), intrinsics(OFF_CENTRE)
    means, quats, scales, opacities = projection_scene(rng, viewmat)
    plain = projected([means, quats, scales, opacities, viewmat, K])
    smooth = projected([means, quats, scales, opacities, viewmat, K], antialiased=True)

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
    for culled in (plain.means2d, plain.depths, plain.conics, plain.opacities):
        assert not culled[9:].any()


def test_non_finite_gaussians_are_culled_without_a_trace() -> None:
    rng = np.random.default_rng(9)
    viewmat, K = random_viewmat(rng), intrinsics(CENTRED)
    means, quats, scales, opacities = projection_scene(rng, viewmat)
    v = [rng.normal(size=(11, *rest)) for rest in [(2,), (), (3,), ()]]
    clean = projected_backward(
        [means[4:], quats[4:], scales[4:], opacities[4:], viewmat, K], [x[4:] for x in v]
    )
    means[0, 1], quats[1, 2], scales[2, 0], opacities[3] = np.nan, np.nan, np.inf, np.nan
    inputs = [means, quats, scales, opacities, viewmat, K]
    assert not projected(inputs).visible[:4].any()
    out = projected_backward(inputs, v)
    for name in ("means", "quats", "scales", "opacities"):
        assert not getattr(out, name)[:4].any()
        np.testing.assert_array_equal(getattr(out, name)[4:], getattr(clean, name))
    np.testing.assert_allclose(out.viewmat, clean.viewmat, rtol=1e-12)
    np.testing.assert_allclose(out.K, clean.K, rtol=1e-12)
