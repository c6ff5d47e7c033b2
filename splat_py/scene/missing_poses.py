"""What to say of a folder or a file in which nothing describes poses: the step that is missing, and how to do it."""

from __future__ import annotations

from pathlib import Path

from splat_py.errors import SplatError
from splat_py.scene.formats.endings import ENDINGS, is_scene_file

DESCRIPTIONS = ("transforms.json", "transforms_train.json")
_PHOTOGRAPHS = {".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp"}
PHONE_PHOTOGRAPHS = {".heic", ".heif"}
_VIDEOS = {".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v"}
CONVERT_HEIC = "convert it to JPEG, for example with `magick mogrify -format jpg *.heic`, or on a Mac `sips -s format jpeg`"
_RUN_COLMAP = (
    "run COLMAP first: put the photographs into FOLDER/images, then `colmap automatic_reconstructor --workspace_path FOLDER "
    "--image_path FOLDER/images --camera_model OPENCV --single_camera 1`, and pass FOLDER"
)


def require_capture(data: Path) -> None:
    """Refuse at once, without decoding anything, what is no folder of posed photographs.

    Raises:
        SplatError: with the step that is missing.
    """
    if data.is_file() and data.suffix.lower() in _VIDEOS:
        frames = f"`ffmpeg -i {data} -vf fps=2 FOLDER/images/%04d.png`"
        raise SplatError(f"{data} is a video, and poses are needed: take pictures from it, {frames}, and {_RUN_COLMAP}")
    if data.is_file():
        raise SplatError(f"{data} is not a folder but a file; pass the folder of a capture")
    if not data.is_dir():
        raise SplatError(f"{data} is not a folder, and does not exist; pass the folder of a capture")


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


def missing_poses(root: Path) -> str:
    """Why a folder that holds no description of poses is no capture, in a sentence."""
    suffixes = [file.suffix.lower() for folder in (root, root / "images") if folder.is_dir() for file in folder.iterdir()]
    photographs = sum(suffix in _PHOTOGRAPHS for suffix in suffixes)
    if photographs:
        count = f"{photographs} photograph{'s' * (photographs > 1)}"
        return f"{root} holds {count} but nothing that says where they were taken from; {_RUN_COLMAP}"
    if any(suffix in PHONE_PHOTOGRAPHS for suffix in suffixes):
        return f"{root} holds HEIC photographs, which are not read, and no poses; {CONVERT_HEIC}, then {_RUN_COLMAP}"
    if any(suffix in _VIDEOS for suffix in suffixes):
        return f"{root} holds a video but no poses: take pictures from it with ffmpeg, and {_RUN_COLMAP}"
    return f"{root} holds no capture; expected a COLMAP model (sparse/0), {' or '.join(DESCRIPTIONS)}"
