"""The sharpest frame of each interval of a video."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.capture.photographs import Photograph, photograph_of, write_picture
from splat_py.capture.sharpness import sharpness
from splat_py.errors import SplatError
from splat_py.files import atomic_path, reason

# By default.
_A_SECOND, _FEWEST, _MOST = 2.0, 24, 150
_MOST_PIXELS, _MOST_SECONDS = 1 << 26, 24 * 3600.0
# What a file may be, whatever its name says: no playlist that names other files or addresses.
_INPUT = [
    *("-protocol_whitelist", "file"),
    *("-format_whitelist", "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"),
]


def store_frames(video: Path, images: Path, count: int, on_progress: Callable[[int, int], None]) -> list[Photograph]:
    """Store the sharpest frame of each of `count` equal intervals as a photograph.

    Args:
        count: 0 is two a second, from 24 to 150.
        on_progress: told of intervals done and in all.

    Raises:
        SplatError: it is no video that can be read, or has fewer than two frames.
    """
    frames = _frames(video)
    try:
        with closing(frames):
            width, height, seconds, rate = next(frames)
            count = count or round(min(max(_A_SECOND * seconds, _FEWEST), _MOST))
            total = max(1, round(seconds * rate))
            stored: list[Photograph] = []
            best: tuple[float, int, NDArray[np.uint8]] | None = None
            interval = 0
            for index, frame in enumerate(frames):
                pixels = np.frombuffer(frame, np.uint8).reshape(height, width, 3)[..., ::-1]
                now = min(index * count // total, count - 1)
                if now != interval and best is not None:
                    stored.append(_store(images, *best))
                    on_progress(now, count)
                    best = None
                interval, value = now, sharpness(pixels)
                if best is None or value > best[0]:
                    best = value, index, pixels.copy()
            if best is not None:
                stored.append(_store(images, *best))
    except (OSError, RuntimeError, StopIteration, ValueError) as error:
        if isinstance(error, SplatError):
            raise
        raise SplatError(f"{video} cannot be read as a video ({reason(error)}); store it as MP4") from error
    if len(stored) < 2:
        raise SplatError(f"{video} has {len(stored)} frame; a capture needs many, taken while the camera moves around")
    on_progress(count, count)
    return stored


def _frames(video: Path) -> Generator[Any, None, None]:
    """First the width, height, seconds and frames a second, then the frames' bytes, upright."""
    from imageio_ffmpeg import read_frames

    reader = read_frames(str(video.resolve()), input_params=_INPUT)
    with closing(reader):
        meta = next(reader)
        (width, height), seconds, rate = meta["size"], float(meta["duration"]), float(meta["fps"])
        if not 0 < width * height <= _MOST_PIXELS or not 0 < seconds < _MOST_SECONDS or not 0 < rate < 1e4:
            raise SplatError(f"{video} says that it is {width}×{height} pixels and {seconds:g} seconds long; store it again")
        yield width, height, seconds, rate
        yield from reader


def _store(images: Path, value: float, index: int, pixels: NDArray[np.uint8]) -> Photograph:
    name = f"frame_{index:06d}.jpg"
    with atomic_path(images / name) as temporary:
        write_picture(temporary, pixels)
    return photograph_of(name, f"frame {index}", pixels)
