"""slang/splat/windshield.slang against float64: points and rays through polynomials of all orders, before each kind of lens."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py.gpu.kernels import UserType
from splat_py.gsplat.cameras import behind_windshield
from splat_py.shaders import camera_model as shader
from tests.shaders.camera_models import (
    Project,
    along,
    bent,
    bent_plane,
    cameras,
    fields_of,
    fisheye,
    ftheta,
    ftheta_lenses,
    lens_of,
    lenses,
    opencv_pinhole,
    orthographic,
    pinhole,
    windshield,
)
from tests.shaders.oracle import Array, assert_like, assert_value, float32

COUNT = 40
# The reference of a lens, the kind of its coefficients, and the windshield's order, by the lens's type.
LENSES: dict[str, tuple[Project, str, int]] = {
    "Pinhole": (pinhole, "", 1),
    "OpenCVPinhole": (opencv_pinhole, "bent", 2),
    "Fisheye": (fisheye, "fisheye", 3),
    "FTheta": (ftheta, "f-theta", 5),
    "Orthographic": (orthographic, "", 4),
}


def seen(lens: str, order: int) -> UserType:
    return behind_windshield(windshield(order), lens)


def inputs(kind: str) -> tuple[dict[str, Array], Array]:
    """Cameras and points, some behind cameras that see behind themselves."""
    rng = np.random.default_rng(7)
    made: dict[str, Callable[[], Array]] = {
        "": lambda: np.zeros((COUNT, 12)),
        "bent": lambda: lenses(rng, COUNT) * 0.3,
        "fisheye": lambda: lenses(rng, COUNT, fisheye=True),
        "f-theta": lambda: ftheta_lenses(rng, COUNT, of_distances=False),
    }
    angles = rng.uniform(1, 50, COUNT)
    angles[::2] = 180 - angles[::2] if kind in ("fisheye", "f-theta") else angles[::2]
    t = along(angles, rng.uniform(0, 360, COUNT), np.exp(rng.uniform(-1, 1, COUNT)))
    return cameras(rng, COUNT) | fields_of(float32(made[kind]())), float32(t)


@pytest.mark.parametrize("lens", LENSES)
def test_points(lens: str) -> None:
    """Pixels, and the gradient of every number of the camera and of the point."""
    project, kind, order = LENSES[lens]
    camera, t = inputs(kind)
    glass = windshield(order)

    def one(focal: Tensor, principal: Tensor, t: Tensor, numbers: Tensor) -> Tensor:
        polynomials = glass.horizontal_poly, glass.vertical_poly
        if lens != "Orthographic":
            return project(focal, principal, bent(polynomials, t), numbers)
        return project(focal, principal, torch.cat([bent_plane(polynomials, t[:2]), t[2:]]), numbers)

    def f(camera: dict[str, Tensor], t: Tensor) -> Tensor:
        rows = zip(camera["focal"], camera["principal"], t, lens_of(camera), strict=True)
        return torch.stack([one(*row) for row in rows])

    assert_like(shader.projectThrough[seen(lens, order)], f, [camera, t], value=(1e-5, 1e-5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lens", LENSES)
def test_rays(lens: str) -> None:
    """Rays are the lens's own, bent by the polynomials for rays from the camera."""
    _, kind, order = LENSES[lens]
    camera, _ = inputs(kind)
    pixels = float32(np.random.default_rng(3).uniform(8, 40, (COUNT, 2)))
    glass, own = windshield(order), shader.rayOf[lens](camera, pixels)
    found = shader.rayOf[seen(lens, order)](camera, pixels)
    polynomials = glass.horizontal_poly_inverse, glass.vertical_poly_inverse
    if lens != "Orthographic":
        expected = torch.stack([bent(polynomials, d) for d in torch.from_numpy(own["direction"]).double()])
        assert_value(found, {"origin": np.zeros((COUNT, 3)), "direction": expected.numpy()}, atol=1e-6)
        return
    points = torch.stack([bent_plane(polynomials, o[:2]) for o in torch.from_numpy(own["origin"]).double()])
    origins = np.pad(points.numpy(), ((0, 0), (0, 1)))
    assert_value(found, {"origin": origins, "direction": own["direction"]}, atol=1e-6)


def test_gradients_of_rays() -> None:
    """A ray has the gradients of a pinhole's intrinsics."""
    camera, _ = inputs("")
    pixels = float32(np.random.default_rng(3).uniform(8, 40, (COUNT, 2)))
    glass = windshield(3)
    polynomials = glass.horizontal_poly_inverse, glass.vertical_poly_inverse

    def f(camera: dict[str, Tensor]) -> dict[str, Tensor]:
        slopes = (torch.from_numpy(pixels) - camera["principal"]) / camera["focal"]
        directions = torch.stack([bent(polynomials, torch.cat([slope, torch.ones(1)])) for slope in slopes])
        return {"origin": 0 * directions, "direction": directions}

    assert_like(shader.rayOf[seen("Pinhole", 3)], f, [camera], [pixels], value=(1e-5, 1e-6), atol=1e-5)


def test_what_the_lens_does_not_see_behind_glass_is_not_seen() -> None:
    camera, _ = inputs("")
    one = {name: field[0] for name, field in camera.items()}
    t = np.array([[0.1, 0.2, 1], [0.1, 0.2, -1], [0, 0, 0]])
    np.testing.assert_array_equal(shader.isInDomainThrough[seen("Pinhole", 1)](one, t), [True, False, False])
