"""Videos as files: .mp4, .gif and .webm, by ffmpeg."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from splat_py.errors import SplatError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from splat_py.scene.camera import Camera

# What ffmpeg is told, by suffix. A GIF gets a palette of its own, made from all its frames.
_ENCODERS = {
    ".mp4": ["-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"],
    ".webm": ["-c:v", "libvpx-vp9", "-crf", "30", "-b:v", "0", "-cpu-used", "4", "-pix_fmt", "yuv420p", "-f", "webm"],
    ".gif": ["-filter_complex", "split[a][b];[a]palettegen[p];[b][p]paletteuse", "-f", "gif"],
}
# Almost an hour.
MOST_FRAMES = 100_000
# Rows that a video has at least, if nobody asks for a size: photographs are often trained on at a tenth of theirs.
_LEAST_HEIGHT = 480


def require_video_name(path: Path) -> None:
    """Refuse a name, before anything is rendered, that says of no video what kind it is.

    Raises:
        SplatError: its suffix is none of .mp4, .gif, .webm.
    """
    if path.suffix.lower() not in _ENCODERS:
        raise SplatError(f"cannot write a video to {path}; use a name that ends in .mp4, .gif or .webm")


def film_camera(camera: Camera, scale: float | None) -> Camera:
    """A camera for a video: sides times `scale`, or at least 480 rows where that is None; even, as encoders want them."""
    factor = max(1.0, _LEAST_HEIGHT / camera.height) if scale is None else scale
    scaled = camera.scaled(factor)
    return camera.resized(*(max(2, side + side % 2) for side in (scaled.width, scaled.height)))


def write_video(path: Path, frames: Iterable[NDArray[np.floating]], frames_per_second: int = 30) -> None:
    """Write frames [H, W, 3] from 0 to 1 as a video, atomically; odd sides lose a row or a column.

    Frames are encoded as they come. If anything goes wrong, an older file stays as it was.

    Raises:
        SplatError: the suffix is no video's, there is no frame, or ffmpeg could not write the file.
    """
    from imageio_ffmpeg import get_ffmpeg_exe

    from splat_py.files import atomic_path
    from splat_py.scene.pictures import to_bytes

    require_video_name(path)
    even = (to_bytes(frame)[: len(frame) // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames)
    first = next(even, None)
    if first is None or not first.size:
        raise SplatError(f"cannot write a video to {path}: a video needs a frame of at least 2×2 pixels")
    size = f"{first.shape[1]}x{first.shape[0]}"
    try:
        source = f"-f rawvideo -pix_fmt rgb24 -s {size} -r {frames_per_second} -i -".split()
        with atomic_path(path) as temporary:
            options = [*source, *_ENCODERS[path.suffix.lower()], str(temporary.absolute())]
            _encode([get_ffmpeg_exe(), "-y", "-loglevel", "error", *options], chain([first], even), path)
            if not temporary.stat().st_size:
                raise SplatError(f"cannot write a video to {path}: ffmpeg wrote nothing; is the disk full?")
    except (OSError, RuntimeError) as error:
        raise SplatError(f"cannot write a video to {path}: {getattr(error, 'strerror', None) or error}") from error


def _encode(command: list[str], frames: Iterable[NDArray[np.uint8]], path: Path) -> None:
    """Give the frames to ffmpeg; its status counts, and its last word is the reason."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None
    said: list[bytes] = []
    # ffmpeg would wait for whoever reads what it says while we wait for it to take a frame.
    listener = threading.Thread(target=lambda stream: said.extend(stream), args=(process.stderr,), daemon=True)
    listener.start()
    try:
        try:
            for frame in frames:
                process.stdin.write(frame.tobytes())
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended early, and says why
        status = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    listener.join()
    process.stderr.close()
    if status:
        reason = b"".join(said).decode(errors="replace").strip().splitlines() or [f"ffmpeg ended with status {status}"]
        raise SplatError(f"cannot write a video to {path}: {reason[-1].strip()}; is there room on the disk?")
