"""The oracle is checked before it judges: every backward against central differences, scalar by scalar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from scipy.special import sph_harm_y
from skimage.metrics import structural_similarity

import tests.reference as ref
from tests.reference.arrays import Array
from tests.reference.ssim import ssim_map

WIDTH, HEIGHT = 14, 11
CENTRED = (WIDTH / 2, HEIGHT / 2)
OFF_CENTRE = (4.2, 7.9)


def check_gradients(
    f: Callable[..., float],
    inputs: Sequence[Array],
    gradients: Sequence[Array],
    *,
    h: float = 1e-4,
    fourth_order: bool = True,
) -> None:
    """Compare each scalar of each gradient with the central difference of `f(*inputs)`.

    The default stencil is of fourth order; beside hard decisions a narrow one of second order keeps clear.
    """
    stencil = (
        [(1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12)] if fourth_order else [(1, 0.5), (-1, -0.5)]
    )
    for position, (array, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        assert gradient.shape == array.shape
        expected = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            for offset, weight in stencil:
                moved = list(inputs)
                moved[position] = array.copy()
                moved[position][index] += offset * h
                expected[index] += weight * f(*moved) / h
        scale = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
        np.testing.assert_allclose(
            gradient, expected, rtol=1e-6, atol=1e-8 * scale, err_msg=f"input {position}"
        )


def look(rng: np.random.Generator) -> Array:
    """A world → camera matrix: any rotation, origin about four in front of the camera."""
    viewmat = np.eye(4)
    viewmat[:3, :3] = Rotation.random(rng=rng).as_matrix()
    viewmat[:3, 3] = 0.3 * rng.normal(size=3) + [0, 0, 4]
    return viewmat


def intrinsics(centre: tuple[float, float]) -> Array:
    return np.array([[13.0, 0, centre[0]], [0, 12.0, centre[1]], [0, 0, 1]])


def to_world(points: Array, viewmat: Array) -> Array:
    return (points - viewmat[:3, 3]) @ viewmat[:3, :3]


def shapes(rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
    """quats (not normalised), anisotropic scales, opacities."""
    return (
        rng.normal(size=(count, 4)),
        np.exp(rng.uniform(np.log(0.03), np.log(0.8), size=(count, 3))),
        rng.uniform(0.2, 0.9, size=count),
    )


# --- the shape of a Gaussian ----------------------------------------------------------------------


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


# --- projection -----------------------------------------------------------------------------------


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
    J = ref.perspective_jacobian(t, K, limits)
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
    check_gradients(  # the limits are held: they are constants even where K moves
        lambda p, k: float(np.sum(v * ref.perspective_jacobian(p, k, limits))),
        [t, K],
        ref.perspective_jacobian_backward(t, K, limits, v),
    )


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


def projected(
    inputs: Sequence[Array], antialiased: bool = False, limits: Array | None = None
) -> ref.Projected:
    means, quats, scales, opacities, viewmat, K = inputs
    return ref.project(
        means, quats, scales, opacities, viewmat, K, WIDTH, HEIGHT,
        far=100, antialiased=antialiased, limits=limits,
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
    viewmat, K = look(rng), intrinsics(centre)
    inputs = [*projection_scene(rng, viewmat), viewmat, K]
    count = len(inputs[0])
    limits = ref.frustum_limits(K, WIDTH, HEIGHT)
    v = [rng.normal(size=shape) for shape in [(count, 2), (count,), (count, 3), (count,)]]

    def f(*x: Array) -> float:
        p = projected(x, antialiased, limits)
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
    viewmat, K = look(rng), intrinsics(OFF_CENTRE)
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
    viewmat, K = look(rng), intrinsics(CENTRED)
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


# --- spherical harmonics --------------------------------------------------------------------------


def test_sh_is_the_real_form_of_scipys_complex_harmonics() -> None:
    directions = np.random.default_rng(10).normal(size=(40, 3))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    polar, azimuth = np.arccos(directions[:, 2]), np.arctan2(directions[:, 1], directions[:, 0])
    columns = []
    for degree in range(4):
        for order in range(-degree, degree + 1):
            value = sph_harm_y(degree, abs(order), polar, azimuth)
            columns.append(
                value.real if order == 0 else np.sqrt(2) * (value.imag if order < 0 else value.real)
            )
    np.testing.assert_allclose(ref.sh_basis(directions, 3), np.stack(columns, axis=-1), atol=1e-14)


def test_sh_is_orthonormal() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(6)
    azimuth = np.arange(12) * 2 * np.pi / 12
    z, angle = (grid.ravel() for grid in np.meshgrid(nodes, azimuth, indexing="ij"))
    radius = np.sqrt(1 - z * z)
    Y = ref.sh_basis(np.stack([radius * np.cos(angle), radius * np.sin(angle), z], axis=-1), 3)
    area = np.repeat(weights, 12) * 2 * np.pi / 12
    np.testing.assert_allclose(Y.T @ (area[:, None] * Y), np.eye(16), atol=1e-14)


def test_sh_constants_are_the_published_ones() -> None:
    """3DGS's signs, in its order, at directions that make one monomial stand alone."""
    x, y, z = np.eye(3)
    np.testing.assert_allclose(
        ref.sh_basis(np.array([x]), 1)[0], [0.28209479177387814, 0, 0, -0.4886025119029199]
    )
    np.testing.assert_allclose(ref.sh_basis(np.array([y]), 1)[0, 1:], [-0.4886025119029199, 0, 0])
    at_z = ref.sh_basis(np.array([z]), 3)[0]
    np.testing.assert_allclose(at_z[[2, 6, 12]], [0.4886025119029199, 0.6307831305050401, 0.7463526651802308])
    diagonal = ref.sh_basis(np.array([[1.0, 1, 1]]) / np.sqrt(3), 3)[0]
    np.testing.assert_allclose(
        diagonal[[4, 5, 7]] * 3, [1.0925484305920792, -1.0925484305920792, -1.0925484305920792]
    )
    np.testing.assert_allclose(diagonal[10] * 3**1.5, 2.890611442640554)
    np.testing.assert_allclose(
        diagonal[[9, 11, 13, 15]] * 3**1.5 / 2,
        [-0.5900435899266435, -0.4570457994644658, -0.4570457994644658, 0.5900435899266435],
    )


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_sh_gradient(degree: int, count: int) -> None:
    rng = np.random.default_rng(11 + degree)
    viewmat = look(rng)
    sh, means = rng.normal(size=(count, 16, 3)), rng.normal(size=(count, 3))
    colors, v = ref.sh_colors(sh, means, viewmat, degree), rng.normal(size=(count, 3))
    if count == 7:
        assert (colors == 0).any() and (colors > 0).any()
    v_sh, v_means, v_viewmat = ref.sh_colors_backward(sh, means, viewmat, degree, v)
    assert not v_sh[:, (degree + 1) ** 2 :].any()
    check_gradients(
        lambda s, m, w: float(np.sum(v * ref.sh_colors(s, m, w, degree))),
        [sh, means, viewmat],
        [v_sh, v_means, v_viewmat],
    )


