"""What to say of a folder or a file in which nothing describes poses: the step that is missing, and how to do it."""

from __future__ import annotations

import shlex
from pathlib import Path

from splat_py.errors import SplatError
from splat_py.scene.formats.endings import ENDINGS, is_scene_file

DESCRIPTIONS = ("transforms.json", "transforms_train.json")
PHOTOGRAPHS = {".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp"}
PHONE_PHOTOGRAPHS = {".heic", ".heif"}
VIDEOS = {".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v"}
CONVERT_HEIC = "convert it to JPEG, for example with `magick mogrify -format jpg *.heic`, or on a Mac `sips -s format jpeg`"


def _capture(source: Path) -> str:
    """How poses are found."""
    command = f"splat capture {shlex.quote(str(source))} --out FOLDER"
    return f"find poses first: `{command}`, and pass FOLDER (`splat train` does so by itself)"


def find_model(root: Path) -> Path | None:
    """The folder below `root` that holds a COLMAP model: sparse/0, sparse, or `root` itself; or where nerfstudio puts it,
    colmap/sparse/0, if transforms.json is not there."""
    folders = [root / "sparse" / "0", root / "sparse", root]
    if not any((root / name).is_file() for name in DESCRIPTIONS):
        folders.append(root / "colmap" / "sparse" / "0")
    return next((f for f in folders for end in ("bin", "txt") if (f / f"cameras.{end}").is_file()), None)


def needs_poses(data: Path) -> bool:
    """Whether this is a video, or a folder of photographs or of a video that nothing describes the poses of."""
    if data.is_file():
        return data.suffix.lower() in VIDEOS
    return not _has_poses(data) and any(suffix in PHOTOGRAPHS | PHONE_PHOTOGRAPHS | VIDEOS for suffix in _suffixes(data))


def _has_poses(folder: Path) -> bool:
    """Whether something in a folder describes poses, well or badly."""
    return find_model(folder) is not None or any((folder / name).is_file() for name in DESCRIPTIONS)


def require_photographs(source: Path) -> None:
    """Refuse at once what is neither a folder nor a video.

    Raises:
        SplatError: as it says.
    """
    if source.is_file() and source.suffix.lower() not in VIDEOS:
        raise SplatError(f"{source} is neither a folder of photographs nor a video ({', '.join(sorted(VIDEOS))})")
    if not source.exists():
        raise SplatError(f"{source} does not exist; name a folder of photographs or a video")


def require_capture(data: Path) -> None:
    """Refuse at once, without decoding anything, what is no folder of posed photographs.

    Raises:
        SplatError: with the step that is missing.
    """
    if data.is_file() and data.suffix.lower() in VIDEOS:
        raise SplatError(f"{data} is a video, and poses are needed: {_capture(data)}")
    if data.is_file():
        raise SplatError(f"{data} is not a folder but a file; pass the folder of a capture")
    if not data.is_dir():
        raise SplatError(f"{data} is not a folder, and does not exist; pass the folder of a capture")
    if not _has_poses(data):
        raise SplatError(_missing_poses(data))


def require_scene(scene: Path, data: Path | None = None) -> None:
    """Refuse at once what is neither a run's folder nor a scene's file, and what `require_capture` does for `data`.

    Raises:
        SplatError: as it says.
    """
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
    """Refuse a scene's file without a capture, where cameras are needed.

    Raises:
        SplatError: as it says.
    """
    if is_scene_file(scene) and data is None:
        raise SplatError(f"{scene} says nothing about cameras; name a capture with --data")


def _missing_poses(root: Path) -> str:
    """Why a folder that holds no description of poses is no capture, in a sentence."""
    suffixes = _suffixes(root)
    photographs = sum(suffix in PHOTOGRAPHS | PHONE_PHOTOGRAPHS for suffix in suffixes)
    if photographs:
        count = f"{photographs} photograph{'s' * (photographs > 1)}"
        return f"{root} holds {count} but nothing that says where they were taken from; {_capture(root)}"
    if any(suffix in VIDEOS for suffix in suffixes):
        return f"{root} holds a video but no poses; {_capture(root)}"
    return f"{root} holds no capture; expected a COLMAP model (sparse/0), {' or '.join(DESCRIPTIONS)}"


def _suffixes(root: Path) -> list[str]:
    """Of what is in a folder or its folder of photographs."""
    folders = [folder for folder in (root, root / "images") if folder.is_dir()]
    return [file.suffix.lower() for folder in folders for file in folder.iterdir()]
