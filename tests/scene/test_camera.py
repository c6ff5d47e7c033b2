from __future__ import annotations

import numpy as np
import pytest

from splat_py.errors import SplatError
from splat_py.scene import Camera, orbit
from splat_py.scene.camera import find_focus, find_subject, mean_up
from tests.scene.captures import ring

K = np.array([[50.0, 0, 24], [0, 60, 16], [0, 0, 1]])


def project(camera: Camera, point: np.ndarray) -> np.ndarray:
    x = camera.K @ (camera.viewmat[:3, :3] @ point + camera.viewmat[:3, 3])
    return x[:2] / x[2]


def test_look_at_puts_the_target_in_the_middle_and_up_upwards() -> None:
    eye, target = np.array([3.0, -2, 5]), np.array([0.5, 1, 0])
    camera = Camera.look_at(eye, target, (0, 0, 1), 40, 64, 48)
    np.testing.assert_allclose(camera.position, eye, atol=1e-12)
    np.testing.assert_allclose(project(camera, target), (32, 24), atol=1e-9)
    assert project(camera, np.add(target, (0, 0, 0.1)))[1] < 24
    # OpenCV axes: what lies along forward × up is to the right.
    assert project(camera, target + 0.1 * np.cross(camera.forward, (0, 0, 1)))[0] > 32
    # A point at half the field of view above the axis is on the upper edge.
    rim = eye + camera.forward - np.tan(np.radians(20)) * camera.viewmat[1, :3]
    np.testing.assert_allclose(project(camera, rim), (32, 0), atol=1e-9)


def test_scaling_keeps_every_point_at_the_same_share_of_the_picture() -> None:
    camera = Camera(np.eye(4), K, 49, 31, "a")
    small = camera.scaled(0.25)
    assert (small.width, small.height, small.name) == (12, 8, "a")
    point = np.array([0.1, -0.2, 1.5])
    np.testing.assert_allclose(project(small, point) / (12, 8), project(camera, point) / (49, 31))
    assert camera.scaled(0.001).width == 1
    with pytest.raises(SplatError, match="scaled by 0"):
        camera.scaled(0)


@pytest.mark.parametrize(
    ("viewmat", "K", "width", "message"),
    [
        (np.full((4, 4), np.nan), K, 48, "viewmat holds NaN"),
        (np.eye(3), K, 48, "viewmat has shape"),
        (np.diag([1.0, 1, 0, 1]), K, 48, "singular"),
        (np.diag([2.0, 2, 2, 1]), K, 48, "scaled"),
        (np.diag([-1.0, 1, 1, 1]), K, 48, "mirrored"),
        (np.eye(4) + np.eye(4)[[3, 0, 1, 2]], K, 48, "last row"),
        (np.eye(4), np.diag([0.0, 1, 1]), 48, "focal lengths"),
        (np.eye(4), K + np.eye(3)[[1, 0, 2]], 48, "no skew"),
        (np.eye(4), np.full((3, 3), np.inf), 48, "K holds NaN"),
        (np.eye(4), K, 0, "width is 0"),
        (np.eye(4), K, 2.5, "width is 2.5"),
        (np.eye(4), K, float("inf"), "width is inf"),
        (np.eye(4), K, 10**12, "width is 1000000000000"),
        (np.eye(4) + 1e30 * np.eye(4)[:, [3, 1, 2, 0]] * [0, 0, 0, 1], K, 48, r"viewmat holds 1e\+30; rescale"),
        (np.eye(4), K * [[1e10], [1], [1]], 48, r"focal length in K is 5e\+11 pixels; calibrate"),
        (np.eye(4), K - 1e10 * np.eye(3)[[2, 1, 0]] * [0, 0, 1], 48, r"principal point in K is 1e\+10 pixels; calibrate"),
    ],
)
def test_bad_cameras_are_refused(viewmat: np.ndarray, K: np.ndarray, width: int, message: str) -> None:
    with pytest.raises(SplatError, match=f"camera 'v'.*{message}"):
        Camera(viewmat, K, width, 32, "v")


@pytest.mark.parametrize("target", [(0, 0, 0), (0, 0, 5)])
def test_look_at_needs_a_direction_apart_from_up(target: tuple[int, int, int]) -> None:
    with pytest.raises(SplatError, match="look_at needs"):
        Camera.look_at((0, 0, 0), target, (0, 0, 1), 40, 8, 8)


def test_cameras_cannot_be_changed() -> None:
    camera = Camera(np.eye(4), K, 48, 32)
    with pytest.raises(ValueError, match="read-only"):
        camera.viewmat[0, 0] = 2


def test_the_focus_of_a_ring_is_what_it_looks_at() -> None:
    focus, seen = find_focus(ring())
    assert seen
    np.testing.assert_allclose(focus, (1, 2, 3), atol=1e-9)
    np.testing.assert_allclose(mean_up(ring()), (0, 0, 1), atol=1e-9)


def test_up_is_not_tilted_by_a_partial_ring_that_looks_down() -> None:
    arc = ring(40)[:8]
    np.testing.assert_allclose(mean_up(arc), (0, 0, 1), atol=0.03)
    # The mean of the cameras' own up directions alone would be far off.
    own = -np.mean([camera.viewmat[1, :3] for camera in arc], axis=0)
    assert np.linalg.norm(own / np.linalg.norm(own) - (0, 0, 1)) > 0.3


