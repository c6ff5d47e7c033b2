"""slang/splat/camera_model.slang and camera_models.slang: each camera against float64, fisheyes and lenses against OpenCV."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import shaders
from splat_py.shaders import camera_model
from splat_py.shaders import camera_models as shader
from tests.shaders.camera_models import (
    IMAGE,
    NO_LENS,
    Project,
    along,
    cameras,
    check_axes,
    check_project,
    clamped,
    equirectangular,
    fields_of,
    fisheye,
    ftheta,
    ftheta_lenses,
    lenses,
    opencv_pinhole,
    orthographic,
    pinhole,
)
from tests.shaders.oracle import Array, assert_like, assert_value

RNG = np.random.default_rng(57)
K = np.array([[30.0, 0, 5], [0, 40, 7], [0, 0, 1]])
CAMERA = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": [30.0, 40], "principal": [5.0, 7]}


def cone(*angles: float, each: int = 1) -> Array:
    """Points at these angles in degrees from the optical axis, in any direction, at many distances."""
    repeated = np.repeat(angles, each)
    return along(repeated, RNG.uniform(0, 360, len(repeated)), np.exp(RNG.uniform(-2, 2, len(repeated))))


def sphere(longitudes: Array, latitudes: Array) -> Array:
    """Points [N, 3] from degrees, at many distances."""
    a, b = np.radians(longitudes), np.radians(latitudes)
    direction = np.stack([np.sin(a) * np.cos(b), np.sin(b), np.cos(a) * np.cos(b)], -1)
    return direction * np.exp(RNG.uniform(-2, 2, len(direction)))[:, None]


@dataclass(frozen=True)
class Case:
    """A camera and points, and further arguments of `check_project` and `check_axes`."""

    model: str
    project: Project
    points: Array
    lens: Array | None = None
    projecting: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)


# Points, some beyond the image, where linearisation is clamped.
BEYOND = cone(*[0.0, 1, 5, 10, 20, 25, 30, 40, 80], each=5)
WITHIN_40 = BEYOND[:40]
LENSES = lenses(RNG, 40)
FISHEYE_ANGLES = {
    "on the axis": [0.0] * 8,
    "beside the axis": [1e-6, 1e-4, 1e-3, 3e-3, 5e-3, 6e-3, 0.01, 0.03],
    "near the axis": [0.1, 0.3, 0.5, 1, 2, 4, 8, 10],
    "in view": [12, 20, 30, 40, 50, 60, 70, 80],
    "beside and behind": [85, 89, 90, 91, 100, 120, 150, 170],
}
ON_SPHERE = {
    "all around": sphere(RNG.uniform(-180, 180, 60), RNG.uniform(-70, 70, 60)),
    "where the series change": sphere(np.repeat(np.arange(-157.5, 180, 22.5), 3) + 1e-3, np.tile([-22.5, 1e-4, 67.5], 15)),
    "beside the seam": sphere(np.array([179, -179, 179.999, -179.999] * 4), np.linspace(-60, 60, 16)),
    "towards the poles": sphere(
        RNG.uniform(-180, 180, 20), np.array([80, -80, 85, -85, 89, -89, 89.5, -89.5, 89.9, -89.9] * 2)
    ),
}
CASES = {
    "pinhole": Case(
        "Pinhole", pinhole, BEYOND, axes={"linearised_at": lambda f, p, t, lens: clamped(f, p, t, 0 * lens, **IMAGE)}
    ),
    # Points behind the camera count, too.
    "orthographic": Case("Orthographic", orthographic, RNG.normal(size=(40, 3)) * [3, 2, 10] + [0, 0, 4]),
    "lens": Case("OpenCVPinhole", opencv_pinhole, WITHIN_40, LENSES, axes={"linearised_at": partial(clamped, **IMAGE)}),
    # Gradients of a fisheye's coefficients are sums of powers of the angle that cancel, up to a hundred.
    **{
        f"{'bent ' * bent}fisheye {where}": Case(
            "Fisheye",
            fisheye,
            cone(*angles, each=4),
            lenses(RNG, 4 * len(angles), fisheye=True) if bent else np.zeros((4 * len(angles), 12)),
            axes={"atol": 2e-5},
        )
        for where, angles in FISHEYE_ANGLES.items()
        for bent in (False, True)
    },
    **{
        f"f-theta of {'distances' if of_distances else 'angles'} {where}": Case(
            "FTheta",
            ftheta,
            cone(*angles, each=4),
            ftheta_lenses(RNG, 4 * len(angles), of_distances=of_distances),
            {"atol": 1e-5},
            {"atol": 2e-5},
        )
        for where, angles in FISHEYE_ANGLES.items()
        for of_distances in (False, True)
    },
    **{
        f"sphere {where}": Case("Equirectangular", equirectangular, points, None, {"atol": 1e-5}, {"by_row": True})
        for where, points in ON_SPHERE.items()
    },
}


@pytest.mark.parametrize("name", CASES)
def test_project(name: str) -> None:
    case = CASES[name]
    check_project(case.model, case.project, case.points, case.lens, **case.projecting)


@pytest.mark.parametrize("name", CASES)
def test_axes(name: str) -> None:
    """Points lie inside and outside the clamp of the field of view."""
    case = CASES[name]
    check_axes(case.model, case.project, case.points, case.lens, **case.axes)


def _off_the_pole(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    """The point moved to where the sine of the angle to the poles' axis is 1e-3."""
    sine = (t[0] ** 2 + t[2] ** 2).sqrt() / t.norm()
    return torch.stack([t[0] * 1e-3 / sine, t[1], t[2] * 1e-3 / sine])


