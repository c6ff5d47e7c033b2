"""Pictures and videos as files: their names and kinds, and the files left after a failed write."""

from collections.abc import Iterator
from pathlib import Path

import imageio.v3 as iio
import imageio_ffmpeg
import numpy as np
import pytest

from splat_py import Camera
from splat_py.scene.camera import film_camera
from splat_py.scene.pictures import beside, inside, picture_names, to_bytes, write_image, write_video
from tests.refusals import refused


def test_images_are_rounded_stored_and_laid_side_by_side(tmp_path: Path) -> None:
    np.testing.assert_array_equal(to_bytes(np.array([-1.0, 0.0, 0.5, 0.999, 1.0, 2.0])), [0, 0, 128, 255, 255, 255])
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    write_image(tmp_path / "deep" / "image.png", pixels / 255)
    np.testing.assert_array_equal(iio.imread(tmp_path / "deep" / "image.png"), pixels)
    sheet = beside(np.zeros((4, 256, 3), np.float32), np.full((4, 100, 3), 0.5, np.float32))
    assert sheet.shape == (4, 256 + 2 + 100, 3)
    assert (sheet[:, :256] == 0).all() and (sheet[:, 256:258] == 1).all() and (sheet[:, 258:] == 0.5).all()


def test_the_frame_that_a_lens_did_not_see_is_cut_off() -> None:
    weights = np.full((100, 60), 255, np.uint8)
    assert inside(weights) == (slice(0, 100), slice(0, 60))
    # A barrel's edges are curved, so more is missing in the corners.
    weights[:2] = weights[:, -1] = weights[2, :20] = weights[97:, 30:] = 0
    rows, columns = inside(weights)
    assert (rows, columns) == (slice(3, 97), slice(0, 59))
    assert weights[rows, columns].all()
    weights = np.full((100, 60), 255, np.uint8)
    weights[:30] = 0
    assert inside(weights) == (slice(0, 100), slice(0, 60))
    assert inside(np.zeros((4, 4), np.uint8)) == (slice(0, 4), slice(0, 4))
    weights[:30], weights[50, 20] = 255, 0
    assert inside(weights) == (slice(0, 100), slice(0, 60))


def test_names_are_short_and_differ() -> None:
    assert picture_names(["images/b.jpg", "a.JPG", "r_0.5.png"]) == ["b.png", "a.png", "r_0.5.png"]
    views = ["left/001.jpg", "right/001.jpg", "right/002.jpg", "002.png", "a-b/3.png", "a/b-3.png", "A/B-3.png"]
    names = picture_names(views)
    assert names[:4] == ["left-001.png", "right-001.png", "right-002.png", "002.png"]
    assert len({name.lower() for name in names}) == len(views)
    assert not any("/" in name for name in names)
    assert picture_names(["a.jpg", "a.png"]) == ["a.jpg.png", "a.png.png"]
    assert picture_names(["x/A.jpg", "x/a.jpg"]) == ["0-x-A.jpg.png", "1-x-a.jpg.png"]


def frames(count: int = 2, shape: tuple[int, int, int] = (33, 35, 3)) -> Iterator[np.ndarray]:
    return (np.full(shape, shade) for shade in np.linspace(0.2, 0.8, count))


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".MP4"])
def test_a_video_loses_odd_rows_and_columns(suffix: str, tmp_path: Path) -> None:
    write_video(tmp_path / f"a video{suffix}", frames())
    plugin = "pillow" if suffix == ".gif" else "FFMPEG"
    film = np.stack([frame[..., :3] for frame in iio.imiter(tmp_path / f"a video{suffix}", plugin=plugin)])
    assert film.shape == (2, 32, 34, 3)
    assert abs(film[0].mean() / 255 - 0.2) < 0.03 and abs(film[1].mean() / 255 - 0.8) < 0.03
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["film.abc", "film.png", "film"])
def test_a_name_that_is_no_videos_is_refused_before_a_frame_is_made(name: str, tmp_path: Path) -> None:
    def none() -> Iterator[np.ndarray]:
        pytest.fail("a frame was made")
        yield

    refused(rf"cannot write a video to .*{name}; .*ends in \.mp4, \.gif or \.webm", write_video, tmp_path / name, none())
    assert not list(tmp_path.iterdir())


def test_no_frames_or_one_that_fails_leave_nothing(tmp_path: Path) -> None:
    for nothing in (frames(0), frames(1, (1, 5, 3))):
        refused("needs a frame", write_video, tmp_path / "film.mp4", nothing)

    def broken() -> Iterator[np.ndarray]:
        yield np.zeros((16, 16, 3))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_video(tmp_path / "film.mp4", broken())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("head -c 100000 > /dev/null; echo No space left on device >&2; exit 1", "No space left on device"),
        ("echo Unknown encoder >&2; exit 1", "Unknown encoder"),
        ("cat > /dev/null", "is the disk full"),
        ("kill -9 $$", "status -9"),
    ],
)
def test_a_failing_encoder_is_noticed_and_the_older_file_stays(
    program: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = tmp_path / "encoder"
    encoder.write_text(f"#!/bin/sh\n{program}\n")
    encoder.chmod(0o700)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(encoder))
    (tmp_path / "film.mp4").write_bytes(b"an older film")
    refused(rf"film\.mp4: .*{says}", write_video, tmp_path / "film.mp4", frames(50, (64, 64, 3)))
    assert (tmp_path / "film.mp4").read_bytes() == b"an older film"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder", "film.mp4"]


def test_a_camera_of_a_film_is_at_least_480_high_and_even() -> None:
    K = np.array([[50.0, 0, 24], [0, 60, 16], [0, 0, 1]])
    small = film_camera(Camera(np.eye(4), K, 135, 241), None)
    assert (small.width, small.height) == (270, 480)
    large = film_camera(Camera(np.eye(4), K, 1081, 1921), None)
    assert (large.width, large.height) == (1082, 1922)
    asked = film_camera(Camera(np.eye(4), K, 32, 32), 1.5)
    assert (asked.width, asked.height) == (48, 48)
