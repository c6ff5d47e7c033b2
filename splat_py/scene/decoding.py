"""Picture files to pixels. The size that a header states is checked before anything is allocated."""

from __future__ import annotations

import math
import re
import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from splat_py.errors import SplatError
from splat_py.scene.missing_poses import CONVERT_HEIC, PHONE_PHOTOGRAPHS

# Of one picture; Pillow refuses more, too.
_MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 89_478_485)
# No format stores more of them in a byte, but few may be of one colour and so in no bytes at all.
_PIXELS_PER_BYTE, _FEW_PIXELS = 1 << 14, 1 << 22
# Width and height, or the other way round, in headers that are text, by what a file begins with: Radiance's and PFM.
_TEXT = {
    b"#?": re.compile(rb"-Y\s*[+-]?(\d+)\s*\+X\s*[+-]?(\d+)"),
    b"PF": re.compile(rb"^PF\s(\d+)\s(\d+)\s"),
    b"Pf": re.compile(rb"^Pf\s(\d+)\s(\d+)\s"),
}
_EXR, _EXR_WINDOW = b"\x76\x2f\x31\x01", re.compile(rb"dataWindow\0box2i\0\x10\0\0\0(.{16})", re.DOTALL)
# A TIFF's byte order and version, and the types of its whole numbers.
_TIFF = {b"II*\0": "<", b"MM\0*": ">", b"II+\0": "<", b"MM\0+": ">"}
_TIFF_SIDES = (256, 257)
_TIFF_NUMBERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 16: "Q", 17: "q"}


def decode(path: Path, data: bytes, flags: int) -> NDArray[Any] | None:
    """The pixels of a file as OpenCV has them, or None if it is no picture that can be read.

    Args:
        path: for messages.
        data: what is in the file.
        flags: OpenCV's.

    Raises:
        SplatError: it is too large, or says so; or it is a HEIC photograph.
        MemoryError: it is not too large, but for this machine.
    """
    size = checked_size(path, data)
    pixels = None
    if size is not None:
        try:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        except cv2.error as error:
            if error.code == cv2.Error.StsNoMem:
                raise MemoryError(f"{path} of {size[0]:,} × {size[1]:,} pixels") from error
    if pixels is None and path.suffix.lower() in PHONE_PHOTOGRAPHS:
        raise SplatError(f"{path} is a HEIC photograph, which is not read; {CONVERT_HEIC}")
    return pixels


def checked_size(path: Path, data: bytes) -> tuple[int, int] | None:
    """The two sides that a picture's header states, or None if it is of no format that is known here.

    Raises:
        SplatError: it is too large, or says so.
    """
    size = _size(data)
    pixels, most = math.prod(size or ()), min(_MOST_PIXELS, max(_FEW_PIXELS, _PIXELS_PER_BYTE * len(data)))
    if pixels > most:
        raise SplatError(
            f"{path} is too large, or says so ({pixels:,} pixels in {len(data):,} bytes, where {most:,} are the most); "
            "store it smaller"
        )
    return size


def _size(data: bytes) -> tuple[int, int] | None:
    """The two sides that a header states, the larger where it does so twice; None if it is of no format that is known here."""
    if data[:4] in _TIFF:
        return _size_of_tiff(data, _TIFF[data[:4]])
    if data.startswith(_EXR):
        windows = (struct.unpack("<4i", window) for window in _EXR_WINDOW.findall(data))
        return max(((right - left + 1, bottom - top + 1) for left, top, right, bottom in windows), key=math.prod, default=None)
    if data[:2] in _TEXT:
        sides = ((int(a[:18]), int(b[:18])) for a, b in _TEXT[data[:2]].findall(data))
        return max(sides, key=math.prod, default=None)
    try:
        with Image.open(BytesIO(data)) as image:
            return image.size
    except Image.DecompressionBombError:
        # It does not tell the size.
        return _MOST_PIXELS, 2
    except Exception:  # Pillow's readers raise what they like
        return None


def _size_of_tiff(data: bytes, order: str) -> tuple[int, int] | None:
    """Of the first picture in the file. Pillow does not read all kinds that OpenCV does."""
    big = b"+" in data[:4]
    try:
        (first,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
        (count,) = struct.unpack_from(order + ("Q" if big else "H"), data, first)
        entry, head, start = (20, order + "HHQ", first + 8) if big else (12, order + "HHI", first + 2)
        sides = [0, 0]
        for at in range(start, min(start + count * entry, len(data)), entry):
            tag, kind, number = struct.unpack_from(head, data, at)
            if tag in _TIFF_SIDES:
                (value,) = struct.unpack_from(order + _TIFF_NUMBERS[kind], data, at + struct.calcsize(head))
                sides[tag - _TIFF_SIDES[0]] = max(sides[tag - _TIFF_SIDES[0]], value)
                if number != 1:
                    return None
    except (struct.error, KeyError, OverflowError):
        return None
    return sides[0], sides[1]
