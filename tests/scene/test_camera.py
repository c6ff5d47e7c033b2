"""Cameras, and paths through captures of every kind: the scene in view, upright, no jolts; keyframes and their file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from splat_py import Camera, orbit
from splat_py.scene.camera import best_covered, find_focus, find_subject, mean_up, subject_sphere
from splat_py.scene.camera_paths import PATHS, Keyframe, KeyframePath, looks_outwards
from tests.refusals import refused
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
    # OpenCV axes: forward × up points to the right.
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
    refused("scaled by 0", camera.scaled, 0)


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
    refused(f"camera 'v'.*{message}", Camera, viewmat, K, width, 32, "v")


@pytest.mark.parametrize("target", [(0, 0, 0), (0, 0, 5)])
def test_look_at_needs_a_direction_apart_from_up(target: tuple[int, int, int]) -> None:
    refused("look_at needs", Camera.look_at, (0, 0, 0), target, (0, 0, 1), 40, 8, 8)


def test_cameras_cannot_be_changed() -> None:
    camera = Camera(np.eye(4), K, 48, 32)
    with pytest.raises(ValueError, match="read-only"):
        camera.viewmat[0, 0] = 2


def test_focus_and_up_of_a_ring_and_of_a_part() -> None:
    focus, seen = find_focus(ring())
    assert seen
    np.testing.assert_allclose(focus, (1, 2, 3), atol=1e-9)
    np.testing.assert_allclose(mean_up(ring()), (0, 0, 1), atol=1e-9)
    arc = ring(40)[:8]
    np.testing.assert_allclose(mean_up(arc), (0, 0, 1), atol=0.03)
    # The mean of the cameras' own up directions would be far off.
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


def test_the_subject_just_fits_between_the_farther_sides_of_pictures() -> None:
    center, radius = subject_sphere(ring())
    camera = ring()[3]
    np.testing.assert_allclose(center, (1, 2, 3), atol=1e-9)
    # The cone around the sphere touches the left and right edges, and goes beyond the others.
    slope = np.tan(np.arcsin(radius / np.linalg.norm(camera.position - center)))
    reach = slope * camera.K[[0, 1], [0, 1]] - (camera.width / 2, camera.height / 2)
    assert reach.min() == reach[0] == pytest.approx(0, abs=1e-9)
    # Close photographs of parts do not cut it off.
    close = [Camera.look_at((camera.position + 2 * center) / 3, center, (0, 0, 1), 40, 48, 32) for camera in ring()]
    assert subject_sphere([*close, *ring()])[1] == pytest.approx(radius)
    side = [Camera.look_at((x, 0, 0), (x, 0, 1), (0, 1, 0), 50, 8, 8) for x in (0, 1, 2)]
    refused("the cameras look at no common subject; say where it is with --crop", subject_sphere, side)


def test_orbits_of_a_ring_and_of_an_arc() -> None:
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
    cameras = ring(36)[30:] + ring(36)[:7]  # from −60 to +60 degrees, wrapping round zero
    positions = np.stack([camera.position for camera in orbit(cameras, 60)]) - (1, 2, 3)
    azimuth = np.degrees(np.arctan2(positions[:, 1], positions[:, 0]))
    assert -61 < azimuth.min() < -40
    assert 40 < azimuth.max() < 61
    assert np.linalg.norm(np.diff(positions, axis=0, append=positions[:1]), axis=1).max() < 0.1 * 4 * 2


@pytest.mark.parametrize("count", [1, 2])
def test_orbit_of_few_cameras_moves(count: int) -> None:
    positions = np.stack([camera.position for camera in orbit(ring(9)[:count], 10)])
    assert np.isfinite(positions).all()
    assert np.ptp(positions, axis=0).max() > 0.1


def test_an_orbit_begins_at_the_camera_that_sees_most() -> None:
    cameras = ring(36)
    points = np.array([1.0, 2, 3]) + 0.1 * np.random.default_rng(0).normal(size=(50, 3))
    turned = [camera if i == 20 else camera.moved(np.array([0, 1.0, 0]), np.zeros(3)) for i, camera in enumerate(cameras)]
    assert best_covered(turned, points) is turned[20]
    # A crowd that one camera alone shows does not make it the first.
    crowd = turned[3].position + 5 * turned[3].forward + 0.01 * np.random.default_rng(1).normal(size=(200, 3))
    assert best_covered([turned[3], *cameras[18:23]], np.concatenate([points, crowd])) in cameras[18:23]
    # Behind the middle, from that camera.
    first = orbit(cameras, 8, cameras[20].position + 10 * cameras[20].forward + np.zeros((5, 3)))[0]
    np.testing.assert_allclose(first.position, cameras[20].position, atol=1e-6)


def before_a_wall() -> tuple[list[Camera], np.ndarray, np.ndarray]:
    """Cameras that turn before a wall and aim at a point on it; points of the wall and of a ball before it; and the ball."""
    rng = np.random.default_rng(0)
    ball = np.array([0.3, -1.5, 0.4])
    wall = rng.uniform((-4, 0, -4), (4, 0, 4), (4000, 3))
    points = np.concatenate([wall, ball + 0.3 * rng.normal(size=(400, 3))])
    eyes = [(5 * np.sin(a), -5 * np.cos(a), 0.5 + 0.5 * np.sin(3 * a)) for a in np.radians(np.linspace(-50, 50, 12))]
    return [Camera.look_at(eye, (0, 0, 0), (0, 0, 1), 45, 48, 64) for eye in eyes], points, ball


def test_an_orbit_frames_the_subject_and_not_the_wall_behind_it() -> None:
    cameras, points, ball = before_a_wall()
    assert np.linalg.norm(find_subject(cameras, points) - ball) < 0.6 * np.linalg.norm(find_focus(cameras)[0] - ball)

    def worst(path: list[Camera]) -> float:
        return max(np.abs(project(camera, ball) / (48, 64) - 0.5).max() for camera in path)

    assert worst(orbit(cameras, 20, points)) < 0.15 < worst(orbit(cameras, 20))
    cameras = ring()
    assert find_subject(cameras, np.zeros((0, 3))) is None
    assert find_subject(cameras[:1], cameras[0].position - 5 * cameras[0].forward + np.zeros((3, 3))) is None
    plain, path = orbit(cameras, 5), orbit(cameras, 5, np.zeros((0, 3)))
    np.testing.assert_array_equal([camera.viewmat for camera in path], [camera.viewmat for camera in plain])


def test_an_orbit_all_around_centres_what_stands_there() -> None:
    """A disc that the orbit must centre, with the focus above it, and distant things that are not the subject."""
    rng = np.random.default_rng(1)
    a, r = rng.uniform(0, 2 * np.pi, 500), 1.5 * np.sqrt(rng.uniform(0, 1, 500))
    disc = np.stack([1 + r * np.cos(a), 2 + r * np.sin(a), np.full(500, 2.6)], axis=1)
    far = np.array([1, 2, 3]) + 30 * rng.normal(size=(100, 3))

    def middles(path: list[Camera]) -> np.ndarray:
        rows = np.array([[project(camera, point)[1] for point in disc] for camera in path])
        return (rows.min(axis=1) + rows.max(axis=1)) / 2

    centred = middles(orbit(ring(), 8, np.concatenate([disc, far]))) - 16
    assert np.abs(centred).max() < 1.0 < np.abs(middles(orbit(ring(), 8)) - 16).min()


POINTS = np.random.default_rng(3).normal((1, 2, 3), 0.3, (500, 3))


def rolled(cameras: list[Camera], degrees: float = 7.0) -> list[Camera]:
    """Cameras as people hold them: alternately tilted to either side."""
    turned = []
    for i, camera in enumerate(cameras):
        a = np.radians(degrees) * (-1) ** i
        roll = np.array([[np.cos(a), -np.sin(a), 0, 0], [np.sin(a), np.cos(a), 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
        turned.append(Camera(roll @ camera.viewmat, camera.K, camera.width, camera.height))
    return turned


def forward_facing() -> list[Camera]:
    eyes = [(x, -6, z) for x in (-0.6, -0.2, 0.2, 0.6) for z in (2.6, 3.0, 3.4)]
    return [Camera.look_at(np.add(eye, (1, 2, 0)), (1, 2, 3), (0, 0, 1), 40, 48, 32) for eye in eyes]


def room() -> list[Camera]:
    angles = 2 * np.pi * np.arange(12) / 12
    eyes = [np.array([1 + 0.4 * np.cos(a), 2 + 0.4 * np.sin(a), 3]) for a in angles]
    ahead = [np.array([np.cos(a), np.sin(a), 0.0]) for a in angles]
    return [Camera.look_at(eye, eye + way, (0, 0, 1), 60, 48, 32) for eye, way in zip(eyes, ahead, strict=True)]


AROUND = {"ring": ring(), "rolled": rolled(ring()), "arc": ring(40)[:10], "forward-facing": forward_facing()}


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("capture", AROUND)
def test_paths_keep_the_scene_in_view_and_the_right_side_up(name: str, capture: str) -> None:
    cameras = AROUND[capture]
    up, path = mean_up(cameras), PATHS[name](cameras, 60, POINTS)
    np.testing.assert_allclose(up, (0, 0, 1), atol=0.06)
    middle = POINTS.mean(0)
    for camera in path:
        assert -camera.viewmat[1, :3] @ up > 0
        assert abs(camera.viewmat[0, :3] @ up) < 1e-9
        x, y, depth = camera.K @ (camera.viewmat[:3, :3] @ middle + camera.viewmat[:3, 3])
        assert depth > 0 and 0 < x / depth < camera.width and 0 < y / depth < camera.height


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("capture", [*AROUND, "room"])
def test_paths_are_smooth(name: str, capture: str) -> None:
    cameras = room() if capture == "room" else AROUND[capture]
    path = PATHS[name](cameras, 240, POINTS)
    eyes, forwards = (np.stack([getattr(camera, part) for camera in path]) for part in ("position", "forward"))
    for values in (eyes, forwards):
        speeds = np.linalg.norm(np.diff(values, axis=0), axis=1)
        # With twenty-four times as many frames, the largest change is about twenty-four times smaller.
        assert speeds.max() < 0.1 * max(np.ptp(values, axis=0).max(), 1e-9) + 1e-12
        assert np.abs(np.diff(values, 2, axis=0)).max() <= 0.2 * speeds.max() + 1e-9


def test_upside_down_and_forward_facing_captures() -> None:
    # A world whose up is -y, as usual in COLMAP.
    turn = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])
    cameras = [Camera(camera.viewmat @ turn, camera.K, camera.width, camera.height) for camera in ring()]
    for path in PATHS.values():
        assert all(-camera.viewmat[1, :3] @ mean_up(cameras) > 0.1 for camera in path(cameras, 9))
    cameras = forward_facing()
    for path in PATHS.values():
        eyes = np.stack([camera.position for camera in path(cameras, 60, POINTS)])
        assert np.abs(eyes[:, 0] - 1).max() < 1.0 and (eyes[:, 1] < 2).all()


def test_a_room_is_shown_from_its_middle_and_a_dolly_goes_straight_ahead() -> None:
    cameras = room()
    assert looks_outwards(cameras) and not any(looks_outwards(capture) for capture in AROUND.values())
    path = PATHS["orbit"](cameras, 36)
    middle = np.mean([camera.position for camera in cameras], axis=0)
    outwards = [(camera.position - middle) @ camera.forward for camera in path]
    assert min(outwards) > 0 and max(np.linalg.norm(camera.position - middle) for camera in path) < 0.4
    azimuths = np.unwrap([np.arctan2(camera.forward[1], camera.forward[0]) for camera in path])
    assert abs(azimuths[-1] - azimuths[0]) == pytest.approx(2 * np.pi * 35 / 36)
    path = PATHS["dolly"](forward_facing(), 30, POINTS)
    eyes = np.stack([camera.position for camera in path])
    along = (eyes - eyes[0]) @ path[0].forward
    np.testing.assert_allclose(eyes, eyes[0] + along[:, None] * path[0].forward, atol=1e-9)
    assert (np.diff(along) > 0).all()
    assert along[-1] == pytest.approx(0.4 * np.linalg.norm(eyes[0] - POINTS.mean(0)), rel=0.15)


@pytest.mark.parametrize("name", PATHS)
def test_paths_of_few_cameras_and_frames(name: str) -> None:
    for cameras in (ring()[:1], ring()[:2], room()[:1]):
        for frames in (1, 2, 7):
            assert len(PATHS[name](cameras, frames)) == frames
    refused("needs a camera, but cameras is empty", PATHS[name], [], 3)


CAMERAS = [
    Camera.look_at(eye, (0, 0, 0), (0, 0, 1), fov, 64, 48)
    for eye, fov in (((4, 0, 1), 40), ((0, 4, 2), 50), ((-4, 1, 1), 60), ((-1, -4, 0.5), 30))
]
TIMES = (0.0, 1.0, 3.0, 3.5)


def keyframes(count: int = 4) -> KeyframePath:
    frames = zip(CAMERAS[:count], TIMES, strict=False)
    return KeyframePath(tuple(Keyframe.of_camera(camera, time) for camera, time in frames), (64, 48))


def test_a_path_goes_through_its_keyframes_and_comes_back_from_its_file(tmp_path: Path) -> None:
    cameras = keyframes().cameras(36)  # every tenth of a second
    for camera, time in zip(CAMERAS, TIMES, strict=True):
        found = cameras[round(10 * time)]
        np.testing.assert_allclose(found.viewmat, camera.viewmat, atol=1e-9)
        np.testing.assert_allclose(found.K, camera.K, atol=1e-9)
    assert keyframes().frames == 106 and keyframes().seconds == 3.5
    line = tuple(Keyframe(float(t), (float(t), 2.0, -float(t)), (1.0, 0.0, 0.0, 0.0), 45.0) for t in range(5))
    for t, camera in zip(np.linspace(0, 4, 33), KeyframePath(line, (8, 8)).cameras(33), strict=True):
        np.testing.assert_allclose(camera.position, (t, 2, -t), atol=1e-12)
        np.testing.assert_allclose(camera.viewmat[:3, :3], np.eye(3), atol=1e-12)
    keyframes().save(tmp_path / "path.json")
    assert KeyframePath.load(tmp_path / "path.json") == keyframes()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_path_is_smooth(count: int) -> None:
    cameras = keyframes(count).cameras(2001)
    eyes = np.stack([camera.position for camera in cameras])
    turns = Rotation.from_matrix([camera.viewmat[:3, :3] for camera in cameras])
    velocities = np.diff(eyes, axis=0)
    spins = (turns[1:] * turns[:-1].inv()).as_rotvec()
    for changes in (velocities, spins):
        assert np.abs(np.diff(changes, axis=0)).max() < 0.02 * np.abs(changes).max()
    assert np.abs(eyes).max() < 1.5 * max(np.abs(camera.position).max() for camera in CAMERAS)


def content() -> dict[str, Any]:
    rows = [{"time": t, "position": [0, 0, t], "quaternion": [1, 0, 0, 0], "fov": 50} for t in (0, 1, 2)]
    return {"version": 1, "size": [64, 48], "keyframes": rows}


@pytest.mark.parametrize(
    ("where", "value", "word"),
    [
        (("version",), 2, "version"),
        (("size",), [64], "path"),
        (("size",), [64, 10**9], "size"),
        (("size",), [64.5, 3], "size"),
        (("size",), [True, 3], "size"),
        (("keyframes",), [], "2 to 1000"),
        (("keyframes",), {"a": 1}, "keyframes"),
        (("keyframes",), [None] * 10**5, "keyframes"),
        (("keyframes", 1, "time"), 0, "in order"),
        (("keyframes", 1, "time"), -1, "at least 0"),
        (("keyframes", 2, "time"), 1e9, "at most 3,600"),
        (("keyframes", 0, "position"), [0, 0], "path"),
        (("keyframes", 0, "position"), ["0", 0, 0], "number"),
        (("keyframes", 0, "position"), [1e300, 0, 0], "beyond"),
        (("keyframes", 0, "position"), [float("nan"), 0, 0], "finite"),
        (("keyframes", 0, "position"), [10**400, 0, 0], "path"),
        (("keyframes", 0, "quaternion"), [0, 0, 0, 0], "rotation"),
        (("keyframes", 0, "fov"), 180, "fov"),
        (("keyframes", 0, "fov"), None, "number"),
        (("keyframes", 0), "row", "path"),
    ],
)
def test_damaged_files_are_refused_in_a_sentence(tmp_path: Path, where: tuple, value: Any, word: str) -> None:
    damaged = content()
    part = damaged
    for step in where[:-1]:
        part = part[step]
    part[where[-1]] = value
    (tmp_path / "p.json").write_text(json.dumps(damaged))
    refused(rf"p\.json(?s:.*)({word})", KeyframePath.load, tmp_path / "p.json")


@pytest.mark.parametrize("text", ["", "[", "[]", "null", "[" * 10**5, "\xff", '{"version": 1}', " " * (1 << 21)])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_bytes(text.encode("latin-1"))
    refused(r"p\.json", KeyframePath.load, tmp_path / "p.json")
    refused("does not exist", KeyframePath.load, tmp_path / "q.json")