def test_sh_at_the_camera_centre_stays_finite() -> None:
    viewmat = look(np.random.default_rng(12))
    centre = -viewmat[:3, :3].T @ viewmat[:3, 3]
    means = centre + np.array([[0, 0, 0], [1, 2, -2.0]])
    sh = np.ones((2, 16, 3)) * 0.1
    assert np.isfinite(ref.sh_colors(sh, means, viewmat, 3)).all()
    assert all(np.isfinite(v).all() for v in ref.sh_colors_backward(sh, means, viewmat, 3, np.ones((2, 3))))
    np.testing.assert_allclose(  # the direction that the other one sees
        ref.sh_colors(sh, means, viewmat, 1)[1, 0],
        0.5 + 0.1 * (0.28209479177387814 + 0.4886025119029199 * (-2 - 2 - 1) / 3),
    )


# --- blending -------------------------------------------------------------------------------------


def splats(rng: np.random.Generator, count: int, channels: int = 3) -> list[Array]:
    """means2d (some outside), conics, opacities, colours, depths."""
    root = rng.normal(size=(count, 2, 2)) * 1.5
    cov = root @ root.swapaxes(-1, -2) + 0.3 * np.eye(2)
    return [
        rng.uniform(-1, 1, size=(count, 2)) * 9 + [WIDTH / 2, HEIGHT / 2],
        ref.conic(cov),
        rng.uniform(0.1, 0.95, size=count),
        rng.normal(size=(count, channels)),
        rng.uniform(1, 9, size=count),
    ]


