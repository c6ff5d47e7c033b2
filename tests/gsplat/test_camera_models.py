"""gsplat's camera objects: pixels and rays against float64, and rolling shutters that see each point in its own row."""

from typing import Any

import pytest
import torch
from splat_py.gsplat.cuda._wrapper import FThetaCameraDistortionParameters, create_camera_model
from torch import Tensor

from splat_py.gsplat import RollingShutterType
from tests.refusals import refused
from tests.shaders.camera_models import Project, bent, fisheye, ftheta, opencv_pinhole, orthographic, pinhole, windshield

WIDTH, HEIGHT = 48, 30
FOCAL, PRINCIPAL = torch.tensor([[30.0, 32], [26, 25]]), torch.tensor([[24.0, 15], [23, 16]])
FTHETA = FThetaCameraDistortionParameters(1, (0, 0.0495, -5.5e-5, 0, 0, 0), (0, 20, 0.5, 0, 0, 0), 1.2, (1.01, 0.02, 0.01))
LENS = {
    "radial_coeffs": torch.tensor([[0.1, 0.02, 0, 0, 0, 0], [-0.1, 0, 0, 0, 0, 0]]),
    "tangential_coeffs": torch.tensor([[0.01, -0.02], [0, 0]]),
    "thin_prism_coeffs": torch.tensor([[0.01, 0, 0.02, 0], [0, 0, 0, 0]]),
}
# The camera model, its arguments, its reference, and the coefficients that the reference takes.
CAMERAS: dict[str, tuple[str, dict[str, Any], Project, Tensor]] = {
    "pinhole": ("pinhole", {}, pinhole, torch.zeros(2, 12)),
    "lens": ("pinhole", LENS, opencv_pinhole, torch.cat([*LENS.values()], -1)),
    "ortho": ("ortho", {}, orthographic, torch.zeros(2, 12)),
    "fisheye": ("fisheye", {"radial_coeffs": LENS["radial_coeffs"][:, :4]}, fisheye, LENS["radial_coeffs"]),
    "f-theta": ("ftheta", {"ftheta_coeffs": FTHETA}, ftheta, torch.tensor([0, 20, 0.5, 0, 0, 0, 1.2, 0, 1.01, 0.02, 0.01, 0])),
    "windshield": ("pinhole", {"external_distortion_coeffs": windshield(2)}, pinhole, torch.zeros(2, 12)),
}


def camera(name: str, **others: Any) -> Any:
    model, given, _, _ = CAMERAS[name]
    focal = None if model == "ftheta" else FOCAL
    return create_camera_model(model, WIDTH, HEIGHT, PRINCIPAL, focal, **given, **others)


def points(count: int = 60) -> Tensor:
    """Points in camera space, for both cameras: before them, beside the image, and behind."""
    random = torch.Generator().manual_seed(5)
    near = torch.rand(count, 3, generator=random) * torch.tensor([1.6, 1.0, 0.0]) - torch.tensor([0.8, 0.5, -1.0])
    return torch.cat([near, torch.tensor([[3.0, 0.1, 1.0], [0.1, 0.2, -1.0]])]).expand(2, -1, -1)


@pytest.mark.parametrize("name", CAMERAS)
def test_pixels_and_rays(name: str) -> None:
    _, _, project, lenses = CAMERAS[name]
    given = points()
    pixels, valid = camera(name).camera_ray_to_image_point(given)
    glass = windshield(2).horizontal_poly, windshield(2).vertical_poly
    rows = zip(*(t.double() for t in (FOCAL, PRINCIPAL, given, lenses.expand(2, -1))), strict=True)
    expected = torch.stack(
        [torch.stack([project(f, p, bent(glass, t) if name == "windshield" else t, k) for t in row]) for f, p, row, k in rows]
    )
    size = torch.tensor([WIDTH, HEIGHT])
    seen = ((expected >= 0) & (expected < size)).all(-1)
    # The lens folds the point beside the image back into it.
    seen[:, -2:] = False
    assert torch.equal(valid, seen) and 60 < valid.sum() <= 120
    torch.testing.assert_close(pixels[valid].double(), expected[valid], rtol=0, atol=1e-4)
    beside = camera(name).camera_ray_to_image_point(given, 10.0)[1]
    assert beside[:, :-2].all() and not beside[:, -1].any()

    if name == "ortho":
        one = torch.tensor([0.0, 0, 1])
        rays, looks = camera(name).image_point_to_camera_ray(pixels)
        assert looks.all() and torch.equal(rays, one.expand_as(rays))
        origins, rays, _ = camera(name).image_point_to_world_ray_shutter_pose(pixels, *[torch.eye(7)[3].expand(2, -1)] * 2)
        torch.testing.assert_close(origins[valid][:, :2], given[valid][:, :2])
        assert torch.equal(rays, one.expand_as(rays)) and not origins[..., 2].any()
        return
    rays, looks = camera(name).image_point_to_camera_ray(pixels)
    assert looks[valid].all()
    if name != "windshield":
        torch.testing.assert_close(rays[valid], torch.nn.functional.normalize(given[valid], dim=-1), rtol=0, atol=1e-5)


