"""Paths through captures of every kind: the scene in view, the right side up, no jolts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from splat_py.errors import SplatError
from splat_py.scene import Camera
from splat_py.scene.camera import mean_up
from splat_py.scene.camera_paths import PATHS, looks_outwards
from tests.scene.captures import ring

Path = Callable[..., list[Camera]]
POINTS = np.random.default_rng(3).normal((1, 2, 3), 0.3, (500, 3))


def rolled(cameras: list[Camera], degrees: float = 7.0) -> list[Camera]:
    """As people hold them: every other one tilted one way, the others the other."""
    turned = []
    for i, camera in enumerate(cameras):
        a = np.radians(degrees) * (-1) ** i
        roll = np.array([[np.cos(a), -np.sin(a), 0, 0], [np.sin(a), np.cos(a), 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
        turned.append(Camera(roll @ camera.viewmat, camera.K, camera.width, camera.height))
    return turned


def upside_down() -> list[Camera]:
    """A world whose up is -y, as COLMAP's mostly is."""
    turn = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])
    return [Camera(camera.viewmat @ turn, camera.K, camera.width, camera.height) for camera in ring()]


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
        # No roll: the picture's x axis is level.
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
        # Twenty-four times as many frames change about twenty-four times less, at their worst.
        assert speeds.max() < 0.1 * max(np.ptp(values, axis=0).max(), 1e-9) + 1e-12
        assert np.abs(np.diff(values, 2, axis=0)).max() <= 0.2 * speeds.max() + 1e-9


def test_a_world_that_is_upside_down_is_turned_around() -> None:
    cameras = upside_down()
    for path in PATHS.values():
        assert all(-camera.viewmat[1, :3] @ mean_up(cameras) > 0.1 for camera in path(cameras, 9))


def test_forward_facing_captures_are_not_gone_around() -> None:
    cameras = forward_facing()
    for path in PATHS.values():
        eyes = np.stack([camera.position for camera in path(cameras, 60, POINTS)])
        # Never farther aside than photographs were, and always before the scene.
        assert np.abs(eyes[:, 0] - 1).max() < 1.0 and (eyes[:, 1] < 2).all()


def test_a_room_is_shown_from_its_middle() -> None:
    cameras = room()
    assert looks_outwards(cameras) and not any(looks_outwards(capture) for capture in AROUND.values())
    path = PATHS["orbit"](cameras, 36)
    middle = np.mean([camera.position for camera in cameras], axis=0)
    outwards = [(camera.position - middle) @ camera.forward for camera in path]
    assert min(outwards) > 0 and max(np.linalg.norm(camera.position - middle) for camera in path) < 0.4
    azimuths = np.unwrap([np.arctan2(camera.forward[1], camera.forward[0]) for camera in path])
    assert abs(azimuths[-1] - azimuths[0]) == pytest.approx(2 * np.pi * 35 / 36)


def test_a_dolly_goes_straight_ahead() -> None:
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
    with pytest.raises(SplatError, match="needs a camera and a frame"):
        PATHS[name]([], 3)
