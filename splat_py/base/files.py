"""Files and folders that appear complete or not at all, and files with arrays or JSON."""

import errno
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from splat_py.base.errors import SplatError, UnwritableError
from splat_py.base.locks import lock

# By a tensor's name: safetensors' name of its dtype, and its shape.
Layout = dict[str, tuple[str, tuple[int, ...]]]

# splat_py's headers are a few KiB.
_MOST_HEADER_BYTES = 1 << 20
# Largest ratio of unpacked to packed bytes of an .npz; even empty space packs less well.
_MOST_UNPACKED = 1200
# Characters of a reason.
_MOST_REASON = 200
# The beginning of a temporary folder's name, and the folders from which this process has removed abandoned ones.
_TEMPORARY = ".splat_py-"
_cleaned: set[Path] = set()


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path for a file; on success it is flushed to disk and renamed to `target`.

    The temporary file has `target`'s name, because image and video writers choose their format by its suffix. A device or a
    pipe, such as /dev/null or /dev/stdout, gets the bytes and is not replaced.
    """
    target = Path(target)
    if _takes_bytes(target):
        with temporary_folder() as folder:
            written = folder / f"bytes{target.suffix}"
            yield written
            try:
                with written.open("rb") as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
            except OSError as error:
                raise SplatError(f"cannot write {target}: {error.strerror}; name a file") from error
        return
    with _beside(target) as folder:
        temporary = folder / target.name
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except (OSError, SafetensorError) as error:
            # Errors that other libraries raise themselves have no number, and are not about the disk.
            if isinstance(error, OSError) and error.errno is None:
                raise
            reason = error.strerror if isinstance(error, OSError) else error
            advice = "free some space or choose another folder; the previous content is unchanged"
            raise UnwritableError(f"cannot write {target}: {reason}; {advice}") from error


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `target`; on success it is renamed to `target`, which must be missing or empty."""
    with _beside(target) as temporary:
        yield temporary
        # mkdtemp makes private folders; this one is as readable as any other that the user makes.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        try:
            os.replace(temporary, target)
        except OSError as error:
            raise SplatError(f"cannot write {target}: {error.strerror}; choose another folder") from error


@contextmanager
def temporary_files() -> Iterator[None]:
    """Turn errors of the system into a SplatError within a context that only uses the system's folder for temporary files."""
    what, advice = "temporary files cannot be written", "free some space, or name another folder in TMPDIR"
    with refusing(what, advice, OSError):
        yield


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with temporary_files(), tempfile.TemporaryDirectory(prefix="splat_py-") as folder:
        yield Path(folder)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `target`, which the system locks while this process lives, and remove it in the end."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target.parent)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=_TEMPORARY))
    except OSError as error:
        raise UnwritableError(f"cannot write {target}: {error.strerror}; choose another output folder") from error
    handle = _locked(temporary)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _locked(folder: Path) -> int | None:
    """Lock a folder until the returned handle is closed; None if another process holds it, or the system locks no folders."""
    handle = None
    try:
        # Windows opens no folders.
        handle = os.open(folder, os.O_RDONLY)
        lock(handle)
    except OSError:
        if handle is not None:
            os.close(handle)
        return None
    return handle


def remove_abandoned(folder: Path) -> None:
    """Remove temporary folders of processes that were killed, once for each folder: no process has locked these."""
    if folder in _cleaned:
        return
    _cleaned.add(folder)
    first_seen = time.monotonic()
    for path in folder.glob(f"{_TEMPORARY}*"):
        # Another process may be faster.
        with suppress(FileNotFoundError):
            # A folder younger than a second may not be locked yet.
            while time.time() - path.stat().st_mtime < 1 and time.monotonic() - first_seen < 1:
                time.sleep(0.02)
            if (handle := _locked(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(handle)


def is_vacant(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def _takes_bytes(target: Path) -> bool:
    """True for a device or a pipe, which root would otherwise replace by a file."""
    try:
        mode = target.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def save_tensors(path: str | os.PathLike[str], kind: str, header: dict[str, Any], tensors: dict[str, NDArray]) -> None:
    """Write arrays to a .safetensors file whose metadata has `header` as JSON under the name `kind`, atomically."""
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={kind: json.dumps(header)})


def load_tensors(
    path: Path, kind: str | None, check: Callable[[dict[str, Any], Layout], None] = lambda header, layout: None
) -> tuple[dict[str, Any], dict[str, NDArray]]:
    """Read the header and arrays that `save_tensors` wrote; without `kind`, the arrays of any file, and no header. `check` gets
    the header and the tensors' layout before any tensor is read. Errors of safetensors, JSON and the system pass
    through."""
    with regular(path).open("rb") as start:
        if int.from_bytes(start.read(8), "little") > _MOST_HEADER_BYTES:
            raise ValueError(f"its header is longer than {_MOST_HEADER_BYTES} bytes")
    with safe_open(path, framework="numpy") as file:
        header = {} if kind is None else parse_json((file.metadata() or {})[kind])
        if not isinstance(header, dict):
            raise ValueError("its header is no dictionary")
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        check(header, {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()})
        return header, {name: np.array(file.get_tensor(name)) for name in slices}


def load_npz(
    path: Path, check: Callable[[dict[str, Any], Layout], None] = lambda header, layout: None
) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz; nothing is allocated before all their headers are checked, also by `check`, which gets no
    header and the layout. Errors of zipfile, NumPy and the system pass through."""
    layout: Layout = {}
    with zipfile.ZipFile(regular(path)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > max(_MOST_UNPACKED * path.stat().st_size, 1 << 20):
            raise ValueError(f"it would unpack to more than {_MOST_UNPACKED} times its size")
        for member in members:
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename} is shorter than it says, too short for {list(shape)} {dtype}")
            layout[member.filename.removesuffix(".npy")] = f"{dtype.kind.upper()}{8 * dtype.itemsize}", shape
    check({}, layout)
    with np.load(path, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in layout}


def require_writable(path: Path) -> None:
    """Raise SplatError, before long work, if a file could not be written after it."""
    if path.is_dir():
        raise SplatError(f"{path} is a folder; name a file")
    if not _takes_bytes(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise SplatError(f"cannot write {path}: {error.strerror}; choose another output folder") from error


@contextmanager
def refusing(what: str, advice: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds in this context into a SplatError: `what` (their reason); `advice`."""
    try:
        yield
    except kinds as error:
        raise SplatError(f"{what} ({reason(error)}); {advice}") from error


def regular(path: str | os.PathLike[str]) -> Path:
    """The path of a file to read. OSError for a folder, a pipe, a device, which may never end, a file larger than the free
    memory, or a name that no file can have."""
    import psutil

    path = Path(path)
    try:
        status = path.stat()
    except ValueError as error:
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from error
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))
    if status.st_size > psutil.virtual_memory().available:
        raise OSError(errno.EFBIG, f"its {status.st_size:,} bytes are more than the free memory", str(path))
    return path


def is_file(path: Path) -> bool:
    """True if the file exists; False also for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def checksum_of(content: bytes) -> str:
    """32 hexadecimal digits that tell whether bytes are whole."""
    return hashlib.sha256(content).hexdigest()[:32]


def parse_json(text: str) -> Any:
    """Parse JSON; ValueError if it is invalid, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def reason(error: BaseException) -> str:
    """The message of another library's error, as a clause of a sentence."""
    words = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
    return words if len(words) <= _MOST_REASON else words[:_MOST_REASON] + " …"


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    # The names of files may hold bytes that are no text; as escapes of JSON they are read again as they were.
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