def rasterized(
    inputs: Sequence[Array], background: Array | None = None, smooth: bool = False
) -> ref.Rasterized:
    means2d, conics, opacities, colors, depths = inputs
    return ref.rasterize(means2d, conics, opacities, colors, depths, WIDTH, HEIGHT, background, smooth=smooth)


def rasterized_backward(
    inputs: Sequence[Array], background: Array | None, v_colors: Array, v_alphas: Array, smooth: bool = False
) -> ref.RasterizedGradients:
    means2d, conics, opacities, colors, depths = inputs
    out = rasterized(inputs, background, smooth)
    return ref.rasterize_backward(
        means2d, conics, opacities, colors, depths, WIDTH, HEIGHT, background, out, v_colors, v_alphas,
        smooth=smooth,
    )  # fmt: skip


def blend_by_the_book(inputs: Sequence[Array], background: Array) -> tuple[Array, Array, Array, Array]:
    """The contract's sentence, one pixel and one Gaussian at a time."""
    means2d, conics, opacities, colors, depths = inputs
    image, T_final = np.zeros((HEIGHT, WIDTH, colors.shape[1])), np.zeros((HEIGHT, WIDTH))
    n_contrib, n_blended = np.zeros((HEIGHT, WIDTH), int), np.zeros((HEIGHT, WIDTH), int)
    order = sorted(range(len(depths)), key=lambda i: depths[i])
    for row in range(HEIGHT):
        for column in range(WIDTH):
            T = 1.0
            for rank, i in enumerate(order):
                d = np.array([column + 0.5, row + 0.5]) - means2d[i]
                a, b, c = conics[i]
                alpha = min(0.999, opacities[i] * np.exp(-0.5 * d @ np.array([[a, b], [b, c]]) @ d))
                if alpha < 1 / 255:
                    continue
                if T * (1 - alpha) <= 1e-4:
                    break
                image[row, column] += colors[i] * alpha * T
                T *= 1 - alpha
                n_contrib[row, column], n_blended[row, column] = rank + 1, n_blended[row, column] + 1
            image[row, column] += T * background
            T_final[row, column] = T
    return image, T_final, n_contrib, n_blended


@pytest.mark.parametrize(("count", "channels"), [(0, 3), (1, 1), (12, 3), (80, 5)])
def test_blending_is_the_contracts(count: int, channels: int) -> None:
    rng = np.random.default_rng(13)
    inputs, background = splats(rng, count, channels), rng.normal(size=channels)
    inputs[2][::3] = 1.0  # α meets its clamp
    if count == 80:
        inputs[4][:40] = 5.0  # equal depths keep their order
    out = rasterized(inputs, background)
    image, T_final, n_contrib, n_blended = blend_by_the_book(inputs, background)
    np.testing.assert_allclose(out.colors, image, atol=1e-13)
    np.testing.assert_allclose(out.T_final, T_final, rtol=1e-12)
    np.testing.assert_allclose(out.alphas, 1 - T_final, atol=1e-15)
    np.testing.assert_array_equal(out.n_contrib, n_contrib)
    np.testing.assert_array_equal(out.n_blended, n_blended)
    if count == 80:
        assert (n_contrib < 60).any(), "no pixel stopped early; the scene does not test what it should"


@pytest.mark.parametrize(("count", "channels"), [(0, 3), (1, 1), (8, 3), (5, 6)])
def test_smooth_blending_gradient(count: int, channels: int) -> None:
    rng = np.random.default_rng(14)
    (*inputs, depths), background = splats(rng, count, channels), rng.normal(size=channels)
    v_colors, v_alphas = rng.normal(size=(HEIGHT, WIDTH, channels)), rng.normal(size=(HEIGHT, WIDTH))

    def f(*x: Array) -> float:
        out = rasterized([*x[:4], depths], x[4], smooth=True)
        return float(np.sum(out.colors * v_colors) + np.sum(out.alphas * v_alphas))

    out = rasterized_backward([*inputs, depths], background, v_colors, v_alphas, smooth=True)
    check_gradients(
        f,
        [*inputs, background],
        [out.means2d, out.conics, out.opacities, out.colors, out.background],
    )


