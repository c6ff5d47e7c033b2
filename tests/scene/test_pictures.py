"""Pictures and videos as files."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from splat_py.errors import SplatError
from splat_py.scene.pictures import beside, to_bytes, write_image, write_video


def test_bytes_are_rounded_and_clipped() -> None:
    np.testing.assert_array_equal(to_bytes(np.array([-1.0, 0.0, 0.5, 0.999, 1.0, 2.0])), [0, 0, 128, 255, 255, 255])


def test_an_image_is_stored_as_it_is(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    write_image(tmp_path / "deep" / "image.png", pixels / 255)
    np.testing.assert_array_equal(iio.imread(tmp_path / "deep" / "image.png"), pixels)


def test_images_side_by_side_have_a_white_line_between_them() -> None:
    sheet = beside(np.zeros((4, 256, 3), np.float32), np.full((4, 100, 3), 0.5, np.float32))
    assert sheet.shape == (4, 256 + 2 + 100, 3)
    assert (sheet[:, :256] == 0).all() and (sheet[:, 256:258] == 1).all() and (sheet[:, 258:] == 0.5).all()


def test_a_video_loses_odd_rows_and_columns(tmp_path: Path) -> None:
    write_video(tmp_path / "video.mp4", (np.full((33, 35, 3), shade) for shade in (0.2, 0.8)))
    frames = iio.imread(tmp_path / "video.mp4")
    assert frames.shape == (2, 32, 34, 3)
    assert abs(frames[0].mean() / 255 - 0.2) < 0.03 and abs(frames[1].mean() / 255 - 0.8) < 0.03


@pytest.mark.parametrize("name", ["film.abc", "film.png", "film"])
def test_a_name_that_is_no_videos_leaves_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(SplatError, match=rf"cannot write a video to .*{name}: .*ends in \.mp4"):
        write_video(tmp_path / name, [np.zeros((16, 16, 3))])
    assert not list(tmp_path.iterdir())
