"""The endings of names of files of Gaussians. Needs nothing, so that commands can refuse other names at once."""

from __future__ import annotations

from pathlib import Path

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


def is_scene_file(path: Path) -> bool:
    """Whether the name is that of a file of Gaussians, whether there is one or not."""
    return ending_of(path) is not None
