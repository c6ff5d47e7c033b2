"""Photographs found in a folder, or sharp frames of a video, stored upright, each with the camera data of its EXIF."""

import importlib
import math
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ExifTags import IFD, Base

from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_path, reason, regular
from splat_py.scene.images import mask_in
from splat_py.scene.pictures import checked_size, decode_mask, read_picture, shrunk
from splat_py.scene.sources import CONVERT_HEIC, PHONE_PHOTOGRAPHS, PHOTOGRAPHS, unread

# Called with how much of a phase is done, and the total.
OnProgress = Callable[[int, int], None]
INSTALL = "pip install 'slang-splat[capture]'"
# Formats that are stored unchanged if the photograph is upright, and their first bytes, since COLMAP goes by the name;
# `stored_names` gives the formats of others.
_COPIED = {".jpg": b"\xff\xd8\xff", ".jpeg": b"\xff\xd8\xff", ".png": b"\x89PNG"}
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 97, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
# COLMAP's lists of pairs separate names by spaces.
_UNSAFE = re.compile(r"[^\w.\-/]")
_MASKS = "masks"
# Formats that are read, whatever the file is called; a playlist could name other files or addresses.
_INPUT = [
    *("-protocol_whitelist", "file"),
    *("-format_whitelist", "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"),
]


@dataclass(frozen=True)
class Original:
    """A photograph as it was found: its file, its name in its folder, and its mask."""

    path: Path
    name: str
    mask: Path | None = None


@dataclass(frozen=True)
class Photograph:
    """A photograph as it is stored, upright."""

    name: str  # inside the folder of photographs
    source: str  # its name where it was found
    width: int  # pixels
    height: int
    focal: float | None  # in pixels, from EXIF, or None
    camera: str  # identifies the camera
    sharpness: float  # to compare with other photographs
    contrast: float  # standard deviation of its values, as a share of the largest possible one


@dataclass(frozen=True)
class Exif:
    orientation: int = 1  # 1 to 8, as EXIF counts them; 1 is upright
    focal: float | None = None  # in pixels of the stored photograph, or None
    camera: str = ""  # make and model


def find_photographs(folder: Path, out: Path | None = None) -> list[Original]:
    """Return the photographs in a folder, in its folder `images` if there is one, and in folders below except `out`, by name,
    with pipes and broken links, which are refused later. Masks are in the folder `masks` beside them, with a photograph's name,
    or that name and .png. SplatError if there are only RAW or GIF files; a warning if they are beside photographs."""
    base = folder / "images" if (folder / "images").is_dir() else folder
    masks = (base / _MASKS, base.parent / _MASKS) if base.name == "images" else (base / _MASKS,)
    kinds = PHOTOGRAPHS | PHONE_PHOTOGRAPHS
    found, others = [], []
    for path in base.rglob("*"):
        name = path.relative_to(base)
        left_out = any(part.startswith(".") for part in name.parts) or (out is not None and path.is_relative_to(out))
        if left_out or name.parts[0] == _MASKS or path.is_dir():
            continue
        if path.suffix.lower() in kinds:
            mask = next((mask for mask in (mask_in(folder, name) for folder in masks) if mask is not None), None)
            found.append(Original(path, name.as_posix(), mask))
        else:
            others.append(path.suffix.lower())
    if skipped := unread(others):
        if not found:
            raise SplatError(f"{folder} holds no photographs: {skipped}")
        warnings.warn(skipped, stacklevel=2)

    def order(source: Original) -> list[tuple[int, str]]:
        """Sort names as people do: IMG_2 before IMG_10."""
        return [(int(part), "") if part.isdigit() else (-1, part.lower()) for part in re.split(r"([0-9]+)", source.name)]

    return sorted(found, key=order)


def stored_names(sources: Sequence[Original]) -> list[str]:
    """Return the names to store photographs under: their own, without letters that COLMAP's lists or a page could misread."""
    names: list[str] = []
    taken: set[str] = set()
    for source in sources:
        name = Path(_UNSAFE.sub("_", source.name))
        suffix = name.suffix
        if suffix.lower() not in _COPIED:
            suffix = ".jpg" if suffix.lower() in PHONE_PHOTOGRAPHS else ".png"
        candidates = [name.with_suffix(suffix), name.with_name(name.name + suffix)]
        candidates += [name.with_name(f"{name.stem}_{i}{suffix}") for i in range(2, len(sources) + 2)]
        # Some file systems ignore case, and masks are found by the photograph's name without its suffix.
        name = next(c for c in candidates if c.with_suffix("").as_posix().lower() not in taken)
        taken.add(name.with_suffix("").as_posix().lower())
        names.append(name.as_posix())
    return names


