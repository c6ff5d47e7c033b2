"""Cameras and points from matches, through pycolmap: one photograph after the other, or all at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from splat_py.capture.library import require_pycolmap
from splat_py.capture.options import CaptureOptions
from splat_py.capture.upright import upright_rotation
from splat_py.capture.workspace import Workspace
from splat_py.errors import SplatError

# COLMAP's wants ten.
_SMALLEST_MODEL = 3
# Photographs that one camera must have taken for all coefficients of OpenCV's model to be determined.
_FULL_LENS = 20
# Folders of models that are not complete.
_PARTIAL = ".mapping-"
_ADVICE = (
    "photographs must overlap: walk around the subject, take one every ten degrees or so, keep most of what the last one "
    "showed in the picture, and choose a subject with texture"
)


def map_photographs(
    workspace: Workspace, count: int, options: CaptureOptions, on_progress: Callable[[int, int], None]
) -> dict[str, int]:
    """Write the model with the most photographs, upright. Returns of which model each photograph is; 0 is the one that is kept.

    Mapping one photograph after the other was twice as fast and nearer to the pixels on real captures; mapping all at once
    registers more where photographs overlap little (benchmarks/README.md).

    Raises:
        SplatError: no photographs fit together.
    """
    pycolmap = require_pycolmap()
    ways = {"auto": ("incremental", "global"), "incremental": ("incremental",), "global": ("global",)}[options.mapper]
    models: list[Any] = []
    for left in workspace.root.glob(f"{_PARTIAL}*"):
        shutil.rmtree(left)
    with TemporaryDirectory(dir=workspace.root, prefix=_PARTIAL) as folder:
        for way in ways:
            if models and models[0].num_reg_images() >= count:
                break
            found = _incremental if way == "incremental" else _global
            others = found(pycolmap, workspace, Path(folder) / way, count, on_progress)
            # More photographs, or as many in a model that came first.
            if not models or (others and others[0].num_reg_images() > models[0].num_reg_images()):
                models = others
        if not models or models[0].num_reg_images() < 2:
            raise SplatError(f"no two of the {count} photographs in {workspace.source} fit together: {_ADVICE}")
        best = models[0]
        _refine(pycolmap, best)
        _turn_upright(pycolmap, best)
        on_progress(count, count)
        written = Path(folder) / "model"
        written.mkdir()
        best.write_binary(str(written))
        workspace.model.parent.mkdir(exist_ok=True)
        shutil.rmtree(workspace.model, ignore_errors=True)
        os.replace(written, workspace.model)
    parts: dict[str, int] = {}
    for part, model in enumerate(models):
        for image in model.images.values():
            if image.has_pose:
                parts.setdefault(image.name, part)
    return parts


def _incremental(
    pycolmap: Any, workspace: Workspace, folder: Path, count: int, on_progress: Callable[[int, int], None]
) -> list[Any]:
    options = pycolmap.IncrementalPipelineOptions()
    options.min_model_size = _SMALLEST_MODEL
    registered = 0

    def begin() -> None:
        nonlocal registered
        registered = 2
        on_progress(min(registered, count), count)

    def proceed() -> None:
        nonlocal registered
        registered += 1
        on_progress(min(registered, count), count)

    folder.mkdir()
    models = pycolmap.incremental_mapping(
        workspace.database,
        workspace.images,
        folder,
        options,
        initial_image_pair_callback=begin,
        next_image_callback=proceed,
    )
    return _largest_first(models)


def _global(
    pycolmap: Any, workspace: Workspace, folder: Path, count: int, on_progress: Callable[[int, int], None]
) -> list[Any]:
    on_progress(0, count)
    options = pycolmap.GlobalPipelineOptions()
    folder.mkdir()
    return _largest_first(pycolmap.global_mapping(workspace.database, workspace.images, folder, options))


def _largest_first(models: dict[int, Any]) -> list[Any]:
    return sorted(models.values(), key=lambda model: -model.num_reg_images())


def _refine(pycolmap: Any, model: Any) -> None:
    """Adjust everything once more, with all coefficients of OpenCV's model where a camera took enough photographs."""
    taken: dict[int, int] = {}
    for image in model.images.values():
        if image.has_pose:
            taken[image.camera_id] = taken.get(image.camera_id, 0) + 1
    full = [key for key, photographs in taken.items() if photographs >= _FULL_LENS]
    for key in full:
        camera = model.cameras[key]
        f, cx, cy, k = camera.params
        camera.model = pycolmap.CameraModelId.OPENCV
        camera.params = [f, f, cx, cy, k, 0.0, 0.0, 0.0]
    if full:
        # Not `pycolmap.bundle_adjustment`, which says what it does however silent it is told to be.
        options, config = pycolmap.BundleAdjustmentOptions(), pycolmap.BundleAdjustmentConfig()
        options.print_summary = False
        for key in model.reg_image_ids():
            config.add_image(key)
        config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
        pycolmap.create_default_bundle_adjuster(options, config, model).solve()
        model.update_point_3d_errors()


def _turn_upright(pycolmap: Any, model: Any) -> None:
    """Turn the model so that +z is up, as people held the camera."""
    viewmats = np.stack([image.cam_from_world().matrix() for image in model.images.values() if image.has_pose])
    rotation = pycolmap.Rotation3d(upright_rotation(viewmats))
    model.transform(pycolmap.Sim3d(1.0, rotation, np.zeros(3)))
