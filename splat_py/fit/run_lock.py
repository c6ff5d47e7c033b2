"""One process at a time writes to a run's folder."""

from __future__ import annotations

import json
import os
import platform
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from splat_py.errors import SplatError

_NAME = ".lock"
# Seconds between two starts that are surely those of two processes, whatever the clock was set to in between.
_SAME_START = 10.0
# What `atomic_path` calls files that are not complete yet, of those that runs write, and safetensors within it.
_TEMPORARY = re.compile(
    r"\.((checkpoint|run|scene|metrics|field|blobs|fit|turntable)-[a-z0-9_]{8}\.(safetensors|npz|json|ply|png|mp4)"
    r"|.+-[a-z0-9_]{8}\.png|tmp[A-Za-z0-9]{6})"
)
_FOLDERS = (".", "held-out")


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold a run's folder, made if it does not exist, and remove what killed processes have left half written.

    The lock is a file that names its process; one of a process that is gone is taken over. Folders that were made and stayed
    empty are removed again.

    Raises:
        SplatError: another process holds the folder, or it cannot be written to.
    """
    made = _make(folder)
    lock = folder / _NAME
    try:
        _take(lock)
        try:
            _remove_temporary(folder)
            yield
        finally:
            lock.unlink(missing_ok=True)
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


def _take(lock: Path) -> None:
    try:
        if not _create(lock):
            _remove_stale(lock)
            if not _create(lock):
                raise _held(lock)
    except OSError as error:
        raise _unwritable(lock.parent, error) from error


def _create(lock: Path) -> bool:
    """Whether there was no lock, and there is ours now."""
    try:
        handle = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"pid": os.getpid(), "started": psutil.Process().create_time(), "host": platform.node()}, file)
    return True


def _remove_stale(lock: Path) -> None:
    """Remove the lock of a process that is gone. It is moved away first, so that two that find it do not both take it over."""
    content = lock.read_bytes()
    if not _is_stale(content, lock):
        raise _held(lock)
    moved = lock.with_name(f"{_NAME}-{uuid.uuid4().hex}")
    os.rename(lock, moved)
    if moved.read_bytes() != content:
        os.rename(moved, lock)
        raise _held(lock)
    moved.unlink()


def _is_stale(content: bytes, lock: Path) -> bool:
    try:
        owner = json.loads(content)
        if owner["host"] != platform.node():
            return False
        return psutil.Process(owner["pid"]).create_time() > owner["started"] + _SAME_START
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
    except (ValueError, TypeError, KeyError, OverflowError):
        # Damaged, or just being written.
        return time.time() > lock.stat().st_mtime + _SAME_START


def _remove_temporary(folder: Path) -> None:
    for parent in (folder / name for name in _FOLDERS):
        for path in parent.glob(".*"):
            if _TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)


def _held(lock: Path) -> SplatError:
    return SplatError(
        f"{lock.parent} is in use by another run; wait for it or choose another --out (if there is none, delete {lock})"
    )


def _unwritable(folder: Path, error: OSError) -> SplatError:
    return SplatError(f"cannot write to {folder}: {error.strerror}; choose another output folder")
