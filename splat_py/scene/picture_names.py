"""What files of rendered views are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath


def picture_names(views: Sequence[str]) -> list[str]:
    """A PNG's name for each of a dataset's views, from their names: the photograph's, and where another one has the same, also
    its folders, its suffix and at last a number."""
    paths = [PurePosixPath(view.replace("\\", "/")) for view in views]
    whole = ["-".join(part for part in path.parts if part != "/") for path in paths]
    names = [path.stem for path in paths]
    for longer in (
        [name.removesuffix(path.suffix) for name, path in zip(whole, paths, strict=True)],
        whole,
        [f"{index}-{name}" for index, name in enumerate(whole)],
    ):
        # Some file systems take no notice of case.
        count = Counter(name.lower() for name in names)
        names = [name if count[name.lower()] == 1 else other for name, other in zip(names, longer, strict=True)]
    return [f"{name}.png" for name in names]