@pytest.mark.parametrize("with_background", [False, True])
def test_hard_blending_gradient_outside_the_marked_pixels(with_background: bool) -> None:
    """Clamped α, skipped and stopped Gaussians, dozens to a pixel."""
    rng = np.random.default_rng(15)
    *inputs, depths = splats(rng, 60)
    inputs[2][::2] = rng.uniform(0.9, 1.0, size=30)
    inputs[0][:6] = np.floor(inputs[0][:6].clip(1, 9)) + 0.5  # centred on a pixel, so that α meets its clamp
    inputs[2][:6] = 1.0
    background = rng.normal(size=3) if with_background else None
    # A step of 1e-6 moves α by less than 1e-4 of itself: a margin of 1e-3 keeps clear of every decision.
    means2d, conics, opacities, _ = inputs
    marked = ref.near_threshold(means2d, conics, opacities, depths, WIDTH, HEIGHT, margin=1e-3)
    assert 0 < marked.sum() < 0.3 * marked.size
    v_colors = np.where(marked[..., None], 0.0, rng.normal(size=(HEIGHT, WIDTH, 3)))
    v_alphas = np.where(marked, 0.0, rng.normal(size=(HEIGHT, WIDTH)))

    def f(*x: Array) -> float:
        out = rasterized([*x[:4], depths], x[4] if with_background else None)
        return float(np.sum(out.colors * v_colors) + np.sum(out.alphas * v_alphas))

    blended = rasterized([*inputs, depths], background)
    assert (blended.n_contrib < 40).any() and blended.n_blended.max() > 8
    out = rasterized_backward([*inputs, depths], background, v_colors, v_alphas)
    gradients = [out.means2d, out.conics, out.opacities, out.colors]
    assert all(np.isfinite(g).all() for g in gradients)
    if background is not None:
        inputs, gradients = [*inputs, background], [*gradients, out.background]
    check_gradients(f, inputs, gradients, h=1e-6, fourth_order=False)


def test_clamped_alpha_passes_no_gradient() -> None:
    conics, colors = np.array([[0.5, 0.0, 0.5]]), np.ones((1, 3))
    inputs = [np.array([[6.5, 5.5]]), conics, np.array([1.0]), colors, np.array([2.0])]
    v_colors, v_alphas = np.zeros((HEIGHT, WIDTH, 3)), np.zeros((HEIGHT, WIDTH))
    v_colors[5, 6] = 1.0
    out = rasterized_backward(inputs, None, v_colors, v_alphas)
    assert out.opacities[0] == 0 and not out.conics.any() and not out.means2d.any()
    np.testing.assert_allclose(out.colors, 0.999)


def test_absolute_gradient_is_the_sum_over_single_pixels() -> None:
    rng = np.random.default_rng(16)
    inputs = splats(rng, 9)
    v_colors, v_alphas = rng.normal(size=(HEIGHT, WIDTH, 3)), rng.normal(size=(HEIGHT, WIDTH))
    total = np.zeros((9, 2))
    for row in range(HEIGHT):
        for column in range(WIDTH):
            only = np.zeros((HEIGHT, WIDTH))
            only[row, column] = 1
            one = rasterized_backward(inputs, None, v_colors * only[..., None], v_alphas * only)
            total += np.abs(one.means2d)
    out = rasterized_backward(inputs, None, v_colors, v_alphas)
    np.testing.assert_allclose(out.means2d_abs, total, rtol=1e-10)
    assert (out.means2d_abs > np.abs(out.means2d)).any()


def test_thousands_of_gaussians_are_blended_and_undone() -> None:
    """T undone through a thousand steps comes back to one: the colours' gradients say so."""
    rng = np.random.default_rng(17)
    inputs = splats(rng, 1000)
    inputs[1] *= 0.1
    inputs[2] = np.full(1000, 0.01)
    out = rasterized(inputs)
    assert out.n_blended.max() > 100
    v = rasterized_backward(inputs, None, np.ones((HEIGHT, WIDTH, 3)), np.zeros((HEIGHT, WIDTH)))
    np.testing.assert_allclose(v.colors.sum(axis=0), out.alphas.sum(), rtol=1e-12)  # Σ α T = 1 − T_final