@pytest.mark.parametrize("fan", ["parallel", "outward"])
def test_no_focus_where_cameras_look_at_no_common_point(fan: str) -> None:
    cameras = []
    for i in range(6):
        a = 2 * np.pi * i / 6
        eye = np.array([np.cos(a), np.sin(a), 0])
        target = np.add(eye, (0, 0, 1)) if fan == "parallel" else 2 * eye
        cameras.append(Camera.look_at(eye, target, (0, 1, 0.1), 50, 8, 8))
    focus, seen = find_focus(cameras)
    assert not seen
    np.testing.assert_allclose(focus, (0, 0, 4.4 if fan == "parallel" else 0), atol=1e-6)


def test_orbit_of_a_ring_is_the_ring() -> None:
    path = orbit(ring(), 72)
    positions = np.stack([camera.position for camera in path])
    np.testing.assert_allclose(np.linalg.norm(positions[:, :2] - (1, 2), axis=1), 4, atol=1e-6)
    np.testing.assert_allclose(positions[:, 2], 5, atol=1e-6)
    for camera in path:
        np.testing.assert_allclose(project(camera, np.array([1.0, 2, 3])), (24, 16), atol=1e-6)
        assert camera.viewmat[1, 2] < 0  # the scene's up is up in the picture
    steps = np.linalg.norm(np.diff(positions, axis=0, append=positions[:1]), axis=1)
    assert steps.max() < 1.01 * steps.min()
    assert (path[0].width, path[0].height) == (48, 32)


def test_orbit_of_an_arc_stays_in_the_arc_and_closes() -> None:
    cameras = ring(36)[30:] + ring(36)[:7]  # from −60 to +60 degrees, wrapping round zero
    positions = np.stack([camera.position for camera in orbit(cameras, 60)]) - (1, 2, 3)
    azimuth = np.degrees(np.arctan2(positions[:, 1], positions[:, 0]))
    assert -61 < azimuth.min() < -40
    assert 40 < azimuth.max() < 61
    steps = np.linalg.norm(np.diff(positions, axis=0, append=positions[:1]), axis=1)
    assert steps.max() < 0.1 * 4 * 2


@pytest.mark.parametrize("count", [1, 2])
def test_orbit_of_few_cameras_moves(count: int) -> None:
    positions = np.stack([camera.position for camera in orbit(ring(9)[:count], 10)])
    assert np.isfinite(positions).all()
    assert np.ptp(positions, axis=0).max() > 0.1


def test_orbit_needs_a_camera() -> None:
    with pytest.raises(SplatError, match="needs a camera"):
        orbit([], 5)


def before_a_wall() -> tuple[list[Camera], np.ndarray, np.ndarray]:
    """Cameras that turn before a wall and aim at a point on it, points of the wall and of a ball before it, and the ball."""
    rng = np.random.default_rng(0)
    ball = np.array([0.3, -1.5, 0.4])
    wall = rng.uniform((-4, 0, -4), (4, 0, 4), (4000, 3))
    points = np.concatenate([wall, ball + 0.3 * rng.normal(size=(400, 3))])
    angles = np.radians(np.linspace(-50, 50, 12))
    eyes = [(5 * np.sin(a), -5 * np.cos(a), 0.5 + 0.5 * np.sin(3 * a)) for a in angles]
    return [Camera.look_at(eye, (0, 0, 0), (0, 0, 1), 45, 48, 64) for eye in eyes], points, ball


def test_an_orbit_frames_the_subject_and_not_the_wall_behind_it() -> None:
    cameras, points, ball = before_a_wall()
    subject = find_subject(cameras, points)
    assert subject is not None
    assert np.linalg.norm(subject - ball) < 0.6 * np.linalg.norm(find_focus(cameras)[0] - ball)

    def worst(path: list[Camera]) -> float:
        return max(np.abs(project(camera, ball) / (48, 64) - 0.5).max() for camera in path)

    assert worst(orbit(cameras, 20, points)) < 0.15 < worst(orbit(cameras, 20))


def test_no_subject_where_no_camera_has_points() -> None:
    cameras = ring()
    assert find_subject(cameras, np.zeros((0, 3))) is None
    assert find_subject(cameras[:1], cameras[0].position - 5 * cameras[0].forward + np.zeros((3, 3))) is None
    plain, path = orbit(cameras, 5), orbit(cameras, 5, np.zeros((0, 3)))
    np.testing.assert_array_equal([camera.viewmat for camera in path], [camera.viewmat for camera in plain])


def test_an_orbit_all_around_centres_what_stands_there() -> None:
    """A disc, as wide as it is flat, with the focus above it, and things far away that are not the subject."""
    rng = np.random.default_rng(1)
    a, r = rng.uniform(0, 2 * np.pi, 500), 1.5 * np.sqrt(rng.uniform(0, 1, 500))
    disc = np.stack([1 + r * np.cos(a), 2 + r * np.sin(a), np.full(500, 2.6)], axis=1)
    far = np.array([1, 2, 3]) + 30 * rng.normal(size=(100, 3))

    def middles(path: list[Camera]) -> np.ndarray:
        rows = np.array([[project(camera, point)[1] for point in disc] for camera in path])
        return (rows.min(axis=1) + rows.max(axis=1)) / 2

    centred = middles(orbit(ring(), 8, np.concatenate([disc, far]))) - 16
    assert np.abs(centred).max() < 1.0 < np.abs(middles(orbit(ring(), 8)) - 16).min()