def test_axes_at_the_poles_are_those_beside_them() -> None:
    t = sphere(RNG.uniform(-180, 180, 8), np.array([89.96, -89.96, 89.99, -89.99, 89.999, -89.999, 89.9999, -89.9999]))
    check_axes("Equirectangular", equirectangular, t, linearised_at=_off_the_pole, by_row=True)


def test_lenses_as_opencv() -> None:
    for lens in LENSES[:3]:
        # OpenCV's order: k1 k2 p1 p2 k3 k4 k5 k6 s1 s2 s3 s4.
        order = lens[[0, 1, 6, 7, 2, 3, 4, 5, 8, 9, 10, 11]]
        expected, _ = cv2.projectPoints(WITHIN_40[:20], np.zeros(3), np.zeros(3), K, order)
        found = camera_model.projectThrough["OpenCVPinhole"](CAMERA | fields_of(lens), WITHIN_40[:20])
        assert_value(found, expected[:, 0])


def test_fisheyes_as_opencv() -> None:
    t, lens = cone(*np.linspace(1, 85, 30)), lenses(RNG, 1, fisheye=True)[0]
    expected, _ = cv2.fisheye.projectPoints(t[:, None], np.zeros(3), np.zeros(3), K, lens[:4])
    assert_value(shader.fisheyePoint(CAMERA | fields_of(lens), t), expected[:, 0])


def test_what_a_lens_would_fold_back_is_outside_the_domain() -> None:
    """r - r³/3 grows up to r = 1; a pole of the ratio; a dip in between; and a lens that keeps everything."""
    slopes = np.array([0.0, 0.5, 0.9, 0.99, 1.01, 1.5, 2, 5, 100, 1000])
    t = np.stack([slopes * 0.6, slopes * -0.8, np.ones(10)], -1) * 3
    lens = np.zeros((4, 12))
    lens[0, 0] = -1 / 3
    lens[1, 3] = -1.0
    # r - r³ + 0.4 r⁵ falls from r² = 0.5, and grows again from r² = 1.
    lens[2, :2] = -1.0, 0.4
    lens[3, 0] = 0.1
    expected = slopes < np.array([1.0, 1.0, 0.5**0.5, np.inf])[:, None]
    for i, (coefficients, wanted) in enumerate(zip(lens, expected, strict=True)):
        inside = camera_model.isInDomainThrough["OpenCVPinhole"](CAMERA | fields_of(coefficients), t)
        # Far outside the image, a dip may lie between the sampled points.
        np.testing.assert_array_equal(inside[:8], wanted[:8])
        assert i == 2 or (inside == wanted).all()


def test_what_a_fisheye_would_fold_back_is_outside_the_domain() -> None:
    """θ + k θⁿ grows up to n k θⁿ⁻¹ = -1, here at 104.6 degrees; without a lens, only the opposite of the axis is outside."""
    t = along(np.array([0.0, 30, 60, 90, 104, 105, 130, 170]), np.full(8, 40.0), np.ones(8))
    inside = camera_model.isInDomainThrough["Fisheye"]
    for i, n in enumerate((3, 5, 7, 9)):
        lens = np.zeros(12)
        lens[i] = -1 / (n * np.radians(104.6) ** (n - 1))
        np.testing.assert_array_equal(inside(CAMERA | fields_of(lens), t), [True] * 5 + [False] * 3, err_msg=f"k{i + 1}")
    assert np.all(inside(CAMERA | NO_LENS, t))


