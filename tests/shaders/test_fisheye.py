"""slang/splat/fisheye.slang."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from splat_py.shaders import camera_model
from splat_py.shaders import fisheye as shader
from tests.shaders.camera_models import NO_LENS, along, check_axes, check_project, fields_of, fisheye, lenses
from tests.shaders.oracle import assert_value

RNG = np.random.default_rng(54)
# Degrees from the optical axis.
ANGLES = {
    "on the axis": [0.0] * 8,
    "beside the axis": [1e-6, 1e-4, 1e-3, 3e-3, 5e-3, 6e-3, 0.01, 0.03],
    "near the axis": [0.1, 0.3, 0.5, 1, 2, 4, 8, 10],
    "in view": [12, 20, 30, 40, 50, 60, 70, 80],
    "beside and behind the camera": [85, 89, 90, 91, 100, 120, 150, 170],
}


def points(where: str) -> np.ndarray:
    rng = np.random.default_rng([54, len(where)])
    angles = np.repeat(ANGLES[where], 4)
    return along(angles, rng.uniform(0, 360, len(angles)), np.exp(rng.uniform(-2, 2, len(angles))))


def lens(is_bent: bool, count: int) -> np.ndarray:
    return lenses(np.random.default_rng(59), count, fisheye=True) if is_bent else np.zeros((count, 12))


@pytest.mark.parametrize("is_bent", [False, True])
@pytest.mark.parametrize("where", ANGLES)
def test_project(where: str, is_bent: bool) -> None:
    t = points(where)
    check_project("Fisheye", fisheye, t, lens(is_bent, len(t)))


@pytest.mark.parametrize("is_bent", [False, True])
@pytest.mark.parametrize("where", ANGLES)
def test_axes(where: str, is_bent: bool) -> None:
    t = points(where)
    # Gradients of coefficients are sums of powers of the angle that cancel, up to a hundred.
    check_axes("Fisheye", fisheye, t, lens(is_bent, len(t)), atol=2e-5)


def test_as_opencv() -> None:
    t = along(np.linspace(1, 85, 30), RNG.uniform(0, 360, 30), np.exp(RNG.uniform(-2, 2, 30)))
    bent = lenses(RNG, 1, fisheye=True)[0]
    K = np.array([[30.0, 0, 5], [0, 40, 7], [0, 0, 1]])
    expected, _ = cv2.fisheye.projectPoints(t[:, None], np.zeros(3), np.zeros(3), K, bent[:4])
    camera = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": [30.0, 40], "principal": [5.0, 7]}
    assert_value(shader.fisheyePoint(camera | fields_of(bent), t), expected[:, 0])


def test_what_would_be_folded_back_is_outside_the_domain() -> None:
    """θ - 0.1 θ³ grows up to θ = 1.826, 104.6 degrees; without coefficients everything but the opposite of the axis counts."""
    t = along(np.array([0.0, 30, 60, 90, 104, 105, 130, 170]), np.full(8, 40.0), np.ones(8))
    camera = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": [30.0, 40], "principal": [5.0, 7]}
    bent = camera | fields_of(np.pad([-0.1], (0, 11)))
    inside = camera_model.isInDomainThrough["Fisheye"]
    np.testing.assert_array_equal(inside(bent, t), [True] * 5 + [False] * 3)
    assert np.all(inside(camera | NO_LENS, t))


def test_the_angle_is_the_distance_from_the_principal_point() -> None:
    camera = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": [30.0, 30], "principal": [5.0, 7], **NO_LENS}
    t = along(np.array([0.0, 10, 45, 80, 90, 135]), np.array([0.0, 30, 60, 170, 250, 330]), np.ones(6))
    distance = np.linalg.norm(shader.fisheyePoint(camera, t) - [5, 7], axis=1)
    assert_value(distance, 30 * np.radians([0, 10, 45, 80, 90, 135]))


def test_the_reference_s_series_meets_the_closed_form() -> None:
    focal, principal, lens = (torch.tensor(x).double() for x in ([30.0, 40.0], [0.0, 0.0], [0.0] * 12))
    for radius in (9.99e-3, 1.001e-2):
        t = torch.tensor([radius, 0.0, 1.0]).double()
        torch.testing.assert_close(fisheye(focal, principal, t, lens)[0], focal[0] * torch.atan(t[0]), rtol=1e-14, atol=0)
