"""Pictures and videos as files: read, after a check of the header, and written."""

import base64
import math
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from html import escape
from io import BytesIO
from itertools import chain
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import Any

import cv2
import imageio.v3 as iio
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_path, regular
from splat_py.scene.sources import CONVERT_HEIC, PHONE_PHOTOGRAPHS, require_video_name

UInt8Array = NDArray[np.uint8]
Pixels = NDArray[Any]  # OpenCV's images

# The most pixels of a picture, which is also Pillow's limit.
_MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 89_478_485)
# No format stores more pixels in a byte. Small pictures are exempt: a single colour needs almost no bytes.
_PIXELS_PER_BYTE, _FEW_PIXELS = 1 << 14, 1 << 22
# The two sides in text headers, in either order, by the file's first bytes: Radiance HDR and PFM.
_TEXT = {
    b"#?": re.compile(rb"-Y\s*[+-]?(\d+)\s*\+X\s*[+-]?(\d+)"),
    b"PF": re.compile(rb"^PF\s(\d+)\s(\d+)\s"),
    b"Pf": re.compile(rb"^Pf\s(\d+)\s(\d+)\s"),
}
_EXR, _EXR_WINDOW = b"\x76\x2f\x31\x01", re.compile(rb"dataWindow\0box2i\0\x10\0\0\0(.{16})", re.DOTALL)
# TIFF: byte order by first bytes, tags of width and height, and struct codes of its integer types.
_TIFF = {b"II*\0": "<", b"MM\0*": ">", b"II+\0": "<", b"MM\0+": ">"}
_TIFF_SIDES = (256, 257)
_TIFF_NUMBERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 16: "Q", 17: "q"}
# Options of ffmpeg, by suffix. A GIF's palette is made from all its frames.
_ENCODERS = {
    ".mp4": ["-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"],
    ".webm": ["-c:v", "libvpx-vp9", "-crf", "30", "-b:v", "0", "-cpu-used", "4", "-pix_fmt", "yuv420p", "-f", "webm"],
    ".gif": ["-filter_complex", "split[a][b];[a]palettegen[p];[b][p]paletteuse", "-f", "gif"],
}
# The widest frame that `inside` removes, as a share of a side.
_FRAME = 0.05


