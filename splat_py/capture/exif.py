"""What a photograph's EXIF says of its camera: which way up it was held, and its focal length (CIPA DC-008)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from PIL import Image

_ORIENTATION, _MAKE, _MODEL = 0x0112, 0x010F, 0x0110
_CAMERA = 0x8769  # the folder of tags with these
_FOCAL_MM, _FOCAL_35MM, _PLANE_X, _PLANE_Y, _PLANE_UNIT = 0x920A, 0xA405, 0xA20E, 0xA20F, 0xA210
# Millimetres: of a frame of 36 × 24, and in a unit of the focal plane's resolution.
_DIAGONAL_35MM = math.hypot(36, 24)
_UNITS = {2: 25.4, 3: 10.0, 4: 1.0}
# Focal lengths, as shares of the longer side, that a camera may have.
_LEAST, _MOST = 0.2, 20.0
_MOST_WORDS = 80


@dataclass(frozen=True)
class Exif:
    """Of a stored photograph.

    Attributes:
        orientation: 1 to 8, as EXIF counts them; 1 is upright.
        focal: in pixels of the stored photograph, or None.
        camera: who made the camera, and which.
    """

    orientation: int = 1
    focal: float | None = None
    camera: str = ""


def read_exif(data: bytes) -> Exif:
    """From a file's bytes; what is absent or damaged has its default."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(BytesIO(data)) as image:
            return exif_of(image)
    except Exception:  # Pillow's readers raise what they like
        return Exif()


def exif_of(image: Image.Image) -> Exif:
    """From a picture that is open."""
    try:
        tags = image.getexif()
        inner = tags.get_ifd(_CAMERA)
        orientation = tags.get(_ORIENTATION, 1)
        camera = " ".join(str(tags.get(tag, "")) for tag in (_MAKE, _MODEL)).split()
    except Exception:  # as above
        return Exif()
    orientation = orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1
    return Exif(orientation, _focal(inner, *image.size), " ".join(camera)[:_MOST_WORDS])


def _focal(tags: Any, width: int, height: int) -> float | None:
    focal = _number(tags, _FOCAL_35MM) * math.hypot(width, height) / _DIAGONAL_35MM
    if not focal > 0:
        millimetres = _UNITS.get(int(_number(tags, _PLANE_UNIT) or 2), math.nan)
        resolution = _number(tags, _PLANE_X) or _number(tags, _PLANE_Y)
        focal = _number(tags, _FOCAL_MM) * resolution / millimetres
    longer = max(width, height)
    return focal if _LEAST * longer < focal < _MOST * longer else None


def _number(tags: Any, tag: int) -> float:
    """A tag as a number; 0 if it is none."""
    try:
        value = float(tags.get(tag, 0))
    except (TypeError, ValueError, ArithmeticError):
        return 0.0
    return value if math.isfinite(value) else 0.0
