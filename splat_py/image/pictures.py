"""Pictures of every kind as float32 [H, W, 3] from 0 to 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.fit.psnr import psnr_of
from splat_py.scene.decoding import decode

Picture = NDArray[np.float32]


def read_picture(path: str | Path, background: ArrayLike = (1.0, 1.0, 1.0)) -> Picture:
    """Read a picture file: grey, RGB or RGBA, 8 or 16 bits a channel, turned as its EXIF data says.

    Raises:
        SplatError: the file is missing or not a picture.
    """
    path = Path(path)
    if path.is_dir():
        raise SplatError(f"{path} is a folder; name one picture in it")
    if not path.is_file():
        raise SplatError(f"{path} does not exist; name a picture, such as a .png or a .jpg")
    data = path.read_bytes()
    pixels = decode(path, data, cv2.IMREAD_UNCHANGED)
    if pixels is not None and pixels.ndim == 3 and pixels.shape[2] == 3:
        # Only this way OpenCV heeds the EXIF data. Pictures with alpha, 16 bits or one channel rarely have any.
        pixels = decode(path, data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    if pixels is None:
        raise SplatError(f"{path} is not a picture that can be read, or is damaged; convert it to PNG or JPEG")
    if pixels.ndim == 3:
        order = [2, 1, 0, 3][: pixels.shape[2]]
        pixels = pixels[..., order]
    return to_picture(pixels, background, str(path))


def to_picture(pixels: Any, background: ArrayLike = (1.0, 1.0, 1.0), name: str = "image") -> Picture:
    """A picture from an array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]: uint8, uint16, or floats from 0 to 1.

    Args:
        background: rgb from 0 to 1, behind pictures with alpha.
        name: what messages call the array.

    Raises:
        SplatError: another shape or type, no pixels, floats that are not from 0 to 1, or such a background, alpha or not.
    """
    try:
        behind, array = np.asarray(background, np.float32), np.asarray(pixels)
    except (ValueError, TypeError):
        behind = array = np.zeros(0, np.float32)
    if behind.shape != (3,) or not ((behind >= 0) & (behind <= 1)).all():
        raise SplatError(f"background is {background!r}; it must be three numbers from 0 to 1")
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.size == 0:
        raise SplatError(f"{name} has shape {list(np.shape(pixels))}; it must be [H, W], or [H, W, 1, 3 or 4]")
    if array.dtype in (np.uint8, np.uint16):
        values = array.astype(np.float32) / float(np.iinfo(array.dtype).max)
    elif np.issubdtype(array.dtype, np.floating):
        values = array.astype(np.float32)
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            raise SplatError(f"{name} holds floats outside 0 … 1 (or NaN); divide by its largest value, or pass uint8")
    else:
        raise SplatError(f"{name} is of type {array.dtype}; use uint8, uint16, or floats from 0 to 1")
    if values.shape[2] == 4:
        values = values[..., :3] * values[..., 3:] + behind * (1 - values[..., 3:])
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def psnr(a: NDArray, b: NDArray) -> float:
    """Peak signal-to-noise ratio of two pictures from 0 to 1, dB."""
    return psnr_of(float(np.mean((a.astype(np.float64) - b) ** 2)))