@pytest.mark.parametrize(
    ("opacities", "depths", "expected"),
    [
        ([0.5, 0.5], [1.0, 2.0], False),
        ([(1 + 5e-5) / 255, 0.5], [1.0, 2.0], True),  # on the skip, from above
        ([(1 - 5e-5) / 255, 0.5], [1.0, 2.0], True),  # and from below, although it is not blended
        ([(1 + 5e-3) / 255, 0.5], [1.0, 2.0], False),
        ([0.999 * (1 - 5e-5), 0.5], [1.0, 2.0], True),  # on the clamp
        ([1.0, 0.5], [1.0, 2.0], False),  # clamped beyond doubt
        ([0.99, 0.99 * (1 + 1e-7)], [1.0, 2.0], True),  # T = 1e-4: on the stop
        ([0.99, 0.98], [1.0, 2.0], False),
        ([0.5, 0.5], [2.0, 2.0 + 1e-7], True),  # may change places
        ([0.5, 0.5], [2.0, 2.0], False),  # equal: the order is the input's
    ],
)
def test_near_threshold(opacities: list[float], depths: list[float], expected: bool) -> None:
    means2d = np.array([[4.5, 3.5], [4.5, 3.5]])
    conics = np.array([[50.0, 0, 50.0]] * 2)  # so small that the other pixels see nothing
    marked = ref.near_threshold(
        means2d, conics, np.array(opacities), np.array(depths), WIDTH, HEIGHT, margin=1e-4
    )
    assert marked[3, 4] == expected
    assert marked.sum() == int(expected)


def test_only_marked_pixels_decide_otherwise_after_rounding() -> None:
    rng = np.random.default_rng(26)
    flipped = marked_pixels = 0
    for _ in range(40):
        means2d, conics, opacities, colors, depths = splats(rng, 150)
        opacities[::4] = 0.999  # many α at the clamp's edge
        marked = ref.near_threshold(means2d, conics, opacities, depths, WIDTH, HEIGHT)
        exact = rasterized([means2d, conics, opacities, colors, depths])
        rounded = [  # float32's rounding, made a little worse so that the few frames suffice
            x * (1 + rng.uniform(-4e-6, 4e-6, size=x.shape)) for x in (means2d, conics, opacities)
        ]
        other = rasterized([*rounded, colors, depths])
        different = (exact.n_contrib != other.n_contrib) | (exact.n_blended != other.n_blended)
        assert not (different & ~marked).any()
        flipped, marked_pixels = flipped + different.sum(), marked_pixels + marked.sum()
        np.testing.assert_allclose(other.colors[~marked], exact.colors[~marked], atol=2e-4)
    assert flipped > 0
    assert marked_pixels < 0.1 * 40 * WIDTH * HEIGHT


def test_near_threshold_is_silent_after_the_stop() -> None:
    means2d, conics = np.full((4, 2), 4.5), np.array([[50.0, 0, 50.0]] * 4)
    opacities = np.array([0.98, 0.98, 0.98, 1 / 255])
    depths = np.array([1.0, 2.0, 3.0, 4.0])
    assert not ref.near_threshold(means2d, conics, opacities, depths, WIDTH, HEIGHT).any()
    assert ref.near_threshold(means2d, conics, opacities, depths[::-1], WIDTH, HEIGHT).any()


# --- the whole chain ------------------------------------------------------------------------------


def random_scene(rng: np.random.Generator, count: int, sh_degree: int | None) -> tuple[ref.Scene, ref.Camera]:
    """Gaussians in front of the camera; of many, one beyond the clamp and one behind."""
    viewmat = look(rng)
    points = rng.uniform([-1.5, -1.2, 2.5], [1.5, 1.2, 6], size=(count, 3))
    if count > 3:
        points[2] = [4.0, 0.2, 3.0]
        points[3, 2] = -1.0
    quats, scales, opacities = shapes(rng, count)
    colors = rng.normal(size=(count, 4) if sh_degree is None else (count, (sh_degree + 1) ** 2, 3))
    scene = ref.Scene(to_world(points, viewmat), quats, scales, opacities, colors, sh_degree)
    return scene, ref.Camera(viewmat, intrinsics(OFF_CENTRE), WIDTH, HEIGHT)