def store_photograph(source: Original, name: str, images: Path, masks: Path) -> Photograph:
    """Store a photograph, turned upright by its EXIF orientation, and its mask."""
    pixels, exif, data = _read(source.path)
    height, width = pixels.shape[:2]
    mask = None if source.mask is None else _mask(source.mask, width, height, exif.orientation)
    upright = oriented(pixels, exif.orientation)
    with atomic_path(images / name) as temporary:
        kind = _COPIED.get(source.path.suffix.lower())
        if data is not None and exif.orientation == 1 and kind is not None and data.startswith(kind):
            temporary.write_bytes(data)
        else:
            write_picture(temporary, upright)
    if mask is not None:
        with atomic_path(masks / f"{name}.png") as temporary:
            write_picture(temporary, mask)
    return photograph_of(name, source.name, upright, exif.focal, exif.camera)


def photograph_of(name: str, source: str, pixels: NDArray[Any], focal: float | None = None, camera: str = "") -> Photograph:
    height, width = pixels.shape[:2]
    # Photographs whose focal lengths are within about 8 pixels share a camera.
    rounded = None if focal is None else round(focal / 8)
    kind = f"{width}x{height} {rounded} {camera}"
    colors = pixels if pixels.ndim == 2 else pixels[..., :3]
    contrast = float(colors.std()) / np.iinfo(pixels.dtype).max
    return Photograph(name, source, width, height, focal, kind, sharpness(pixels), contrast)


def write_picture(path: Path, pixels: NDArray[Any]) -> None:
    """Write pixels, with channels in OpenCV's order, in the format of the suffix; JPEG in high quality."""
    suffix = path.suffix.lower()
    encoded, data = cv2.imencode(suffix, pixels, _JPEG if suffix in (".jpg", ".jpeg") else [])
    if not encoded:
        raise SplatError(f"cannot write {path}")
    path.write_bytes(data.tobytes())


