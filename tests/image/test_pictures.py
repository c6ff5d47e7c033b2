"""Pictures of every kind become float32 [H, W, 3] from 0 to 1."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from splat_py.image.pictures import psnr, read_picture, to_picture
from tests.refusals import refused

RNG = np.random.default_rng(50)
RGB = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)


GREY_ALPHA = RNG.integers(0, 256, (5, 7, 2), dtype=np.uint8)
ALPHA = GREY_ALPHA[..., 1:] / 255
PALETTE = Image.fromarray(RGB).quantize(8)
BLUE = (0.2, 0.5, 0.9)


@pytest.mark.parametrize(
    ("image", "expected", "background"),
    [
        (Image.fromarray(RGB), RGB / 255, None),
        (Image.fromarray(RGB[..., 0]), RGB[..., [0, 0, 0]] / 255, None),
        (Image.fromarray(np.dstack([RGB, GREY_ALPHA[..., 1]])), RGB / 255 * ALPHA + 1 - ALPHA, None),
        (Image.fromarray(np.dstack([RGB, GREY_ALPHA[..., 1]])), RGB / 255 * ALPHA + (1 - ALPHA) * BLUE, BLUE),
        (Image.fromarray(GREY_ALPHA, "LA"), np.repeat(GREY_ALPHA[..., :1] / 255 * ALPHA + 1 - ALPHA, 3, -1), None),
        (PALETTE, np.asarray(PALETTE.convert("RGB")) / 255, None),
    ],
    ids=["RGB", "grey", "RGBA", "RGBA on a background", "grey with alpha", "palette"],
)
def test_png(image: Image.Image, expected: np.ndarray, background: Any, tmp_path: Path) -> None:
    image.save(tmp_path / "a.png")
    found = read_picture(tmp_path / "a.png", background) if background else read_picture(tmp_path / "a.png")
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bits(tmp_path: Path, channels: int) -> None:
    """Steps finer than 8 bits are kept."""
    pixels = RNG.integers(0, 65536, (5, 7, channels), dtype=np.uint16)
    pixels[..., 3:] = 65535
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[channels]
    cv2.imwrite(str(tmp_path / "a.png"), pixels[..., order])
    expected = np.broadcast_to(pixels[..., :3] / 65535, (5, 7, 3))
    np.testing.assert_allclose(read_picture(tmp_path / "a.png"), expected, atol=1e-6)


def test_a_photograph_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° clockwise
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=exif, quality=95)
    picture = read_picture(str(tmp_path / "a.jpg"))
    assert picture.shape == (32, 16, 3)
    assert picture[:14].min() > 0.9 and picture[18:].max() < 0.1


def test_floats_and_one_channel() -> None:
    grey = RNG.uniform(size=(3, 4, 1))
    np.testing.assert_allclose(to_picture(grey), np.broadcast_to(grey, (3, 4, 3)), atol=1e-6)
    assert to_picture(grey[..., 0]).flags.c_contiguous
    a = np.zeros((4, 4, 3))
    assert psnr(a, a + 0.1) == pytest.approx(20)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.zeros((3, 4, 2), np.uint8), r"image has shape \[3, 4, 2\]; it must be \[H, W\]"),
        (np.zeros((0, 4, 3), np.uint8), r"image has shape \[0, 4, 3\]"),
        (np.zeros(5), r"image has shape \[5\]"),
        (np.full((2, 2, 3), 200.0), "image holds floats outside 0 … 1"),
        (np.full((2, 2, 3), np.nan), "image holds floats outside 0 … 1"),
        (np.zeros((2, 2, 3), np.int64), "image is of type int64"),
    ],
)
def test_bad_arrays(pixels: Any, message: str) -> None:
    refused(message, to_picture, pixels)


def test_bad_files(tmp_path: Path) -> None:
    refused(r"gone\.png does not exist", read_picture, tmp_path / "gone.png")
    for content in (b"", b"text", b"\x89PNG\r\n\x1a\n" + b"\0" * 40):
        (tmp_path / "bad.png").write_bytes(content)
        refused(r"bad\.png is not a picture that can be read", read_picture, tmp_path / "bad.png")
    refused("is a folder; name one picture in it", read_picture, tmp_path)
    refused("background is 2; it must be three numbers", to_picture, np.zeros((2, 2, 4), np.uint8), 2)
    # run.json of a fit keeps the background, with or without an alpha channel in the picture.
    for bad in (np.nan, "red"):
        refused(r"background is .*; it must be three numbers", to_picture, RGB, (bad, 0, 0))
