"""SIFT features of photographs, through pycolmap."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from splat_py.capture.database import features_of
from splat_py.capture.library import require_pycolmap
from splat_py.capture.options import CaptureOptions
from splat_py.capture.photographs import Photograph
from splat_py.capture.workspace import Workspace

# One focal length and one coefficient: mapping begins with two photographs, which do not determine more. See mapping.py.
CAMERA_MODEL = "SIMPLE_RADIAL"


def extract_features(
    workspace: Workspace,
    photographs: Sequence[Photograph],
    options: CaptureOptions,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write each photograph's features to the database; photographs with equal sizes and EXIF have one camera.

    Goes on where it was interrupted.
    """
    pycolmap = require_pycolmap()
    database = workspace.database
    if not (database.exists() and len(features_of(database)) == len(photographs)):
        # Cameras are all there, or none.
        for path in database.parent.glob(f"{database.name}*"):
            path.unlink()
        _import_cameras(pycolmap, workspace, photographs)
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.max_image_size = options.size
    extraction.sift.max_num_features = options.features
    reader = _reader(pycolmap, workspace.masks)
    missing = [name for name, count in features_of(database).items() if count is None]
    done, batch = len(photographs) - len(missing), 2 * (os.cpu_count() or 1)
    on_progress(done, len(photographs))
    for start in range(0, len(missing), batch):
        names = missing[start : start + batch]
        pycolmap.extract_features(
            database,
            workspace.images,
            names,
            pycolmap.CameraMode.AUTO,
            reader,
            extraction,
            pycolmap.Device.cpu,
        )
        on_progress(done + start + len(names), len(photographs))


def _import_cameras(pycolmap: Any, workspace: Workspace, photographs: Sequence[Photograph]) -> None:
    pycolmap.Database.open(workspace.database).close()
    by_camera = sorted(photographs, key=lambda photograph: photograph.camera)
    for _, group in groupby(by_camera, key=lambda photograph: photograph.camera):
        members = list(group)
        reader = _reader(pycolmap, workspace.masks)
        focal = members[0].focal
        if focal is not None:
            reader.camera_params = f"{focal},{members[0].width / 2},{members[0].height / 2},0"
        names = [photograph.name for photograph in members]
        pycolmap.import_images(workspace.database, workspace.images, pycolmap.CameraMode.SINGLE, names, reader)


def _reader(pycolmap: Any, masks: Path) -> Any:
    reader = pycolmap.ImageReaderOptions()
    reader.camera_model = CAMERA_MODEL
    if masks.is_dir():
        reader.mask_path = str(masks)
    return reader