def oriented(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Turn stored pixels [H, W, ...] upright, by EXIF's orientation from 1 to 8."""
    if orientation in (2, 4, 5, 7):
        return oriented(pixels, {2: 1, 4: 3, 5: 6, 7: 8}[orientation])[:, ::-1].copy()
    return np.ascontiguousarray(np.rot90(pixels, {1: 0, 3: 2, 6: 3, 8: 1}[orientation]))


def _read(path: Path) -> tuple[NDArray[Any], Exif, bytes | None]:
    """Return the stored pixels, with channels in OpenCV's order; EXIF; and the file's bytes if they may be copied."""
    if path.suffix.lower() in PHONE_PHOTOGRAPHS:
        pixels, exif = _read_heif(path)
        return pixels, exif, None
    pixels = read_picture(path, cv2.IMREAD_UNCHANGED)
    if pixels.dtype not in (np.uint8, np.uint16):
        raise SplatError(f"{path} holds {pixels.dtype} values; convert it to 8 or 16 bits per channel")
    data = regular(path).read_bytes()
    return pixels, read_exif(data), data


def _read_heif(path: Path) -> tuple[NDArray[Any], Exif]:
    try:
        heif = importlib.import_module("pillow_heif")
    except ImportError as error:
        raise SplatError(f"HEIC photographs need pillow-heif: {INSTALL}; or {CONVERT_HEIC}") from error
    heif.register_heif_opener(thumbnails=False)
    try:
        data = regular(path).read_bytes()
        # The header's size is checked before anything is decoded.
        if checked_size(path, data) is None:
            raise ValueError("it has no picture")
        with Image.open(BytesIO(data)) as image:
            # The decoder has turned the picture already.
            return np.asarray(image.convert("RGB"))[..., ::-1].copy(), replace(read_exif(data), orientation=1)
    except SplatError:
        raise
    except Exception as error:  # libheif raises many kinds of errors
        raise SplatError(f"{path} cannot be decoded as an image ({reason(error)}); remove or replace it") from error


def _mask(path: Path, width: int, height: int, orientation: int) -> NDArray[np.uint8]:
    """Return the upright mask: 255 where the photograph counts, else 0. The file may fit the stored or the upright pixels."""
    try:
        mask = oriented(decode_mask(path, width, height), orientation)
    except SplatError:
        if orientation < 5:
            raise
        mask = decode_mask(path, height, width)
    return mask.astype(np.uint8) * np.uint8(255)


def read_exif(data: bytes) -> Exif:
    """Read the EXIF data in a file's bytes; absent or damaged values get their defaults."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(BytesIO(data)) as image:
            tags, size = image.getexif(), image.size
            inner = tags.get_ifd(IFD.Exif)
            orientation = tags.get(Base.Orientation, 1)
            camera = " ".join(str(tags.get(tag, "")) for tag in (Base.Make, Base.Model)).split()
    except Exception:  # Pillow's readers raise any exception
        return Exif()
    orientation = orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1
    return Exif(orientation, _focal(inner, *size), " ".join(camera)[:80])


def _focal(tags: Any, width: int, height: int) -> float | None:
    focal = _number(tags, Base.FocalLengthIn35mmFilm) * math.hypot(width, height) / math.hypot(36, 24)
    if not focal > 0:
        millimetres = {2: 25.4, 3: 10.0, 4: 1.0}.get(int(_number(tags, Base.FocalPlaneResolutionUnit) or 2), math.nan)
        resolution = _number(tags, Base.FocalPlaneXResolution) or _number(tags, Base.FocalPlaneYResolution)
        focal = _number(tags, Base.FocalLength) * resolution / millimetres
    longer = max(width, height)
    return focal if 0.2 * longer < focal < 20 * longer else None


def _number(tags: Any, tag: int) -> float:
    try:
        value = float(tags.get(tag, 0))
    except (TypeError, ValueError, ArithmeticError):
        return 0.0
    return value if math.isfinite(value) else 0.0


def sharpness(pixels: NDArray[Any]) -> float:
    """Return the Laplacian's variance over that of the brightness (Pech-Pacheco et al. 2000): light and contrast cancel."""
    # Noise of single pixels does not count.
    pixels = shrunk(pixels, 1000)
    grey = pixels if pixels.ndim == 2 else pixels[..., :3].mean(axis=2, dtype=np.float32)
    grey = grey.astype(np.float32)
    return float(cv2.Laplacian(grey, cv2.CV_32F).var() / (grey.var() + 1e-6))


def store_frames(video: Path, images: Path, count: int, on_progress: OnProgress) -> list[Photograph]:
    """Store the sharpest frame of each of `count` equal intervals as a photograph; 0 means two a second, from 24 to 150."""
    from imageio_ffmpeg import read_frames

    try:
        with closing(read_frames(str(regular(video).resolve()), input_params=_INPUT)) as frames:
            meta = next(frames)
            (width, height), seconds, rate = meta["size"], float(meta["duration"]), float(meta["fps"])
            if not 0 < width * height <= 1 << 26 or not 0 < seconds < 24 * 3600 or not 0 < rate < 1e4:
                size = f"{width}×{height} pixels and {seconds:g} seconds long"
                raise SplatError(f"{video} claims to be {size}; store it again")
            count = count or round(min(max(2 * seconds, 24), 150))
            total = max(1, round(seconds * rate))
            stored: list[Photograph] = []
            pictures = (np.frombuffer(frame, np.uint8).reshape(height, width, 3)[..., ::-1] for frame in frames)
            for interval, group in groupby(enumerate(pictures), lambda picture: min(picture[0] * count // total, count - 1)):
                index, pixels = max(group, key=lambda picture: sharpness(picture[1]))
                name = f"frame_{index:06d}.jpg"
                with atomic_path(images / name) as temporary:
                    write_picture(temporary, pixels)
                stored.append(photograph_of(name, f"frame {index}", pixels))
                on_progress(interval + 1, count)
    except (OSError, RuntimeError, StopIteration, ValueError) as error:
        if isinstance(error, SplatError):
            raise
        raise SplatError(f"{video} cannot be read as a video ({reason(error)}); store it as MP4") from error
    if len(stored) < 2:
        raise SplatError(f"{video} has {len(stored)} frame; a capture needs many, taken while the camera moves around")
    on_progress(count, count)
    return stored
