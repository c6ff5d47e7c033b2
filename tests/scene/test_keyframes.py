"""Keyframes: their file, and the path between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from splat_py.errors import SplatError
from splat_py.scene import Camera
from splat_py.scene.keyframes import Keyframe, KeyframePath

CAMERAS = [
    Camera.look_at(eye, (0, 0, 0), (0, 0, 1), fov, 64, 48)
    for eye, fov in (((4, 0, 1), 40), ((0, 4, 2), 50), ((-4, 1, 1), 60), ((-1, -4, 0.5), 30))
]
TIMES = (0.0, 1.0, 3.0, 3.5)


def path(count: int = 4) -> KeyframePath:
    frames = zip(CAMERAS[:count], TIMES, strict=False)
    return KeyframePath(tuple(Keyframe.of_camera(camera, time) for camera, time in frames), (64, 48))


def test_the_path_goes_through_its_keyframes() -> None:
    cameras = path().cameras(36)  # every tenth of a second
    for camera, time in zip(CAMERAS, TIMES, strict=True):
        found = cameras[round(10 * time)]
        np.testing.assert_allclose(found.viewmat, camera.viewmat, atol=1e-9)
        np.testing.assert_allclose(found.K, camera.K, atol=1e-9)
    assert path().frames == 106 and path().seconds == 3.5


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_path_is_smooth(count: int) -> None:
    cameras = path(count).cameras(2001)
    eyes = np.stack([camera.position for camera in cameras])
    turns = Rotation.from_matrix([camera.viewmat[:3, :3] for camera in cameras])
    velocities = np.diff(eyes, axis=0)
    spins = (turns[1:] * turns[:-1].inv()).as_rotvec()
    for changes in (velocities, spins):
        assert np.abs(np.diff(changes, axis=0)).max() < 0.02 * np.abs(changes).max()
    # It stays about where the keyframes are.
    assert np.abs(eyes).max() < 1.5 * max(np.abs(camera.position).max() for camera in CAMERAS)


def test_a_straight_line_at_even_times_stays_one() -> None:
    turn = (1.0, 0.0, 0.0, 0.0)
    keyframes = tuple(Keyframe(float(t), (float(t), 2.0, -float(t)), turn, 45.0) for t in range(5))
    for t, camera in zip(np.linspace(0, 4, 33), KeyframePath(keyframes, (8, 8)).cameras(33), strict=True):
        np.testing.assert_allclose(camera.position, (t, 2, -t), atol=1e-12)
        np.testing.assert_allclose(camera.viewmat[:3, :3], np.eye(3), atol=1e-12)


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    path().save(tmp_path / "path.json")
    assert KeyframePath.load(tmp_path / "path.json") == path()


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
        (("keyframes", 1, "time"), -1, "in order|0 to"),
        (("keyframes", 2, "time"), 1e9, "seconds"),
        (("keyframes", 0, "position"), [0, 0], "path"),
        (("keyframes", 0, "position"), ["0", 0, 0], "numbers"),
        (("keyframes", 0, "position"), [1e300, 0, 0], "beyond"),
        (("keyframes", 0, "position"), [float("nan"), 0, 0], "NaN"),
        (("keyframes", 0, "position"), [10**400, 0, 0], "path"),
        (("keyframes", 0, "quaternion"), [0, 0, 0, 0], "rotation"),
        (("keyframes", 0, "fov"), 180, "fov"),
        (("keyframes", 0, "fov"), None, "numbers"),
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
    with pytest.raises(SplatError, match=rf"p\.json(?s:.*)({word})"):
        KeyframePath.load(tmp_path / "p.json")


@pytest.mark.parametrize("text", ["", "[", "[]", "null", "[" * 10**5, "\xff", '{"version": 1}', " " * (1 << 21)])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(SplatError, match=r"p\.json"):
        KeyframePath.load(tmp_path / "p.json")
    with pytest.raises(SplatError, match="does not exist"):
        KeyframePath.load(tmp_path / "q.json")
