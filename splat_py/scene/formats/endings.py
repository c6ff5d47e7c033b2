"""The endings of names of files of Gaussians. Needs nothing, so that commands can refuse other names at once."""

from __future__ import annotations

from pathlib import Path

from splat_py.errors import SplatError

PLY, COMPRESSED_PLY = ".ply", ".compressed.ply"
# In the order in which they are listed for users.
ENDINGS = (PLY, COMPRESSED_PLY, ".spz", ".sog", ".splat", ".ksplat", ".glb")
# The description of a SOG that is a folder.
META = "meta.json"


def ending_of(path: Path) -> str | None:
    """One of `ENDINGS`, meta.json, or None."""
    name = path.name.lower()
    if name == META:
        return META
    return next((ending for ending in (COMPRESSED_PLY, *ENDINGS) if name.endswith(ending)), None)


def require_ending(path: Path) -> None:
    """Raise SplatError for a name that is not a scene's file's."""
    if not is_scene_file(path):
        raise SplatError(f"{path} has no ending of a scene's file; use {' '.join(ENDINGS)}")


def require_scene_file(path: Path) -> str:
    """The ending of a file of Gaussians that is to be read.

    Raises:
        SplatError: the name has another ending, or there is no such file.
    """
    ending = ending_of(path)
    if ending is None:
        raise SplatError(f"{str(path)[:300]} has no ending of a scene's file; {' '.join(ENDINGS)} are read")
    try:
        exists = path.is_file()
    except (OSError, ValueError):  # no file can have this name
        exists = False
    if not exists:
        raise SplatError(f"{str(path)[:300]} does not exist or is a folder; pass a scene's file")
    return ending


def is_scene_file(path: Path) -> bool:
    """Whether the name is that of a file of Gaussians, whether there is one or not."""
    return ending_of(path) is not None