def read_picture(path: Path, flags: int) -> Pixels:
    try:
        # cv2.imread cannot open every path on Windows and does not report errors.
        data = regular(path).read_bytes()
    except OSError as error:
        raise SplatError(f"{path} cannot be read ({error.strerror}); check that it exists and may be read") from error
    pixels = decode(path, data, flags | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None or _jpeg_is_cut_off(data):
        raise SplatError(f"{path} cannot be decoded as an image; remove or replace it")
    return pixels


def _jpeg_is_cut_off(data: bytes) -> bool:
    """True if a JPEG ends before its picture does; the decoder would fill the rest with grey."""
    if data[:2] != b"\xff\xd8":
        return False
    position = 2
    # Skip segments before the scan by their lengths: a thumbnail inside one has its own end marker.
    while data[position : position + 1] == b"\xff" and data[position + 1 : position + 2] != b"\xda":
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return data.find(b"\xff\xd9", position) < 0


def _png_is_cut_off(data: bytes) -> bool:
    """True if a chunk of a PNG claims more bytes than the file has; the decoder would allocate them, up to 4 GB."""
    position = 8 if data.startswith(b"\x89PNG\r\n\x1a\n") else len(data)
    while position < len(data) and data[position + 4 : position + 8] != b"IEND":
        position += 12 + int.from_bytes(data[position : position + 4], "big")
    return position > len(data)


def decode_mask(path: Path, width: int, height: int) -> NDArray[np.bool_]:
    """Read a mask [height, width], true where the photograph counts; white may be 255 or 1, or blurred by JPEG."""
    mask = read_mask(path, width, height)
    return np.asarray(mask > mask.max() // 2)


def read_mask(path: Path, width: int, height: int) -> Pixels:
    """Read a mask's grey values [height, width]."""
    mask = read_picture(path, cv2.IMREAD_GRAYSCALE)
    # OpenCV keeps the colours of a PFM.
    mask = mask.max(axis=2) if mask.ndim == 3 else mask
    if mask.shape != (height, width):
        if abs(mask.shape[1] * height / mask.shape[0] - width) > max(1.0, 0.02 * width):
            raise SplatError(
                f"mask {path} has {mask.shape[1]}×{mask.shape[0]} pixels but its photograph {width}×{height}; "
                "make them the same shape"
            )
        mask = cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST)
    return mask


def read_header(path: Path) -> tuple[int, int, bool]:
    """Width, height, and true if there is an alpha channel; read without decoding the pixels."""
    try:
        shape = iio.improps(regular(path), plugin="pillow").shape
    except Exception:  # Pillow's decoders raise many types; OpenCV knows further formats, or raises SplatError
        shape = read_picture(path, cv2.IMREAD_UNCHANGED).shape
    if len(shape) not in (2, 3):
        raise SplatError(f"{path} is not a single picture (its shape is {list(shape)}); remove or replace it")
    try:
        # Four channels may also be CMYK, and one colour may be declared transparent.
        with Image.open(path) as image:
            transparent = bool(image.has_transparency_data)
    except Exception:  # a format that OpenCV alone knows
        transparent = len(shape) == 3 and shape[2] in (2, 4)
    return shape[1], shape[0], transparent


def to_bytes(image: NDArray[np.floating]) -> NDArray[np.uint8]:
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def beside(*images: NDArray[np.floating]) -> NDArray[np.floating]:
    """Images [H, W, 3] of equal height side by side, with a thin line between them."""
    line = np.ones((images[0].shape[0], max(images[0].shape[1] // 128, 1), 3), np.float32)
    parts = [part for image in images for part in (line, image)]
    return np.concatenate(parts[1:], axis=1)


def shrunk(image: NDArray[Any], longest: int) -> NDArray[Any]:
    """The image [H, W, 3] with its longer side at most `longest` pixels, shrunk by averaging areas."""
    height, width = image.shape[:2]
    scale = longest / max(height, width)
    if scale >= 1:
        return image
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    return cv2.resize(np.ascontiguousarray(image), size, interpolation=cv2.INTER_AREA)


def thumbnail(read: Callable[[], UInt8Array], caption: str, longest: int = 120) -> str:
    """The rgb picture [H, W, 3 or more] that `read` returns in HTML, its longer side at most `longest` pixels; the caption
    shows under the pointer. The sentence that says why, if it cannot be read."""
    try:
        pixels = read()
    except SplatError as error:
        return f"<p>{escape(str(error))}</p>"
    data = base64.b64encode(cv2.imencode(".jpg", shrunk(pixels[..., 2::-1], longest))[1].tobytes()).decode()
    return f"<img style='display:inline-block' title='{escape(caption)}' src='data:image/jpeg;base64,{data}'>"


def inside(weights: NDArray[np.uint8]) -> tuple[slice, slice]:
    """Rows and columns of a picture without the thin frame that undistortion left empty, from its pixels' weights [H, W]. If
    more than a twentieth of a side would go, the zeros are a mask and the whole picture stays."""
    height, width = weights.shape
    top, bottom, left, right = 0, height, 0, width
    while top < bottom and left < right:
        part = weights[top:bottom, left:right] == 0
        sides = [part[0].mean(), part[-1].mean(), part[:, 0].mean(), part[:, -1].mean()]
        worst = int(np.argmax(sides))
        if not sides[worst]:
            break
        step = [int(side == worst) for side in range(4)]
        top, bottom, left, right = top + step[0], bottom - step[1], left + step[2], right - step[3]
    if max(top, height - bottom) > _FRAME * height + 1 or max(left, width - right) > _FRAME * width + 1:
        return slice(0, height), slice(0, width)
    return slice(top, bottom), slice(left, right)


def write_image(path: Path, image: NDArray[np.floating]) -> None:
    """Write an image [H, W, 3] from 0 to 1 in the format of the suffix, atomically."""
    write_pixels(path, to_bytes(image))


def write_pixels(path: Path, pixels: NDArray[np.integer]) -> None:
    """Write pixels [H, W, C] from 0 to 255 in the format of the suffix, atomically."""
    values = pixels.astype(np.uint8)
    # The file is first made in memory: on a full disk, imageio's writer fails again when Python deletes it.
    data = iio.imwrite("<bytes>", values[..., 0] if values.shape[2] == 1 else values, extension=path.suffix)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_video(path: Path, frames: Iterable[NDArray[np.floating]], frames_per_second: int = 30) -> None:
    """Write frames [H, W, 3] from 0 to 1 as a video, atomically, one at a time; odd sides lose a row or a column."""
    from imageio_ffmpeg import get_ffmpeg_exe

    require_video_name(path)
    even = (to_bytes(frame)[: len(frame) // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames)
    first = next(even, None)
    if first is None or not first.size:
        raise SplatError(f"cannot write a video to {path}: a video needs a frame of at least 2×2 pixels")
    source = f"-f rawvideo -pix_fmt rgb24 -s {first.shape[1]}x{first.shape[0]} -r {frames_per_second} -i -".split()
    try:
        with atomic_path(path) as temporary:
            options = [*source, *_ENCODERS[path.suffix.lower()], str(temporary.absolute())]
            _encode([get_ffmpeg_exe(), "-y", "-loglevel", "error", *options], chain([first], even), path)
            if not (temporary.exists() and temporary.stat().st_size):
                raise SplatError(f"cannot write a video to {path}: ffmpeg wrote nothing; is the disk full?")
    except (OSError, RuntimeError) as error:
        raise SplatError(f"cannot write a video to {path}: {getattr(error, 'strerror', None) or error}") from error


def _encode(command: list[str], frames: Iterable[UInt8Array], path: Path) -> None:
    """Pipe the frames to ffmpeg. If it fails, raise SplatError with its last line of output."""
    with TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said)
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # ffmpeg ended early; its output has the reason
                for frame in frames:
                    process.stdin.write(frame.tobytes())
                process.stdin.close()
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        said.seek(0)
        reason = said.read().decode(errors="replace").strip().splitlines() or [f"ffmpeg ended with status {status}"]
    if status:
        raise SplatError(f"cannot write a video to {path}: {reason[-1].strip()}; is there room on the disk?")


def decode(path: Path, data: bytes, flags: int) -> NDArray[Any] | None:
    """Decode a file's bytes to pixels in OpenCV's order, or None if they are not a readable picture. MemoryError if the
    picture does not fit into this machine's memory."""
    size = checked_size(path, data)
    pixels = None
    if size is not None and not _png_is_cut_off(data):
        try:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        except cv2.error as error:
            if error.code == cv2.Error.StsNoMem:
                raise MemoryError(f"{path} of {size[0]:,} × {size[1]:,} pixels") from error
    if pixels is None and path.suffix.lower() in PHONE_PHOTOGRAPHS:
        raise SplatError(f"{path} is a HEIC photograph, which is not supported; {CONVERT_HEIC}")
    return pixels


def checked_size(path: Path, data: bytes) -> tuple[int, int] | None:
    """The two sides in a picture's header, or None for an unknown format. SplatError if they are implausibly large."""
    size = _size(data)
    pixels, most = math.prod(size or ()), min(_MOST_PIXELS, max(_FEW_PIXELS, _PIXELS_PER_BYTE * len(data)))
    if pixels > most:
        raise SplatError(
            f"{path} claims {pixels:,} pixels in {len(data):,} bytes, and the limit is {most:,} pixels; store it smaller"
        )
    return size


def _size(data: bytes) -> tuple[int, int] | None:
    """The two sides in a header, the larger pair if there are several; None for an unknown format."""
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
        # The error does not contain the size.
        return _MOST_PIXELS, 2
    except Exception:  # Pillow's readers raise many types
        return None


def _size_of_tiff(data: bytes, order: str) -> tuple[int, int] | None:
    """The sides of the first picture in a TIFF; OpenCV reads kinds that Pillow does not."""
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


def picture_names(views: Sequence[str]) -> list[str]:
    """A unique PNG name for each of a dataset's views: the photograph's stem, and if another view has the same, also its
    folders, then its suffix and finally a number."""
    paths = [PurePosixPath(view.replace("\\", "/")) for view in views]
    whole = ["-".join(part for part in path.parts if part != "/") for path in paths]
    names = [path.stem for path in paths]
    for longer in (
        [name.removesuffix(path.suffix) for name, path in zip(whole, paths, strict=True)],
        whole,
        [f"{index}-{name}" for index, name in enumerate(whole)],
    ):
        # Some file systems ignore case.
        count = Counter(name.lower() for name in names)
        names = [name if count[name.lower()] == 1 else other for name, other in zip(names, longer, strict=True)]
    return [f"{name}.png" for name in names]
