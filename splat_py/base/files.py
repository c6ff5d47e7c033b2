"""Files and folders that appear complete or not at all, and files with arrays or JSON."""

import errno
import json
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from splat_py.base.errors import SplatError

# By a tensor's name: safetensors' name of its dtype, and its shape.
Layout = dict[str, tuple[str, tuple[int, ...]]]

# splat_py's headers are a few KiB.
_MOST_HEADER_BYTES = 1 << 20
# Characters of a reason.
_MOST_REASON = 200


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in `target`'s folder; on success it is flushed to disk and renamed to `target`.

    The temporary name keeps `target`'s suffix, because image and video writers choose their format by it. A device or a pipe,
    such as /dev/null or /dev/stdout, gets the bytes and is not replaced.
    """
    target = Path(target)
    if _takes_bytes(target):
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / f"bytes{target.suffix}"
            yield written
            try:
                with written.open("rb") as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
            except OSError as error:
                raise SplatError(f"cannot write {target}: {error.strerror}; name a file") from error
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=target.suffix)
    except OSError as error:
        raise SplatError(f"cannot write {target}: {error.strerror}; choose another output folder") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files private; outputs are as readable as any other file the user makes.
        make_public(temporary, 0o666)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except (OSError, SafetensorError) as error:
        # Errors that other libraries raise themselves have no number, and are not about the disk.
        if isinstance(error, OSError) and error.errno is None:
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        advice = "free some space or choose another folder; the previous content is unchanged"
        raise SplatError(f"cannot write {target}: {reason}; {advice}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `target`; on success it is renamed to `target`, which must be missing or empty."""
    advice = "choose another folder"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    except OSError as error:
        raise SplatError(f"cannot write {target}: {error.strerror}; {advice}") from error
    try:
        yield temporary
        make_public(temporary, 0o777)
        try:
            os.replace(temporary, target)
        except OSError as error:
            raise SplatError(f"cannot write {target}: {error.strerror}; {advice}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_vacant(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def make_public(path: Path, mode: int) -> None:
    """Give a file or folder of tempfile's the usual permissions of the user's files: `mode` without the umask."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(mode & ~umask)


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


def npy_header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Read the shape and type of an array in an .npz, without allocating it."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype


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
    """The path of a file to read. OSError for a folder, a pipe, a device, which may never end, or a file larger than the free
    memory."""
    import psutil

    path = Path(path)
    status = path.stat()
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
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
