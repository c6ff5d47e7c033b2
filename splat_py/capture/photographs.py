"""Photographs found in a folder and stored upright in another, each with what is known of its camera."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from splat_py.capture.exif import Exif, exif_of, read_exif
from splat_py.capture.library import require_heif
from splat_py.capture.sharpness import sharpness
from splat_py.errors import SplatError
from splat_py.files import atomic_path, reason
from splat_py.scene.decoding import checked_size
from splat_py.scene.images import decode_mask, mask_in, read_picture
from splat_py.scene.missing_poses import PHONE_PHOTOGRAPHS, PHOTOGRAPHS

# Stored as they are where they are upright; others are lossless in PNG.
_COPIED = {".jpg", ".jpeg", ".png"}
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 97, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
# COLMAP's lists of pairs have spaces between names.
_UNSAFE = re.compile(r"[^\w.\-/]")
_MASKS = "masks"
# Focal lengths in pixels that are this close are one camera's.
_SAME_FOCAL = 8.0


@dataclass(frozen=True)
class Source:
    """A photograph as it was found: its file, its name in its folder, and its mask."""

    path: Path
    name: str
    mask: Path | None = None


@dataclass(frozen=True)
class Photograph:
    """A photograph as it is stored, upright.

    Attributes:
        name: inside the folder of photographs.
        source: what it was called where it was found.
        width, height: pixels.
        focal: in pixels, from EXIF, or None.
        camera: what tells one camera from another.
        sharpness: to compare with that of the others.
        contrast: standard deviation of its values, as a share of the largest possible one.
    """

    name: str
    source: str
    width: int
    height: int
    focal: float | None
    camera: str
    sharpness: float
    contrast: float


def find_photographs(folder: Path, out: Path | None = None) -> list[Source]:
    """The photographs in a folder, in the folder `images` in it if there is one, and in folders below, in their names' order.

    Masks are in the folder `masks` beside them, with a photograph's name, or that and .png, black where it is to be ignored.

    Args:
        out: what is in this folder is left out.
    """
    base = folder / "images" if (folder / "images").is_dir() else folder
    masks = (base / _MASKS, base.parent / _MASKS) if base.name == "images" else (base / _MASKS,)
    kinds = PHOTOGRAPHS | PHONE_PHOTOGRAPHS
    found = []
    for path in base.rglob("*"):
        name = path.relative_to(base)
        left_out = any(part.startswith(".") for part in name.parts) or (out is not None and path.is_relative_to(out))
        if not left_out and name.parts[0] != _MASKS and path.suffix.lower() in kinds and path.is_file():
            mask = next((mask for mask in (mask_in(folder, name) for folder in masks) if mask is not None), None)
            found.append(Source(path, name.as_posix(), mask))
    return sorted(found, key=lambda source: natural_order(source.name))


def natural_order(name: str) -> list[tuple[int, str]]:
    """What sorts names as people do: IMG_2 before IMG_10."""
    return [(int(part), "") if part.isdigit() else (-1, part.lower()) for part in re.split(r"([0-9]+)", name)]


def stored_names(sources: Sequence[Source]) -> list[str]:
    """What photographs are called from now on: as before, without letters that COLMAP's lists or a page could misread."""
    names: list[str] = []
    taken: set[str] = set()
    for source in sources:
        name = Path(_UNSAFE.sub("_", source.name))
        suffix = name.suffix
        if suffix.lower() not in _COPIED:
            suffix = ".jpg" if suffix.lower() in PHONE_PHOTOGRAPHS else ".png"
        candidates = [name.with_suffix(suffix), name.with_name(name.name + suffix)]
        candidates += [name.with_name(f"{name.stem}_{i}{suffix}") for i in range(2, len(sources) + 2)]
        # Some file systems take no notice of case, and a mask is found by its photograph's name alone.
        name = next(c for c in candidates if c.with_suffix("").as_posix().lower() not in taken)
        taken.add(name.with_suffix("").as_posix().lower())
        names.append(name.as_posix())
    return names