def pose(*numbers: float) -> Tensor:
    numbers = torch.tensor(numbers)
    return torch.cat([numbers[:3], torch.nn.functional.normalize(numbers[3:], dim=0)]).expand(2, -1)


START, END = pose(0.1, 0.0, 0.2, 1.0, 0.02, -0.03, 0.01), pose(0.3, -0.1, 0.1, -1.0, 0.03, 0.02, 0.05)


@pytest.mark.parametrize("shutter", [s for s in RollingShutterType if s != RollingShutterType.GLOBAL])
def test_rolling_shutters(shutter: RollingShutterType) -> None:
    """Points lie on the rays of their own pixels, whose times rise from 0 to 1 in whole rows or columns."""
    seeing = camera("lens", rs_type=shutter)
    world = points()[..., :60, :] * torch.tensor([1.0, 1.0, 3.0])
    pixels, valid = seeing.world_point_to_image_point_shutter_pose(world, START, END, 0.5)
    origins, directions, looks = seeing.image_point_to_world_ray_shutter_pose(pixels, START, END)
    assert valid.sum() > 60 and looks[valid].all() and not (directions[~looks].any() or origins[~looks].any())
    off = torch.linalg.cross(world - origins, directions).norm(dim=-1)
    # Steps to a row may end in turns at its two sides.
    assert (off[valid] < 1e-4).float().mean() > 0.9 and off[valid].max() < 0.05
    still = create_camera_model("pinhole", WIDTH, HEIGHT, PRINCIPAL, FOCAL, **LENS)
    assert (still.world_point_to_image_point_shutter_pose(world, START, END, 0.5)[0] - pixels)[valid].abs().max() > 1

    down = shutter in (RollingShutterType.ROLLING_TOP_TO_BOTTOM, RollingShutterType.ROLLING_BOTTOM_TO_TOP)
    count = HEIGHT if down else WIDTH
    centres = torch.full((count, 2), 3.5)
    centres[:, int(down)] = torch.arange(count) + 0.5
    times = seeing.shutter_relative_frame_time(centres)
    backwards = shutter in (RollingShutterType.ROLLING_BOTTOM_TO_TOP, RollingShutterType.ROLLING_RIGHT_TO_LEFT)
    torch.testing.assert_close(times.flip(0) if backwards else times, torch.linspace(0, 1, count))
    one_row = create_camera_model("pinhole", 1, 1, PRINCIPAL, FOCAL, rs_type=shutter)
    assert (one_row.shutter_relative_frame_time(centres) == 0.5).all()


def test_a_global_shutter_has_one_pose() -> None:
    seeing = camera("pinhole")
    assert not seeing.shutter_relative_frame_time(points()[..., :2]).any()
    (pixels, _), (expected, _) = (seeing.world_point_to_image_point_shutter_pose(points(), START, at) for at in (START, END))
    torch.testing.assert_close(pixels, expected)


def test_fisheyes_end_at_the_corner() -> None:
    """As gsplat's, at the angle that an equidistant lens has in the image's farthest corner."""
    seeing = create_camera_model("fisheye", 40, 30, torch.tensor([20.0, 15]), torch.tensor([25.0, 25]))
    angles = torch.tensor([0.99, 1.01])
    rays = torch.stack([angles.sin(), 0 * angles, angles.cos()], -1)
    assert seeing.camera_ray_to_image_point(rays, 10.0)[1].tolist() == [True, False]


@pytest.mark.parametrize(
    ("model", "lens", "slopes", "found"),
    [
        # The lens folds at the slope 0.7698; five steps from 0.765 do not reach the slope before it.
        ("pinhole", {"radial_coeffs": torch.tensor([-0.25, 0, 0, 0, 0, 0])}, [0.7, 0.765, 0.8], [True, False, False]),
        ("fisheye", {}, [1.4, 1.43], [True, False]),
        # It folds at the angle 1.0, whose slope is 2/3.
        ("fisheye", {"radial_coeffs": torch.tensor([-1 / 3, 0, 0, 0])}, [0.65, 0.68], [True, False]),
    ],
)
def test_rays_end_where_gsplats_do(model: str, lens: dict[str, Tensor], slopes: list[float], found: list[bool]) -> None:
    seeing = create_camera_model(model, 100, 100, torch.tensor([50.0, 50]), torch.tensor([50.0, 50]), **lens)
    pixels = torch.tensor([[50 + 50 * slope, 50] for slope in slopes])
    assert seeing.image_point_to_camera_ray(pixels)[1].tolist() == found


