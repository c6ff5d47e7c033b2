"""One process at a time writes to a run's folder."""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from splat_py.errors import SplatError

_NAME = ".lock"
# What `atomic_path` calls files that are not complete yet, of those that runs write, and safetensors within it.
_TEMPORARY = re.compile(
    r"\.((checkpoint|run|scene|metrics|field|blobs|fit|turntable|capture)-[a-z0-9_]{8}\.(safetensors|npz|json|ply|png|mp4)"
    r"|.+-[a-z0-9_]{8}\.png|tmp[A-Za-z0-9]{6})"
)
_FOLDERS = (".", "held-out")
# What a system says of a file that another process has locked.
_LOCKED = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold a run's folder, made if it does not exist, and remove what killed processes have left half written.

    The system locks a file there for as long as this process lives, so that one that was killed, at whatever moment, holds
    nothing. Folders that were made and stayed empty are removed again.

    Raises:
        SplatError: another process holds the folder, or it cannot be written to.

    Warns:
        UserWarning: the folder is on a disk that knows no locks.
    """
    made = _make(folder)
    lock = folder / _NAME
    try:
        handle = _take(lock)
        try:
            _remove_temporary(folder)
            yield
        finally:
            _release(lock, handle)
    finally:
        for path in made:
            # Not empty, or another process' by now.
            try:
                path.rmdir()
            except OSError:
                break


def _make(folder: Path) -> list[Path]:
    """Make a folder and its parents; returns those that did not exist, the innermost first."""
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return absent


def _take(lock: Path) -> int:
    """The locked file, open."""
    while True:
        try:
            handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
        except OSError as error:
            raise _unwritable(lock.parent, error) from error
        try:
            _lock(handle)
        except OSError as error:
            if error.errno in _LOCKED:
                os.close(handle)
                raise SplatError(f"{lock.parent} is in use by another run; wait for it or choose another --out") from error
            warnings.warn(f"{lock.parent} is on a disk that knows no locks; let no other run write there", stacklevel=4)
        # Whoever held it may just have removed it: what is locked then is not what the next process will find.
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), os.stat(lock)):
                return handle
        os.close(handle)


def _lock(handle: int) -> None:
    """Lock an open file, or raise OSError at once."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _release(lock: Path, handle: int) -> None:
    # Removed while it is locked, lest another process' lock be removed; Windows removes no open file.
    if sys.platform != "win32":
        lock.unlink(missing_ok=True)
    os.close(handle)
    if sys.platform == "win32":
        with suppress(OSError):
            lock.unlink()


def _remove_temporary(folder: Path) -> None:
    for parent in (folder / name for name in _FOLDERS):
        for path in parent.glob(".*"):
            if _TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)


def _unwritable(folder: Path, error: OSError) -> SplatError:
    return SplatError(f"cannot write to {folder}: {error.strerror}; choose another output folder")
