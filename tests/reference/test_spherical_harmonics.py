"""The basis against SciPy's and the published constants."""

import numpy as np
import torch
from scipy.special import sph_harm_y

import tests.reference as ref
from tests.reference.arrays import leaf
from tests.reference.checking import random_viewmat
from tests.reference.spherical_harmonics import sh_colors


def test_sh_is_the_real_form_of_scipys_complex_harmonics() -> None:
    directions = np.random.default_rng(10).normal(size=(40, 3))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    polar, azimuth = np.arccos(directions[:, 2]), np.arctan2(directions[:, 1], directions[:, 0])
    columns = []
    for degree in range(5):
        for order in range(-degree, degree + 1):
            value = sph_harm_y(degree, abs(order), polar, azimuth)
            columns.append(value.real if order == 0 else np.sqrt(2) * (value.imag if order < 0 else value.real))
    np.testing.assert_allclose(ref.sh_basis(directions, 4), np.stack(columns, axis=-1), atol=1e-14)


def test_sh_is_orthonormal() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(6)
    azimuth = np.arange(12) * 2 * np.pi / 12
    z, angle = (grid.ravel() for grid in np.meshgrid(nodes, azimuth, indexing="ij"))
    radius = np.sqrt(1 - z * z)
    Y = ref.sh_basis(np.stack([radius * np.cos(angle), radius * np.sin(angle), z], axis=-1), 4)
    area = np.repeat(weights, 12) * 2 * np.pi / 12
    np.testing.assert_allclose(Y.T @ (area[:, None] * Y), np.eye(25), atol=1e-14)


def test_sh_constants_are_the_published_ones() -> None:
    """3DGS's signs and order, at directions where one monomial remains."""
    x, y, z = np.eye(3)
    np.testing.assert_allclose(ref.sh_basis(np.array([x]), 1)[0], [0.28209479177387814, 0, 0, -0.4886025119029199])
    np.testing.assert_allclose(ref.sh_basis(np.array([y]), 1)[0, 1:], [-0.4886025119029199, 0, 0])
    at_z = ref.sh_basis(np.array([z]), 3)[0]
    np.testing.assert_allclose(at_z[[2, 6, 12]], [0.4886025119029199, 0.6307831305050401, 0.7463526651802308])
    diagonal = ref.sh_basis(np.array([[1.0, 1, 1]]) / np.sqrt(3), 3)[0]
    np.testing.assert_allclose(diagonal[[4, 5, 7]] * 3, [1.0925484305920792, -1.0925484305920792, -1.0925484305920792])
    np.testing.assert_allclose(diagonal[10] * 3**1.5, 2.890611442640554)
    np.testing.assert_allclose(
        diagonal[[9, 11, 13, 15]] * 3**1.5 / 2,
        [-0.5900435899266435, -0.4570457994644658, -0.4570457994644658, 0.5900435899266435],
    )


def test_colours_of_means_at_and_beside_the_camera() -> None:
    """Colours and their gradients are finite, and the other mean has the colour of its direction."""
    viewmat = random_viewmat(np.random.default_rng(12))
    means = -viewmat[:3, :3].T @ viewmat[:3, 3] + np.array([[0, 0, 0], [1, 2, -2.0]])
    leaves = [leaf(np.full((2, 16, 3), 0.1)), leaf(means), leaf(viewmat)]
    for degree in (1, 3):
        colors = sh_colors(*leaves, degree)
        assert all(v.isfinite().all() for v in (colors, *torch.autograd.grad(colors.sum(), leaves)))
        if degree == 1:
            wanted = 0.5 + 0.1 * (0.28209479177387814 + 0.4886025119029199 * (-2 - 2 - 1) / 3)
            np.testing.assert_allclose(colors[1, 0].item(), wanted)
