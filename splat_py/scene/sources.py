"""Checks of the paths that commands read, without importing heavy libraries."""

import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from splat_py.base.errors import SplatError

# DATA, if a command leaves it out: a name that Windows forbids and nobody uses elsewhere.
OMITTED = Path("<DATA>")
# Formats of a capture that `load_dataset` reads.
Format = Literal["auto", "colmap", "transforms", "synthetic"]
# Photographs that are held out: the middle one of every few, or the first one.
Split = Literal["middle", "first"]
DESCRIPTIONS = ("transforms.json", "transforms_train.json")
PHOTOGRAPHS = {".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp"}
PHONE_PHOTOGRAPHS = {".heic", ".heif"}
VIDEOS = {".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v"}
# Pictures that people have, and that are not read.
_UNREAD = {".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2", ".pef", ".gif"}
# Endings of videos that can be written, and their most frames: almost an hour.
VIDEO_ENDINGS, MOST_FRAMES = (".mp4", ".gif", ".webm"), 100_000
# Modes of a picture of a scene (`splat_py.render.views.render`).
MODES = ("color", "depth", "normals", "alpha", "contributions")
CONVERT_HEIC = "convert it to JPEG, for example with `magick mogrify -format jpg *.heic`, or on a Mac `sips -s format jpeg`"

PLY, COMPRESSED_PLY = ".ply", ".compressed.ply"
# Endings of scene files, in the order of lists for users.
ENDINGS = (PLY, COMPRESSED_PLY, ".spz", ".sog", ".splat", ".ksplat", ".glb")
# Endings of meshes that can be written.
MESH_ENDINGS = (".ply", ".glb")
# The main file of an unzipped SOG folder.
META = "meta.json"


def require_video_name(path: Path) -> None:
    """Raise SplatError if the name does not end in a supported video format."""
    if path.suffix.lower() not in VIDEO_ENDINGS:
        raise SplatError(f"cannot write a video to {path}; use a name that ends in .mp4, .gif or .webm")


def require_mesh_name(path: Path) -> None:
    """Raise SplatError if the name does not end like a mesh."""
    if path.suffix.lower() not in MESH_ENDINGS or path.name.lower().endswith(COMPRESSED_PLY):
        raise SplatError(f"cannot write a mesh to {str(path)[:300]}; use a name that ends in {' or '.join(MESH_ENDINGS)}")


def ending_of(path: Path) -> str | None:
    """One of `ENDINGS`, meta.json, or None."""
    name = path.name.lower()
    if name == META:
        return META
    return next((ending for ending in (COMPRESSED_PLY, *ENDINGS) if name.endswith(ending)), None)


def is_scene_file(path: Path) -> bool:
    """True if the name ends like a scene file; the file need not exist."""
    return ending_of(path) is not None


def require_ending(path: Path) -> str:
    """The ending of a scene file's name; SplatError for any other name."""
    ending = ending_of(path)
    if ending is None:
        raise SplatError(f"{str(path)[:300]} does not end like a scene file; use {' '.join(ENDINGS)}")
    return ending


def require_scene_file(path: Path) -> str:
    """The ending of a scene file; SplatError if it is unknown or the file does not exist."""
    ending = require_ending(path)
    try:
        exists = path.is_file()
    except (OSError, ValueError):  # no file can have this name
        exists = False
    if not exists:
        raise SplatError(f"{str(path)[:300]} does not exist or is a folder; pass a scene file")
    return ending


def require_scene(scene: Path, data: Path | None = None) -> None:
    """Raise SplatError unless `scene` is a run's folder or a scene file; check `data` with `require_capture`."""
    if is_scene_file(scene):
        require_scene_file(scene)
    elif not (scene / "run.json").exists():
        if scene.is_file():
            raise SplatError(f"{scene} is neither a run's folder nor a scene file ({' '.join(ENDINGS)})")
        raise SplatError(f"{scene} is not the folder of a training run: it has no run.json")
    if data is not None:
        require_capture(data)


