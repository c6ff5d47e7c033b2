"""The folder of a training run: what `splat train` leaves, and how the other commands read it.

run.json                what is trained, on what, how
checkpoint.safetensors  to resume from
scene.ply               the Gaussians, in the dataset's own frame
scene.html              the same as a page to walk through, which opens from disk
metrics.json            scores of the held-out views, and the curve of the training loss
held-out/               photographs beside renders
capture.safetensors     what else was learnt: exposures, refined cameras, an environment
transforms.json         the refined cameras, for other programs
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from splat_py.errors import SplatError
from splat_py.files import parse_json, write_json
from splat_py.fit.run_record import RunRecord
from splat_py.scene.dataset import Dataset
from splat_py.scene.formats.endings import is_scene_file
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.missing_poses import require_cameras
from splat_py.scene.options import DataOptions
from splat_py.splats.capture_file import LearntCapture
from splat_py.splats.config import TrainConfig
from splat_py.splats.own_types import CAMERA, COLOR, SPLAT, OwnTypes
from splat_py.splats.rendering import through


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    root: Path

    @property
    def record_file(self) -> Path:
        """What was begun."""
        return self.root / "run.json"

    @property
    def checkpoint(self) -> Path:
        """To resume from."""
        return self.root / "checkpoint.safetensors"

    @property
    def scene(self) -> Path:
        """The Gaussians."""
        return self.root / "scene.ply"

    @property
    def page(self) -> Path:
        """To walk through them."""
        return self.root / "scene.html"

    @property
    def metrics_file(self) -> Path:
        """Scores and curve, written last."""
        return self.root / "metrics.json"

    @property
    def capture(self) -> Path:
        """What was learnt of the capture beside the scene."""
        return self.root / "capture.safetensors"

    @property
    def transforms(self) -> Path:
        """The refined cameras."""
        return self.root / "transforms.json"

    @property
    def pictures(self) -> Path:
        """The folder of held-out photographs beside their renders."""
        return self.root / "held-out"

    def describe(self, record: RunRecord[TrainConfig]) -> None:
        """Write run.json."""
        record.save(self.record_file)

    def record(self) -> RunRecord[TrainConfig]:
        """Read run.json, of whichever version.

        Raises:
            SplatError: it is missing or damaged.
        """
        return RunRecord.load(self.record_file, TrainConfig.from_dict)

    def metrics(self) -> dict[str, Any]:
        """What metrics.json holds; nothing if there is none."""
        try:
            content = parse_json(self.metrics_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def gaussians(self) -> Gaussians:
        """The scene."""
        return Gaussians.load_ply(self.scene)

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        """Write metrics.json."""
        write_json(self.metrics_file, metrics)


def open_scene(
    scene: Path, data: Path | None, downscale: float | None, own: OwnTypes | None = None
) -> tuple[Gaussians, Dataset, TrainConfig]:
    """A scene, and the capture whose cameras and photographs go with it.

    Args:
        scene: a run's folder, or a scene's file (`Gaussians.load`).
        data, downscale: of the capture; by default those of the run. A file has none.
        own: Slang source that the scene was trained with, and for a file the camera.

    Raises:
        SplatError: a file is missing or damaged, or nothing says which capture, or that its Slang source is trusted.
    """
    own, is_file = own or OwnTypes(), is_scene_file(scene)
    require_cameras(scene, data)
    if data is not None and is_file:
        gaussians, options = Gaussians.load(scene), DataOptions(data)
        config = TrainConfig(antialiased=gaussians.antialiased)
    else:
        folder = RunFolder(scene)
        record = folder.record()
        options, config = record.data, record.config
        gaussians = folder.gaussians()
    named = None if own.splat is None else SPLAT.named(own.splat)
    gaussians = replace(gaussians, splat=SPLAT.trusted(gaussians.splat, named, own.trust_source, str(scene)))
    named = None if own.color is None else COLOR.named(own.color)
    gaussians = replace(gaussians, color=COLOR.trusted(gaussians.color, named, own.trust_source, str(scene)))
    named = None if own.camera is None else CAMERA.named(own.camera)
    recorded = (named or "dataset") if is_file else CAMERA.of(config)
    camera = CAMERA.trusted(recorded, named, own.trust_source, str(scene))
    if data is not None:
        options = replace(options, data=data)
    if downscale is not None:
        options = replace(options, downscale=downscale)
    dataset = through(options.load(), camera)
    return gaussians, dataset if is_file else learnt_of(scene, config).refined(dataset), config


def capture_of(scene: Path, data: Path | None) -> Dataset | None:
    """The capture whose cameras go with a scene, a run's folder or a file, or None if nothing says which or it is gone.

    Raises:
        SplatError: `data` is no capture.
    """
    if data is not None:
        return DataOptions(data).load()
    if is_scene_file(scene):
        return None
    try:
        record = RunFolder(scene).record()
        return learnt_of(scene, record.config).refined(record.data.load())
    except SplatError:
        return None


def learnt_of(scene: Path, config: TrainConfig) -> LearntCapture:
    """What was learnt of its capture together with a scene, a run's folder or a file, which knows nothing.

    Raises:
        SplatError: the file of a run that learns something is missing or damaged.
    """
    return LearntCapture({}) if is_scene_file(scene) else LearntCapture.load(RunFolder(scene).capture, config)
