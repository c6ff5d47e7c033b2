"""Checkpoints: when they are written, and what is said of files that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from splat_py.errors import SplatError
from splat_py.files import reason


@contextmanager
def reading(path: Path, what: str, advice: str, *, absent: str) -> Iterator[None]:
    """Around `load_tensors` and what becomes of them.

    Args:
        what: the file should be.
        advice: if it is something else.
        absent: what it means that there is no file, or what to do.

    Raises:
        SplatError: the file is missing, damaged or something else.
    """
    if not path.is_file():
        raise SplatError(f"{path} does not exist; {absent}")
    try:
        yield
    except (SafetensorError, KeyError, TypeError, ValueError, OSError, MemoryError) as error:
        raise SplatError(f"{path} is not {what} or is damaged; {advice} ({reason(error)})") from error


@contextmanager
def kept_checkpoint(path: Path | None, save: Callable[[Path], None]) -> Iterator[Callable[[], None]]:
    """A function that saves a checkpoint to `path`, if there is one. Also saves when the user interrupts."""

    def keep() -> None:
        if path is not None:
            save(path)

    try:
        yield keep
    except KeyboardInterrupt:
        keep()
        raise