def require_cameras(scene: Path, data: Path | None) -> None:
    """Raise SplatError if `scene` is a scene file without a capture: it has no cameras."""
    if data is None and is_scene_file(scene):
        raise SplatError(f"{scene} has no cameras; name a capture with --data")


def find_model(root: Path) -> Path | None:
    """The folder of a COLMAP model below `root`: sparse/0, sparse, `root` itself, or, if there is no transforms.json or
    transforms_train.json, nerfstudio's colmap/sparse/0. None if there is no model."""
    folders = [root / "sparse" / "0", root / "sparse", root]
    if not any((root / name).is_file() for name in DESCRIPTIONS):
        folders.append(root / "colmap" / "sparse" / "0")
    return next((f for f in folders for end in ("bin", "txt") if (f / f"cameras.{end}").is_file()), None)


def needs_poses(data: Path) -> bool:
    """True for a video, or for a folder with photographs or a video but without poses."""
    if data == OMITTED:
        return False
    if data.is_file():
        return data.suffix.lower() in VIDEOS
    return not _has_poses(data) and any(suffix in PHOTOGRAPHS | PHONE_PHOTOGRAPHS | VIDEOS for suffix in _suffixes(data))


def require_photographs(source: Path) -> None:
    """Raise SplatError unless `source` is a folder or a video."""
    if not source.exists():
        raise SplatError(f"{source} does not exist; name a folder of photographs or a video")
    if not source.is_dir() and not (source.is_file() and source.suffix.lower() in VIDEOS):
        raise SplatError(f"{source} is neither a folder of photographs nor a video ({', '.join(sorted(VIDEOS))})")


def unread(suffixes: Iterable[str]) -> str:
    """A clause on RAW and GIF files that are left out, from the suffixes of all files; empty if there are none."""
    counts = Counter(suffix for suffix in suffixes if suffix in _UNREAD)
    files = ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))
    return f"RAW and GIF files are not read ({files}); save them as JPEG, PNG or TIFF" if files else ""


def require_capture(data: Path) -> None:
    """Raise SplatError unless `data` is a folder with poses; decodes nothing."""
    if data == OMITTED:
        raise SplatError("name a folder of photographs, a video or a capture, as in `splat train photos/`")
    command = f"splat capture {shlex.quote(str(data))} --out FOLDER"
    step = f"find poses first: `{command}`, and pass FOLDER (`splat train` does so automatically)"
    if data.is_file() and data.suffix.lower() in VIDEOS:
        raise SplatError(f"{data} is a video without poses; {step}")
    if data.is_file():
        raise SplatError(f"{data} is a file; name a folder of photographs, a video or a capture")
    if not data.is_dir():
        raise SplatError(f"{data} does not exist; name a folder of photographs, a video or a capture")
    if _has_poses(data):
        return
    suffixes = _suffixes(data)
    if photographs := sum(suffix in PHOTOGRAPHS | PHONE_PHOTOGRAPHS for suffix in suffixes):
        count = f"{photographs} photograph{'s' * (photographs > 1)}"
        raise SplatError(f"{data} holds {count} but no poses; {step}")
    if any(suffix in VIDEOS for suffix in suffixes):
        raise SplatError(f"{data} holds a video but no poses; {step}")
    nothing = f"{data} holds no photographs, no video and no capture (a COLMAP model in sparse/0, {' or '.join(DESCRIPTIONS)})"
    raise SplatError(f"{nothing}; {unread(suffixes) or 'name the folder that they are in'}")


def _has_poses(folder: Path) -> bool:
    """True if a folder holds a description of poses, valid or not."""
    return find_model(folder) is not None or any((folder / name).is_file() for name in DESCRIPTIONS)


def _suffixes(root: Path) -> list[str]:
    """The suffixes of the files in a folder and in its folder images."""
    folders = [folder for folder in (root, root / "images") if folder.is_dir()]
    return [file.suffix.lower() for folder in folders for file in folder.iterdir()]