def test_ftheta_has_rays_beyond_its_largest_angle() -> None:
    """It has none if the inverse polynomial is so far off that three steps are too few."""
    pixels = torch.tensor([[61.0, 31], [91.0, 31]])
    for inverse, found in (((0, 0.02, 0, 0, 0, 0), [True, True]), ((0, 0.04, 0, 0, 0, 0), [False, False])):
        coeffs = FThetaCameraDistortionParameters(1, inverse, (0, 45, 5, 0, 0, 0), 0.8, (1, 0, 0))
        seeing = create_camera_model("ftheta", 100, 60, torch.tensor([30.5, 30.5]), None, ftheta_coeffs=coeffs)
        rays, valid = seeing.image_point_to_camera_ray(pixels)
        assert valid.tolist() == found
        if all(found):
            angles = torch.atan2(rays[:, 0], rays[:, 2])
            torch.testing.assert_close(45 * angles + 5 * angles**2, torch.tensor([30.0, 60]))
            assert angles[1] > 0.8 and not rays[:, 1].any()
    broken = FThetaCameraDistortionParameters(1, (0, 1), (0, 45, 5, 0, 0, 0), 0.8, (1, 0, 0))
    seeing = create_camera_model("ftheta", 100, 60, torch.ones(2), None, ftheta_coeffs=broken)
    refused("ftheta_coeffs.pixeldist_to_angle_poly is missing or wrong", seeing.image_point_to_camera_ray, pixels)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"width": None}, "width is None; it must be a whole number of pixels"),
        ({"principal_points": torch.full((2,), torch.nan)}, "principal_points holds a number that is not finite"),
        ({"principal_points": None}, "principal_points is None"),
        ({"focal_lengths": None}, "focal_lengths is None"),
        ({"focal_lengths": torch.ones(3)}, r"focal_lengths has shape \[3\]"),
        ({"focal_lengths": -torch.ones(2)}, "a focal length that is not positive"),
        ({"camera_model": "ftheta"}, "focal_lengths mean nothing to camera_model='ftheta'"),
        ({"camera_model": "ftheta", "focal_lengths": None}, "ftheta_coeffs and camera_model='ftheta' belong together"),
        ({"camera_model": "ortho", "radial_coeffs": torch.zeros(4)}, "ortho camera model does not support radial_coeffs"),
        ({"rs_type": 7}, "rolling_shutter is 7; use a RollingShutterType"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], reason: str) -> None:
    sound = {"camera_model": "pinhole", "width": 4, "height": 4}
    sound |= {"principal_points": torch.ones(2), "focal_lengths": torch.ones(2)}
    refused(reason, create_camera_model, **sound | given)


def test_points_are_checked_and_may_be_few() -> None:
    seeing, still = camera("pinhole"), torch.eye(7)[3].expand(2, -1)
    for points in (torch.ones(2, 5, 2), torch.ones(3, 5, 3)):
        refused(r"camera_ray has shape .*; expected \[..., M, 3\] for cameras \[2\]", seeing.camera_ray_to_image_point, points)
    refused(r"image_points has shape", camera("f-theta").image_point_to_camera_ray, torch.ones(2, 5, 3))
    refused("image_points has dtype torch.float64", seeing.image_point_to_camera_ray, torch.ones(2, 5, 2).double())
    wrong = torch.ones(2, 5, 2), still, still[:, :6]
    refused(r"pose_end has shape \[2, 6\]", seeing.image_point_to_world_ray_shutter_pose, *wrong)
    assert seeing.image_point_to_camera_ray(torch.ones(2, 0, 2))[0].shape == (2, 0, 3)
    pixels, valid = seeing.camera_ray_to_image_point(torch.ones(2, 0, 3))
    assert pixels.shape == (2, 0, 2) and valid.shape == (2, 0)
    shared = torch.rand(5, 3) + 1
    expected = FOCAL[:, None] * shared[:, :2] / shared[:, 2:] + PRINCIPAL[:, None]
    torch.testing.assert_close(seeing.camera_ray_to_image_point(shared)[0], expected)


@pytest.mark.parametrize("given", [{"camera_model": "lidar"}, {"camera_model": "pinhole", "lidar_coeffs": object()}])
def test_lidars_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="lidar"):
        create_camera_model(**given, width=4, height=4, principal_points=torch.ones(2), focal_lengths=torch.ones(2))
