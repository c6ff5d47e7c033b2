"""slang/splat/equirectangular.slang."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py.shaders import camera_model
from tests.shaders.camera_models import NO_LENS, cameras, check_axes, check_project, equirectangular
from tests.shaders.oracle import assert_value

RNG = np.random.default_rng(58)


def points(longitudes: np.ndarray, latitudes: np.ndarray) -> np.ndarray:
    """[N, 3] in degrees, at many distances."""
    a, b = np.radians(longitudes), np.radians(latitudes)
    direction = np.stack([np.sin(a) * np.cos(b), np.sin(b), np.cos(a) * np.cos(b)], -1)
    return direction * np.exp(RNG.uniform(-2, 2, len(direction)))[:, None]


# Degrees.
POINTS = {
    "all around": points(RNG.uniform(-180, 180, 60), RNG.uniform(-70, 70, 60)),
    "where the arctangent's series change": points(
        np.repeat(np.arange(-157.5, 180, 22.5), 3) + 1e-3, np.tile([-22.5, 1e-4, 67.5], 15)
    ),
    "beside the seam": points(np.array([179, -179, 179.999, -179.999] * 4), np.linspace(-60, 60, 16)),
    "towards the poles": points(
        RNG.uniform(-180, 180, 20), np.array([80, -80, 85, -85, 89, -89, 89.5, -89.5, 89.9, -89.9] * 2)
    ),
}


@pytest.mark.parametrize("where", POINTS)
def test_project(where: str) -> None:
    check_project("Equirectangular", equirectangular, POINTS[where], atol=1e-5)


@pytest.mark.parametrize("where", POINTS)
def test_axes(where: str) -> None:
    check_axes("Equirectangular", equirectangular, POINTS[where], by_row=True)


def _off_the_pole(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    """At the sine 1e-3 of the angle to the poles' axis."""
    sine = (t[0] ** 2 + t[2] ** 2).sqrt() / t.norm()
    return torch.stack([t[0] * 1e-3 / sine, t[1], t[2] * 1e-3 / sine])


def test_axes_at_the_poles_are_those_beside_them() -> None:
    t = points(RNG.uniform(-180, 180, 8), np.array([89.96, -89.96, 89.99, -89.99, 89.999, -89.999, 89.9999, -89.9999]))
    check_axes("Equirectangular", equirectangular, t, linearised_at=_off_the_pole, by_row=True)


def test_the_sphere_fills_the_image() -> None:
    camera = {name: field[0] for name, field in cameras(RNG, 1).items()}
    camera |= {"focal": np.array([100, 50]) / [2 * np.pi, np.pi], "principal": np.array([50.0, 25])} | NO_LENS
    t = np.array([[0, 0, 1], [1, 0, 0], [-2, 0, 0], [1e-6, 0, -1], [-1e-6, 0, -1], [0, 3, 1e-3], [0, -3, 1e-3], [0, 1, 1]])
    expected = [[50, 25], [75, 25], [25, 25], [100, 25], [0, 25], [50, 50], [50, 0], [50, 37.5]]
    assert_value(camera_model.projectThrough["Equirectangular"](camera, t), np.array(expected), atol=1e-2, rtol=0)
    assert_value(camera_model.depthThrough["Equirectangular"](t), np.linalg.norm(t, axis=1))
    inside = camera_model.isInDomainThrough["Equirectangular"](
        camera, np.array([[0, 1, 0], [0, -2, 0], [0, 0, 0], [0, 1, 1e-5]])
    )
    np.testing.assert_array_equal(inside, [False, False, False, True])
