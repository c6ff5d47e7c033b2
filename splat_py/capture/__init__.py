"""From photographs or a video to a captured scene: the cameras' poses, by structure from motion with pycolmap.

`capture` works in phases, and resumes in the phase in which it was interrupted.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from splat_py.base.errors import SplatError, UnwritableError
from splat_py.capture.colmap import extract_features, features_of, map_photographs, match_features, matches_of, require_pycolmap
from splat_py.capture.photographs import Original, Photograph, find_photographs, store_frames, store_photograph, stored_names
from splat_py.capture.workspace import CaptureReport, Found, Unregistered, Workspace, key_of, unregistered_photographs
from splat_py.fit.run_folder import run_lock
from splat_py.scene.data_options import CaptureOptions
from splat_py.scene.sources import VIDEOS, require_photographs

__all__ = ["CaptureOptions", "CaptureReport", "Unregistered", "capture"]

# Two photographs give poses, but no scene that a third one could confirm.
_FEWEST = 3
# Called with a phase's name, how much of it is done, and the total.
Progress = Callable[[str, int, int], None]


def capture(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: CaptureOptions | None = None,
    *,
    on_progress: Progress | None = None,
) -> CaptureReport:
    """Find the poses of photographs, and write a scene that `load_dataset` and `splat train` read.

    `out` receives the upright photographs (images/, masks/); a COLMAP model (sparse/0), whose +z points up, judged by how the
    camera was held, and whose unit of length is arbitrary; COLMAP's database; and capture.json with the report. Each phase is
    kept: an interrupted capture continues, and a complete one returns its report at once. Phases whose photographs or options
    have changed are repeated.

    Args:
        source: a folder of photographs, with masks in its folder `masks`; or a video, or a folder with one.
        out: a new folder, or the folder of a capture of the same source.
        options: by default those of `CaptureOptions`.
        on_progress: called with the phase (photographs, features, matching, mapping), how much of it is done, and the total.

    Raises:
        SplatError: pycolmap is not installed; an option is out of range; the source holds fewer than three photographs that can
            be read; no photographs fit together; or `out` holds something else or is in use.
    """
    source, out, options = Path(source), Path(out), options or CaptureOptions()
    options.validate()
    require_pycolmap()
    video, sources = _find(source, out)
    tell = on_progress or (lambda phase, done, total: None)
    files = [video] if video else [path for source in sources for path in (source.path, source.mask) if path]
    ordered = options.ordered or video is not None
    keys = {"photographs": key_of([_version(path) for path in files], options.frames if video else None)}
    keys["features"] = key_of(keys["photographs"], options.size, options.features)
    keys["matching"] = key_of(keys["features"], ordered)
    keys["mapping"] = key_of(keys["matching"], options.mapper)
    with run_lock(out):
        workspace = Workspace(out, source)
        if not workspace.is_done("photographs", keys["photographs"]):
            with workspace.phase("photographs", keys["photographs"]) as noted:
                photographs, unreadable = _store(workspace, video, sources, options, tell)
                noted["photographs"] = [asdict(photograph) for photograph in photographs]
                noted["unreadable"] = [asdict(item) for item in unreadable]
        photographs = workspace.records("photographs", Photograph)
        if not workspace.is_done("features", keys["features"]):
            with workspace.phase("features", keys["features"]):
                extract_features(workspace, photographs, options, partial(tell, "features"))
        if not workspace.is_done("matching", keys["matching"]):
            with workspace.phase("matching", keys["matching"]):
                match_features(workspace, photographs, ordered, partial(tell, "matching"))
        if not workspace.is_done("mapping", keys["mapping"]):
            with workspace.phase("mapping", keys["mapping"]) as noted:
                parts = map_photographs(workspace, len(photographs), options, partial(tell, "mapping"))
                counts = features_of(workspace.database), matches_of(workspace.database)
                noted["left_out"] = [asdict(item) for item in unregistered_photographs(photographs, parts, *counts)]
                registered = tuple(sorted(name for name, part in parts.items() if part == 0))
                model: Any = require_pycolmap().Reconstruction(str(workspace.model))
                error = round(float(model.compute_mean_reprojection_error()), 3)
                noted["found"] = asdict(Found(registered, model.num_points3D(), error))
        return workspace.report()


def _find(source: Path, out: Path) -> tuple[Path | None, list[Original]]:
    """Return the video, or the photographs."""
    require_photographs(source)
    if source.is_file():
        return source, []
    sources = find_photographs(source.resolve(), out.resolve())
    if sources:
        if len(sources) < _FEWEST:
            count = "one photograph" if len(sources) == 1 else f"{len(sources)} photographs"
            raise SplatError(f"{source} holds {count}, too few for a scene; take twenty or more, from all sides")
        return None, sources
    videos = sorted(path for path in source.iterdir() if path.suffix.lower() in VIDEOS)
    if len(videos) > 1:
        raise SplatError(f"{source} holds {len(videos)} videos; name one of them")
    if not videos:
        raise SplatError(f"{source} holds neither photographs nor a video; name the folder they are in")
    return videos[0], []


def _version(path: Path) -> tuple[str, int, int]:
    """Return a file's name, size and time, which tell its versions apart."""
    try:
        stat = path.stat()
    except OSError:  # a broken link, which is reported with the photographs
        return os.path.realpath(path), -1, 0
    return os.path.realpath(path), stat.st_size, stat.st_mtime_ns


def _store(
    workspace: Workspace, video: Path | None, sources: Sequence[Original], options: CaptureOptions, tell: Progress
) -> tuple[list[Photograph], list[Unregistered]]:
    """Store the photographs; return them, and those that cannot be read."""
    if video is not None:
        return store_frames(video, workspace.images, options.frames, partial(tell, "photographs")), []
    photographs, unreadable = [], []
    first: SplatError | None = None
    for done, (source, name) in enumerate(zip(sources, stored_names(sources), strict=True)):
        tell("photographs", done, len(sources))
        try:
            photographs.append(store_photograph(source, name, workspace.images, workspace.masks))
        except UnwritableError:
            # The photograph is not to blame.
            raise
        except SplatError as error:
            first = first or error
            reason, _, advice = str(error).partition("; ")
            unreadable.append(Unregistered(source.name, reason, advice or "replace it, or remove it"))
    if len(photographs) < _FEWEST:
        raise SplatError(f"{len(photographs)} of {len(sources)} photographs can be read: {first}")
    tell("photographs", len(sources), len(sources))
    return photographs, unreadable