@pytest.mark.parametrize(
    ("count", "sh_degree", "render_mode", "antialiased"),
    [
        (0, 3, "RGB+ED", False),
        (1, 3, "RGB", True),
        (5, 3, "RGB+ED", False),
        (5, 1, "RGB+D", True),
        (6, None, "RGB", False),
        (6, None, "ED", True),
        (4, None, "D", False),
    ],
)
def test_render_gradient(count: int, sh_degree: int | None, render_mode: str, antialiased: bool) -> None:
    rng = np.random.default_rng(18)
    scene, camera = random_scene(rng, count, sh_degree)
    colour_channels = 4 if sh_degree is None else 3
    background = rng.normal(size=colour_channels)
    limits = ref.frustum_limits(camera.K, WIDTH, HEIGHT)

    def rendered(*x: Array) -> ref.Rendered:
        return ref.render(
            replace(scene, means=x[0], quats=x[1], scales=x[2], opacities=x[3], colors=x[4]),
            replace(camera, viewmat=x[5], K=x[6]),
            background=x[7],
            render_mode=render_mode,
            antialiased=antialiased,
            smooth=True,
            limits=limits,
        )

    parameters = [scene.means, scene.quats, scene.scales, scene.opacities, scene.colors]
    inputs = [*parameters, camera.viewmat, camera.K, background]
    out = rendered(*inputs)
    assert out.colors.shape[2] == colour_channels * ("RGB" in render_mode) + ("D" in render_mode)
    v_colors, v_alphas = rng.normal(size=out.colors.shape), rng.normal(size=out.alphas.shape)
    # Where next to nothing lies in a pixel, the curvature of the expected depth defeats any step.
    faint = out.alphas < 1e-3
    v_colors[faint] = 0.0
    v_alphas[faint] = 0.0

    def f(*x: Array) -> float:
        image = rendered(*x)
        return float(np.sum(image.colors * v_colors) + np.sum(image.alphas * v_alphas))

    v = ref.render_backward(out, v_colors, v_alphas)
    if "RGB" not in render_mode:
        assert not v.colors.any()
        v = replace(v, background=np.zeros(colour_channels))
    check_gradients(
        f, inputs, [v.means, v.quats, v.scales, v.opacities, v.colors, v.viewmat, v.K, v.background], h=5e-5
    )


def test_hard_render_gradient_outside_the_untrusted_pixels() -> None:
    rng = np.random.default_rng(19)
    scene, camera = random_scene(rng, 25, 1)
    scene.opacities[:10] = 0.995
    limits = ref.frustum_limits(camera.K, WIDTH, HEIGHT)
    out = ref.render(scene, camera, limits=limits)
    marked = ref.untrusted_pixels(out, margin=2e-3)
    assert marked.mean() < 0.3
    v_colors = np.where(marked[..., None], 0.0, rng.normal(size=out.colors.shape))

    def f(*x: Array) -> float:
        moved = ref.render(
            ref.Scene(x[0], x[1], x[2], x[3], x[4], 1), replace(camera, viewmat=x[5], K=x[6]), limits=limits
        )
        return float(np.sum(moved.colors * v_colors))

    v = ref.render_backward(out, v_colors)
    check_gradients(
        f,
        [scene.means, scene.quats, scene.scales, scene.opacities, scene.colors, camera.viewmat, camera.K],
        [v.means, v.quats, v.scales, v.opacities, v.colors, v.viewmat, v.K],
        h=1e-6,
        fourth_order=False,
    )


def test_empty_scene_is_the_background() -> None:
    scene, camera = random_scene(np.random.default_rng(20), 0, 0)
    out = ref.render(scene, camera, background=np.array([0.1, 0.2, 0.3]))
    np.testing.assert_array_equal(out.colors, np.broadcast_to([0.1, 0.2, 0.3], (HEIGHT, WIDTH, 3)))
    assert not out.alphas.any()


def test_one_gaussian_lands_where_the_pinhole_says() -> None:
    """A point at the centre of pixel (row 3, column 9), opaque to a half, covers it by a half."""
    camera = ref.Camera(np.eye(4), intrinsics(OFF_CENTRE), WIDTH, HEIGHT)
    mean = np.array([[(9.5 - 4.2) / 13 * 2, (3.5 - 7.9) / 12 * 2, 2.0]])
    scene = ref.Scene(
        mean, np.array([[1.0, 0, 0, 0]]), np.full((1, 3), 0.01), np.array([0.5]), np.array([[1.0, 0.5]])
    )
    out = ref.render(scene, camera, render_mode="RGB+ED")
    np.testing.assert_allclose(out.colors[3, 9], [0.5, 0.25, 2.0])
    assert np.argmax(out.alphas) == 3 * WIDTH + 9


