"""Of each interval of a video the sharpest frame is taken."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from splat_py.capture.sharpness import sharpness
from splat_py.capture.video import store_frames
from splat_py.errors import SplatError
from splat_py.scene.images import read_picture
from splat_py.scene.videos import write_video
from tests.capture.room import photograph, room_cameras


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty frames, a second; all but every fifth are out of focus."""
    cameras = room_cameras(30, degrees=1)
    frames = [photograph(camera)[..., ::-1] for camera in cameras]
    frames = [frame if i % 5 == 3 else cv2.GaussianBlur(frame, (0, 0), 3) for i, frame in enumerate(frames)]
    path = tmp_path_factory.mktemp("video") / "around.mp4"
    write_video(path, (frame / np.float32(255) for frame in frames))
    return path


def test_the_sharpest_frame_of_each_interval(video: Path, tmp_path: Path) -> None:
    cameras = room_cameras(30, degrees=1)
    told: list[tuple[int, int]] = []
    stored = store_frames(video, tmp_path, 6, lambda *progress: told.append(progress))
    assert [photograph.name for photograph in stored] == [f"frame_{i:06d}.jpg" for i in (3, 8, 13, 18, 23, 28)]
    assert told[-1] == (6, 6) and told == sorted(told)
    for i, stored_frame in zip((3, 8, 13, 18, 23, 28), stored, strict=True):
        pixels = read_picture(tmp_path / stored_frame.name, cv2.IMREAD_COLOR)
        differences = [np.abs(pixels.astype(int) - photograph(cameras[j])).mean() for j in (i - 2, i, min(i + 2, 29))]
        assert min(differences) == differences[1]
        assert (stored_frame.height, stored_frame.width) == pixels.shape[:2]
    # Two a second would be two: a capture needs more.
    assert len(store_frames(video, tmp_path, 0, lambda *progress: None)) == 24


def test_a_video_that_was_held_upright_is_turned(video: Path, tmp_path: Path) -> None:
    turned = tmp_path / "turned.mp4"
    command = [get_ffmpeg_exe(), "-loglevel", "error", "-display_rotation", "90", "-i", video, "-c", "copy", turned]
    subprocess.run(command, check=True)
    first = store_frames(turned, tmp_path, 2, lambda *progress: None)[0]
    assert (first.width, first.height) == (192, 256)
    plain = store_frames(video, tmp_path / "plain", 2, lambda *progress: None)[0]
    expected = np.rot90(read_picture(tmp_path / "plain" / plain.name, cv2.IMREAD_COLOR))
    assert np.abs(read_picture(tmp_path / first.name, cv2.IMREAD_COLOR).astype(int) - expected).mean() < 2


def test_files_that_are_no_video(video: Path, tmp_path: Path) -> None:
    data = video.read_bytes()
    (tmp_path / "secret.mp4").write_bytes(data)
    playlist = f"ffconcat version 1.0\nfile '{tmp_path / 'secret.mp4'}'\n"
    for name, content in (
        ("empty.mp4", b""),
        ("text.mov", b"not a video"),
        ("cut.mp4", data[:600]),
        ("other.mp4", playlist.encode()),
        ("list.mp4", b"#EXTM3U\n#EXTINF:1,\nsecret.mp4\n#EXT-X-ENDLIST\n"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SplatError, match=f"{name} cannot be read as a video .*; store it as MP4"):
            store_frames(tmp_path / name, tmp_path / "images", 4, lambda *progress: None)


def test_sharpness_falls_with_blur_and_not_with_light() -> None:
    sharp = photograph(room_cameras()[0])
    values = [sharpness(cv2.GaussianBlur(sharp, (0, 0), sigma)) for sigma in (0.5, 1, 2, 4)]
    assert values == sorted(values, reverse=True) and values[0] > 10 * values[3]
    assert sharpness((sharp // 2).astype(np.uint8)) == pytest.approx(sharpness(sharp), rel=0.1)
    assert sharpness(np.full((40, 30), 7, np.uint8)) == 0
