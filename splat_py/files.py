"""Files that appear complete or not at all, with arrays or JSON in them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from splat_py.errors import SplatError


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in `target`'s folder; on success it is flushed to disk and renamed to `target`.

    The temporary name keeps `target`'s suffix, because image and video writers choose their format by it.

    Raises:
        SplatError: the folder cannot be made or written to, or the disk is full.
    """
    target = Path(target)
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
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except (OSError, SafetensorError) as error:
        # Other libraries' own errors have no number, and nothing to do with the disk.
        if isinstance(error, OSError) and error.errno is None:
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        advice = "free some space or choose another folder; what was there before is as it was"
        raise SplatError(f"cannot write {target}: {reason}; {advice}") from error
    finally:
        temporary.unlink(missing_ok=True)


def save_tensors(path: str | os.PathLike[str], kind: str, header: dict[str, Any], tensors: dict[str, NDArray]) -> None:
    """Write arrays to a .safetensors file whose metadata has `header` as JSON under the name `kind`, atomically."""
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={kind: json.dumps(header)})


def load_tensors(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, NDArray]]:
    """Header and arrays that `save_tensors` wrote.

    Raises:
        SafetensorError, KeyError, ValueError, OSError: the file is damaged or something else.
    """
    with safe_open(path, framework="numpy") as file:
        header = json.loads((file.metadata() or {})[kind])
        return header, {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write JSON, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