@pytest.mark.parametrize("of_distances", [False, True])
def test_beyond_its_largest_angle_an_ftheta_camera_sees_points_at_it(of_distances: bool) -> None:
    camera = CAMERA | fields_of(ftheta_lenses(RNG, 1, of_distances=of_distances)[0])
    largest, azimuths, distances = np.degrees(2.8), np.linspace(0, 300, 6), np.linspace(1, 3, 6)
    beyond, below = (
        camera_model.pixelOf["FTheta"](camera, along(np.full(6, angle), azimuths, distances)) for angle in (170, largest - 1e-3)
    )
    assert_value(beyond[:, :2], below[:, :2], rtol=1e-4)
    np.testing.assert_array_equal([beyond[:, 2], below[:, 2]], [[0] * 6, [1] * 6])


def test_the_reference_s_series_meets_the_closed_form() -> None:
    focal, principal, lens = (torch.tensor(x).double() for x in ([30.0, 40.0], [0.0, 0.0], [0.0] * 12))
    for radius in (9.99e-3, 1.001e-2):
        t = torch.tensor([radius, 0.0, 1.0]).double()
        torch.testing.assert_close(fisheye(focal, principal, t, lens)[0], focal[0] * torch.atan(t[0]), rtol=1e-14, atol=0)


def test_the_sphere_fills_the_image() -> None:
    """Pixels beyond it see nothing."""
    focal, principal = np.array([100, 50]) / [2 * np.pi, np.pi], np.array([50.0, 25])
    camera = {name: one[0] for name, one in cameras(RNG, 1).items()} | {"focal": focal, "principal": principal} | NO_LENS
    t = np.array([[0, 0, 1], [1, 0, 0], [-2, 0, 0], [1e-6, 0, -1], [-1e-6, 0, -1], [0, 3, 1e-3], [0, -3, 1e-3], [0, 1, 1]])
    expected = [[50, 25], [75, 25], [25, 25], [100, 25], [0, 25], [50, 50], [50, 0], [50, 37.5]]
    assert_value(camera_model.projectThrough["Equirectangular"](camera, t), np.array(expected), atol=1e-2, rtol=0)
    assert_value(camera_model.depthThrough["Equirectangular"](t), np.linalg.norm(t, axis=1))
    rays = camera_model.rayOf["Equirectangular"](camera, np.array([[50, 25], [99.9, 25], [100.1, 25], [-0.1, 25], [50, 50.1]]))
    np.testing.assert_array_equal(rays["direction"].any(-1), [True, True, False, False, False])
    poles = np.array([[0, 1, 0], [0, -2, 0], [0, 0, 0], [0, 1, 1e-5]])
    np.testing.assert_array_equal(camera_model.isInDomainThrough["Equirectangular"](camera, poles), [False, False, False, True])


def test_angle() -> None:
    angle = np.concatenate([RNG.uniform(-np.pi, np.pi, 200), np.arange(-7, 8) * np.pi / 8])
    radius = 10 ** RNG.uniform(-3, 3, len(angle))
    y, x = (radius * np.sin(angle)).astype(np.float32), (radius * np.cos(angle)).astype(np.float32)
    assert_value(shader.polarAngle(y, x), np.arctan2(y.astype(float), x), rtol=5e-7, atol=5e-7)
    v_y, v_x = shaders.gradients(shader.polarAngle, 1.0, y, x)
    squared = x.astype(float) ** 2 + y.astype(float) ** 2
    np.testing.assert_allclose(v_y * radius, x / squared * radius, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(v_x * radius, -y / squared * radius, rtol=1e-4, atol=1e-5)


def test_rest_of_the_arctangent() -> None:
    x = np.linspace(0.05, np.tan(np.pi / 8), 50)
    assert_value(shader.arctangentRest(x**2), (np.arctan(x) / x - 1) / x**2, rtol=1e-6)
    np.testing.assert_allclose(shader.arctangentRest(0.0), -1 / 3, rtol=1e-6)


def test_square_root() -> None:
    x = 10 ** RNG.uniform(-12, 6, 100)
    assert_like(shader.squareRoot, torch.sqrt, [x], value=(1e-6, 0), rtol=1e-5, atol=0)
