"""Files of fields: arrays by name, in .safetensors or .npz, checked before any of them is read."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import Layout, atomic_path, load_tensors, save_tensors

# An .npz of empty space packs well, but not this well.
_MOST_UNPACKED = 1200


def save_field(path: str | os.PathLike[str], kind: str, arrays: dict[str, NDArray[Any]]) -> None:
    """Write a field's arrays, atomically; `kind` says what they are."""
    path = Path(path)
    _require_suffix(path)
    if path.suffix == ".npz":
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    else:
        save_tensors(path, "splat_py", {"kind": kind}, arrays)


def existing_field(path: str | os.PathLike[str]) -> Path:
    """Raise SplatError unless there is a file that is called like a field."""
    path = Path(path)
    _require_suffix(path)
    if not path.is_file():
        raise SplatError(f"{path} does not exist; name a radiance field's .safetensors or .npz")
    return path


def read_field(path: Path, check: Callable[[dict[str, Any], Layout], None]) -> dict[str, NDArray[Any]]:
    """What `save_field` wrote.

    Args:
        check: told of what arrays there are before any of them is read; raises where it dislikes them.

    Raises:
        ValueError, OSError, …: it is damaged or something else.
    """
    return _read_npz(path, check) if path.suffix == ".npz" else load_tensors(path, None, check)[1]


def _read_npz(path: Path, check: Callable[[dict[str, Any], Layout], None]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz, of which nothing is allocated before it is clear what they are."""
    layout: Layout = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > max(_MOST_UNPACKED * path.stat().st_size, 1 << 20):
            raise ValueError(f"it would unpack to more than {_MOST_UNPACKED} times its size")
        for member in members:
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename} is shorter than it says")
            layout[member.filename.removesuffix(".npy")] = f"{dtype.kind.upper()}{8 * dtype.itemsize}", shape
    check({}, layout)
    with np.load(path, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in layout}


def _require_suffix(path: Path) -> None:
    if path.suffix not in (".npz", ".safetensors"):
        raise SplatError(f"{path} does not end in .safetensors or .npz, the formats of a radiance field")
