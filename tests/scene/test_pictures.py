"""Pictures as files."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as iio
import numpy as np

from splat_py.scene.pictures import beside, to_bytes, write_image


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
