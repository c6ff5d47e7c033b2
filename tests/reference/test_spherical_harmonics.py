"""The basis against SciPy's, which has 3DGS's order and signs, and colours near the camera."""

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
