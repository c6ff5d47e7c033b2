"""Compiled kernels, kept between processes: with them, a process's first image takes 2.4 s of processor time, without them 9 s
(software Vulkan, a slow core; 0.6 s with compiled modules, too).

SlangPy keeps kernels in a database that is mapped into memory, and a damaged one crashes the process. So each process works on
its own copy in the system's temporary folder, made from a file that is named by its checksum:

    <user's cache>/splat_py/<hash of the shaders and of SlangPy's version>/kernels-<checksum>.mdb

A copy with new kernels is stored as such a file, unless another process has stored a larger one. Files that are damaged, or
cannot be read or written, only cost compile time. Emitted Metal source lies in the same folder, one file per kernel
(`EmissionCache`).
"""

import atexit
import json
import os
import shutil
import tempfile
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_path, checksum_of
from splat_py.gpu.compiled_modules import cache_folder
from splat_py.gpu.emission import EmittedKernel, emit
from splat_py.gpu.kernels import specialisation_source
from splat_py.gpu.slang_compiler import Target

# Number of folders to keep: each edit of a shader makes a new one.
_KEPT_FOLDERS = 6
# Seconds between stores: a killed process loses only the kernels compiled since the last one.
_KEEP_EVERY_SECONDS = 10.0
_COPY_PREFIX = "splat_py-kernels-"


class CompileCache:
    """This process's copy of the stored kernels. It warns once if they are damaged, or if the folder cannot be read or
    written."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept
        self._checksum = ""
        self._kept_at = time.monotonic()
        self._process = os.getpid()
        self._warned = False
        # The copy's folder, for SlangPy; None without a copy.
        self.folder: Path | None = None
        try:
            _remove_abandoned_copies()
            self.folder = Path(tempfile.mkdtemp(prefix=f"{_COPY_PREFIX}{self._process}-"))
            self._database(self.folder).parent.mkdir(parents=True)
            stored = self._read()
            if stored is not None:
                self._database(self.folder).write_bytes(stored)
        except OSError as error:
            self._warn(f"cannot be used, because temporary files cannot be written ({error.strerror})")
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None
            return
        try:
            kept.mkdir(parents=True, exist_ok=True)
            os.utime(kept)
        except OSError as error:
            self._warn(f"cannot be written ({error.strerror})")
        _prune(kept.parent)
        atexit.register(self._close)

    def kernel_is_due(self) -> None:
        """Store the copy before another kernel is compiled, unless that was done a moment ago."""
        if time.monotonic() - self._kept_at > _KEEP_EVERY_SECONDS:
            self.keep()

    def keep(self) -> None:
        """Store the copy if it has new kernels."""
        self._kept_at = time.monotonic()
        try:
            # The database only writes pages that nothing refers to yet, so the file is consistent at any moment.
            content = self._database(self.folder).read_bytes() if self.folder else b""
            checksum = checksum_of(content)
            if not content or checksum == self._checksum:
                return
            self._kept.mkdir(parents=True, exist_ok=True)
            older = list(self._kept.glob("kernels-*.mdb"))
            if any(_age_and_size(file)[1] > len(content) for file in older):
                return
            with atomic_path(self._kept / f"kernels-{checksum}.mdb") as temporary:
                temporary.write_bytes(content)
            self._checksum = checksum
            for file in older:
                file.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            self._warn(f"cannot be written ({getattr(error, 'strerror', None) or error})")

    def _read(self) -> bytes | None:
        """Return the newest stored kernels that are intact, and remove damaged ones."""
        for file in sorted(self._kept.glob("kernels-*.mdb"), key=_age_and_size):
            try:
                content = file.read_bytes()
            except OSError as error:
                self._warn(f"cannot be read ({error.strerror})")
                continue
            checksum = checksum_of(content)
            if file.name == f"kernels-{checksum}.mdb":
                self._checksum = checksum
                return content
            self._warn("is damaged")
            with suppress(OSError):
                file.unlink()
        return None

    def _close(self) -> None:
        # A forked child inherits this call, but the copy belongs to its parent.
        if os.getpid() == self._process and self.folder is not None:
            self.keep()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _warn(self, what: str) -> None:
        if not self._warned:
            warnings.warn(f"the folder of compiled kernels, {self._kept}, {what}: kernels are compiled again", stacklevel=3)
        self._warned = True

    @staticmethod
    def _database(folder: Path) -> Path:
        """SlangPy's path of the database in a folder."""
        return folder / "rhi" / "data.mdb"


def _age_and_size(path: Path) -> tuple[float, int]:
    try:
        found = path.stat()
    except OSError:
        return 0.0, 0
    return -found.st_mtime, found.st_size


def _prune(root: Path) -> None:
    """Remove the folders of other shader versions, except the last ones used."""
    with suppress(OSError):
        folders = [folder for folder in root.iterdir() if folder.is_dir()]
        for folder in sorted(folders, key=_age_and_size)[_KEPT_FOLDERS:]:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned_copies() -> None:
    """Remove the copies of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_COPY_PREFIX}*"):
        process = folder.name.removeprefix(_COPY_PREFIX).partition("-")[0]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


class EmissionCache:
    """Emitted source in one language, kept because emitting takes up to a second per kernel. A file's first line is a checksum
    of the rest."""

    def __init__(self, target: Target = "metal") -> None:
        self._emit = partial(emit, target)
        self._folder = cache_folder() / target

    def get(self, module: str, entry: str, constants: dict[str, Any]) -> EmittedKernel:
        what = "\0".join((module, entry, specialisation_source(module, constants) if constants else ""))
        path = self._folder / f"{entry}-{checksum_of(what.encode())}.json"
        with suppress(OSError, ValueError):
            checksum, _, text = path.read_text(encoding="utf-8").partition("\n")
            if checksum == checksum_of(text.encode()):
                source, (x, y, z) = json.loads(text)
                return EmittedKernel(source, (x, y, z))
        kernel = self._emit(module, entry, constants)
        text = json.dumps(kernel)
        with suppress(SplatError), atomic_path(path) as temporary:
            temporary.write_text(f"{checksum_of(text.encode())}\n{text}", encoding="utf-8")
        return kernel
