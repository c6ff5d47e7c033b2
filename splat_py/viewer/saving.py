"""Names of files that pages have written: always in one folder, never one that is there already."""

from __future__ import annotations

from itertools import count
from pathlib import Path


def free_path(folder: Path, name: str) -> Path:
    """`folder`/`name`, or with -2, -3 … before its suffix if there is such a file."""
    path = folder / name
    for number in count(2):
        if not path.exists():
            return path
        path = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
    raise AssertionError