def store_photograph(source: Source, name: str, images: Path, masks: Path) -> Photograph:
    """Store a photograph, upright as its EXIF has it, and its mask.

    Raises:
        SplatError: the photograph or its mask cannot be read.
    """
    pixels, exif, data = _read(source.path)
    height, width = pixels.shape[:2]
    mask = None if source.mask is None else _mask(source.mask, width, height, exif.orientation)
    upright = oriented(pixels, exif.orientation)
    target = images / name
    with atomic_path(target) as temporary:
        if data is not None and exif.orientation == 1 and source.path.suffix.lower() in _COPIED:
            temporary.write_bytes(data)
        else:
            write_picture(temporary, upright)
    if mask is not None:
        with atomic_path(masks / f"{name}.png") as temporary:
            write_picture(temporary, mask)
    return photograph_of(name, source.name, upright, exif.focal, exif.camera)


def photograph_of(name: str, source: str, pixels: NDArray[Any], focal: float | None = None, camera: str = "") -> Photograph:
    """The record of a photograph whose upright pixels are these."""
    height, width = pixels.shape[:2]
    rounded = None if focal is None else round(focal / _SAME_FOCAL)
    kind = f"{width}x{height} {rounded} {camera}"
    colors = pixels if pixels.ndim == 2 else pixels[..., :3]
    contrast = float(colors.std()) / np.iinfo(pixels.dtype).max
    return Photograph(name, source, width, height, focal, kind, sharpness(pixels), contrast)


def write_picture(path: Path, pixels: NDArray[Any]) -> None:
    """Write pixels as OpenCV has them, as the suffix says; JPEG loses little."""
    suffix = path.suffix.lower()
    encoded, data = cv2.imencode(suffix, pixels, _JPEG if suffix in (".jpg", ".jpeg") else [])
    if not encoded:
        raise SplatError(f"cannot write {path}")
    path.write_bytes(data.tobytes())


def oriented(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Stored pixels [H, W, ...] the right way up, by EXIF's orientation from 1 to 8."""
    if orientation in (2, 4, 5, 7):
        mirrored = {2: 1, 4: 3, 5: 6, 7: 8}[orientation]
        return oriented(pixels, mirrored)[:, ::-1].copy()
    turns = {1: 0, 3: 2, 6: 3, 8: 1}[orientation]
    return np.ascontiguousarray(np.rot90(pixels, turns))


def _read(path: Path) -> tuple[NDArray[Any], Exif, bytes | None]:
    """Pixels as stored, as OpenCV has them; EXIF; and the file's bytes if they may be copied."""
    if path.suffix.lower() in PHONE_PHOTOGRAPHS:
        pixels, exif = _read_heif(path)
        return pixels, exif, None
    pixels = read_picture(path, cv2.IMREAD_UNCHANGED)
    if pixels.dtype not in (np.uint8, np.uint16):
        raise SplatError(f"{path} holds {pixels.dtype} values; convert it to 8 or 16 bits per channel")
    data = path.read_bytes()
    return pixels, read_exif(data), data


def _read_heif(path: Path) -> tuple[NDArray[Any], Exif]:
    heif = require_heif()
    heif.register_heif_opener(thumbnails=False)
    try:
        data = path.read_bytes()
        # The header's size is checked before anything is decoded.
        if checked_size(path, data) is None:
            raise ValueError("it has no picture")
        with Image.open(BytesIO(data)) as image:
            exif = exif_of(image)
            # The decoder has turned the picture already.
            return np.asarray(image.convert("RGB"))[..., ::-1].copy(), Exif(1, exif.focal, exif.camera)
    except SplatError:
        raise
    except Exception as error:  # libheif's errors are of many kinds
        raise SplatError(f"{path} cannot be decoded as an image ({reason(error)}); remove or replace it") from error


def _mask(path: Path, width: int, height: int, orientation: int) -> NDArray[np.uint8]:
    """255 where the photograph counts and 0 elsewhere, upright; the mask may be of the stored or of the upright photograph."""
    try:
        mask = oriented(decode_mask(path, width, height), orientation)
    except SplatError:
        if orientation < 5:
            raise
        mask = decode_mask(path, height, width)
    return mask.astype(np.uint8) * np.uint8(255)
