"""Paths that commands are given to read, refused at once, without a library, where they cannot be."""

import shlex
from pathlib import Path
from typing import Literal

from splat_py.base.errors import SplatError

# Descriptions of a capture that `load_dataset` reads.
Format = Literal["auto", "colmap", "transforms", "synthetic"]
DESCRIPTIONS = ("transforms.json", "transforms_train.json")
PHOTOGRAPHS = {".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp"}
PHONE_PHOTOGRAPHS = {".heic", ".heif"}
VIDEOS = {".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v"}
# Endings of videos that are written, and their most frames: almost an hour.
VIDEO_ENDINGS, MOST_FRAMES = (".mp4", ".gif", ".webm"), 100_000
# Modes of a picture of a scene (`splat_py.render.views.render`).
MODES = ("color", "depth", "normals", "alpha", "contributions")
CONVERT_HEIC = "convert it to JPEG, for example with `magick mogrify -format jpg *.heic`, or on a Mac `sips -s format jpeg`"

PLY, COMPRESSED_PLY = ".ply", ".compressed.ply"
# Endings of files of Gaussians, in the order in which they are listed for users.
ENDINGS = (PLY, COMPRESSED_PLY, ".spz", ".sog", ".splat", ".ksplat", ".glb")
# The description of a SOG that is a folder.
META = "meta.json"


def require_video_name(path: Path) -> None:
    """Raise SplatError for a name that says of no video what kind it is."""
    if path.suffix.lower() not in VIDEO_ENDINGS:
        raise SplatError(f"cannot write a video to {path}; use a name that ends in .mp4, .gif or .webm")


def ending_of(path: Path) -> str | None:
    """One of `ENDINGS`, meta.json, or None."""
    name = path.name.lower()
    if name == META:
        return META
    return next((ending for ending in (COMPRESSED_PLY, *ENDINGS) if name.endswith(ending)), None)


def is_scene_file(path: Path) -> bool:
    """True if the name is that of a file of Gaussians, whether there is one or not."""
    return ending_of(path) is not None


def require_ending(path: Path) -> str:
    """The ending of a scene's file; SplatError for a name that has none."""
    ending = ending_of(path)
    if ending is None:
        raise SplatError(f"{str(path)[:300]} has no ending of a scene's file; use {' '.join(ENDINGS)}")
    return ending


def require_scene_file(path: Path) -> str:
    """The ending of a file of Gaussians that is to be read."""
    ending = require_ending(path)
    try:
        exists = path.is_file()
    except (OSError, ValueError):  # no file can have this name
        exists = False
    if not exists:
        raise SplatError(f"{str(path)[:300]} does not exist or is a folder; pass a scene's file")
    return ending


def require_scene(scene: Path, data: Path | None = None) -> None:
    """Refuse what is neither a run's folder nor a scene's file, and what `require_capture` does for `data`."""
    if is_scene_file(scene):
        if not scene.exists():
            raise SplatError(f"{scene} does not exist; name a run's folder or a scene's file")
    elif not (scene / "run.json").exists():
        if scene.is_file():
            raise SplatError(f"{scene} is neither a run's folder nor a scene's file ({' '.join(ENDINGS)})")
        raise SplatError(f"{scene} is not the folder of a training run: it has no run.json")
    if data is not None:
        require_capture(data)


def require_cameras(scene: Path, data: Path | None) -> None:
    """Raise SplatError for a scene's file without a capture, where cameras are needed."""
    if data is None and is_scene_file(scene):
        raise SplatError(f"{scene} says nothing about cameras; name a capture with --data")


def find_model(root: Path) -> Path | None:
    """The folder below `root` that holds a COLMAP model: sparse/0, sparse, or `root` itself; or where nerfstudio puts it,
    colmap/sparse/0, if transforms.json is not there."""
    folders = [root / "sparse" / "0", root / "sparse", root]
    if not any((root / name).is_file() for name in DESCRIPTIONS):
        folders.append(root / "colmap" / "sparse" / "0")
    return next((f for f in folders for end in ("bin", "txt") if (f / f"cameras.{end}").is_file()), None)


def needs_poses(data: Path) -> bool:
    """True for a video, or a folder of photographs or of a video that nothing describes the poses of."""
    if data.is_file():
        return data.suffix.lower() in VIDEOS
    return not _has_poses(data) and any(suffix in PHOTOGRAPHS | PHONE_PHOTOGRAPHS | VIDEOS for suffix in _suffixes(data))


def require_photographs(source: Path) -> None:
    """Raise SplatError for what is neither a folder nor a video."""
    if source.is_file() and source.suffix.lower() not in VIDEOS:
        raise SplatError(f"{source} is neither a folder of photographs nor a video ({', '.join(sorted(VIDEOS))})")
    if not source.exists():
        raise SplatError(f"{source} does not exist; name a folder of photographs or a video")


def require_capture(data: Path) -> None:
    """Refuse what is no folder of posed photographs, without decoding anything."""
    command = f"splat capture {shlex.quote(str(data))} --out FOLDER"
    step = f"find poses first: `{command}`, and pass FOLDER (`splat train` does so by itself)"
    if data.is_file() and data.suffix.lower() in VIDEOS:
        raise SplatError(f"{data} is a video, and poses are needed: {step}")
    if data.is_file():
        raise SplatError(f"{data} is not a folder but a file; pass the folder of a capture")
    if not data.is_dir():
        raise SplatError(f"{data} is not a folder, and does not exist; pass the folder of a capture")
    if _has_poses(data):
        return
    suffixes = _suffixes(data)
    if photographs := sum(suffix in PHOTOGRAPHS | PHONE_PHOTOGRAPHS for suffix in suffixes):
        count = f"{photographs} photograph{'s' * (photographs > 1)}"
        raise SplatError(f"{data} holds {count} but nothing that says where they were taken from; {step}")
    if any(suffix in VIDEOS for suffix in suffixes):
        raise SplatError(f"{data} holds a video but no poses; {step}")
    raise SplatError(f"{data} holds no capture; expected a COLMAP model (sparse/0), {' or '.join(DESCRIPTIONS)}")


def _has_poses(folder: Path) -> bool:
    """True if something in a folder describes poses, well or badly."""
    return find_model(folder) is not None or any((folder / name).is_file() for name in DESCRIPTIONS)


def _suffixes(root: Path) -> list[str]:
    """The suffixes of what is in a folder or its folder of photographs."""
    folders = [folder for folder in (root, root / "images") if folder.is_dir()]
    return [file.suffix.lower() for folder in folders for file in folder.iterdir()]
