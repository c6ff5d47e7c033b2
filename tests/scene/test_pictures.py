"""Pictures as files."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as iio
import numpy as np

from splat_py.scene.pictures import beside, inside, to_bytes, write_image


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


def test_the_frame_that_a_lens_did_not_see_is_cut_off() -> None:
    weights = np.full((100, 60), 255, np.uint8)
    assert inside(weights) == (slice(0, 100), slice(0, 60))
    # A barrel's edges are curved: more is missing in the corners.
    weights[:2] = weights[:, -1] = weights[2, :20] = weights[97:, 30:] = 0
    rows, columns = inside(weights)
    assert (rows, columns) == (slice(3, 97), slice(0, 59))
    assert weights[rows, columns].all()


def test_a_mask_is_no_frame() -> None:
    weights = np.full((100, 60), 255, np.uint8)
    weights[:30] = 0
    assert inside(weights) == (slice(0, 100), slice(0, 60))
    assert inside(np.zeros((4, 4), np.uint8)) == (slice(0, 4), slice(0, 4))
    weights[:30], weights[50, 20] = 255, 0
    assert inside(weights) == (slice(0, 100), slice(0, 60))