# --- loss and optimiser ---------------------------------------------------------------------------


def pictures(rng: np.random.Generator, height: int, width: int) -> tuple[Array, Array]:
    x = rng.uniform(size=(height, width, 3))
    return x, np.clip(x + 0.2 * rng.normal(size=x.shape), 0, 1)


def test_ssim_is_skimages_inside() -> None:
    x, y = pictures(np.random.default_rng(21), 40, 33)
    _, full = structural_similarity(
        x, y, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0,
        channel_axis=-1, full=True,
    )  # fmt: skip
    np.testing.assert_allclose(ssim_map(x, y)[5:-5, 5:-5], full[5:-5, 5:-5], atol=1e-12)
    assert ref.ssim(x, x) == pytest.approx(1.0, abs=1e-12)


def test_ssim_pads_with_zeros() -> None:
    x, y = pictures(np.random.default_rng(22), 6, 8)
    padded_x, padded_y = (np.pad(image, ((9, 9), (9, 9), (0, 0))) for image in (x, y))
    np.testing.assert_allclose(ssim_map(x, y), ssim_map(padded_x, padded_y)[9:-9, 9:-9], atol=1e-14)


@pytest.mark.parametrize(("height", "width"), [(13, 15), (3, 4), (1, 1)])
def test_ssim_gradient(height: int, width: int) -> None:
    x, y = pictures(np.random.default_rng(23), height, width)
    check_gradients(lambda image: 100 * ref.ssim(image, y), [x], [100 * ref.ssim_backward(x, y)])


@pytest.mark.parametrize("masked", [False, True])
def test_loss_gradient(masked: bool) -> None:
    rng = np.random.default_rng(24)
    x, y = pictures(rng, 9, 12)
    y += np.where(np.abs(x - y) < 1e-3, 2e-3, 0.0)  # away from the kink of |x − y|
    mask = np.round(rng.uniform(size=(9, 12)), 1) * (rng.uniform(size=(9, 12)) > 0.3) if masked else None
    v = ref.l1_ssim_loss_backward(x, y, mask)
    check_gradients(lambda image: 100 * ref.l1_ssim_loss(image, y, mask), [x], [100 * v])
    weights = np.ones((9, 12)) if mask is None else mask
    l1 = np.mean(np.abs(x - y) * weights[..., None])
    similarity = ref.ssim(x * weights[..., None], y * weights[..., None])
    assert ref.l1_ssim_loss(x, y, mask) == pytest.approx(0.8 * l1 + 0.2 * (1 - similarity))
    assert not v[weights == 0].any()


def test_adam_is_its_closed_form() -> None:
    """After t steps the moments are exponentially weighted means of the gradients, weights summing to one."""
    rng = np.random.default_rng(25)
    gradients, start = rng.normal(size=(7, 4)), rng.normal(size=4)
    parameter, first, second = start, np.zeros(4), np.zeros(4)
    expected = start.copy()
    for step in range(1, 8):
        parameter, first, second = ref.adam_step(
            parameter, gradients[step - 1], first, second, step, lr=0.02, beta1=0.8, beta2=0.95, eps=1e-3
        )
        mean = np.average(gradients[:step], axis=0, weights=0.8 ** np.arange(step)[::-1])
        square = np.average(gradients[:step] ** 2, axis=0, weights=0.95 ** np.arange(step)[::-1])
        expected -= 0.02 * mean / (np.sqrt(square) + 1e-3)
        np.testing.assert_allclose(parameter, expected, rtol=1e-12)


def test_adam_first_step_is_the_rate() -> None:
    gradient = np.array([3.0, -1e-6, 40.0])
    parameter, _, _ = ref.adam_step(np.zeros(3), gradient, np.zeros(3), np.zeros(3), 1, lr=0.1)
    np.testing.assert_allclose(parameter, -0.1 * np.sign(gradient), rtol=1e-8)
