"""A training run and its folder: what `splat train` leaves and the other commands read.

run.json                what was trained, on what, how
checkpoint.safetensors  to resume from
scene.ply               the Gaussians, in the dataset's own frame
metrics.json            scores of the held-out views, and the curve of the training loss
held-out/               photographs beside renders
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from splat_py.errors import DeviceLostError, SplatError
from splat_py.files import atomic_path
from splat_py.gpu.kernels import translate_device_lost
from splat_py.scene.dataset import Dataset, Format, load_dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.config import TrainConfig
from splat_py.splats.evaluation import Scores, ViewScore, evaluate
from splat_py.splats.trainer import StepReport, Trainer

# Points of the training curve in metrics.json.
_CURVE_POINTS = 200


@dataclass(frozen=True)
class DataOptions:
    """Which photographs, and how they are read."""

    # Folder of the capture: COLMAP, nerfstudio / instant-ngp transforms.json, or NeRF-synthetic.
    data: Positional[Path]
    # Divide the photographs' sides by this.
    downscale: float = 1.0
    # Which description to read where a folder holds several.
    format: Format = "auto"
    # Hold out every so many photographs by name, from the first; 0 holds out none.
    test_every: int = 8
    # Keep decoded photographs in memory up to this many MiB, and stream them from disk beyond.
    memory_limit: int = 4096

    def load(self) -> Dataset:
        """The dataset."""
        return load_dataset(
            self.data,
            downscale=self.downscale,
            format=self.format,
            test_every=self.test_every,
            memory_limit_bytes=self.memory_limit << 20,
        )


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    root: Path

    @property
    def checkpoint(self) -> Path:
        """To resume from."""
        return self.root / "checkpoint.safetensors"

    @property
    def scene(self) -> Path:
        """The Gaussians."""
        return self.root / "scene.ply"

    def describe(self, options: DataOptions, config: TrainConfig) -> None:
        """Write run.json."""
        data = {**dataclasses.asdict(options), "data": str(options.data.resolve())}
        write_json(self.root / "run.json", {"data": data, "config": dataclasses.asdict(config)})

    def options(self) -> tuple[DataOptions, TrainConfig]:
        """Read run.json."""
        path = self.root / "run.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            data = content["data"]
            return DataOptions(**{**data, "data": Path(data["data"])}), TrainConfig.from_dict(content["config"])
        except FileNotFoundError as error:
            raise SplatError(f"{self.root} is not the folder of a training run: it has no run.json") from error
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise SplatError(f"{path} is damaged; train again, or name a .ply and its --data") from error

    def gaussians(self) -> Gaussians:
        """The scene."""
        return Gaussians.load_ply(self.scene)


def train(
    options: DataOptions,
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    on_start: Callable[[Trainer], None] | None = None,
    on_step: Callable[[StepReport], None] | None = None,
    on_view: Callable[[ViewScore], None] | None = None,
) -> Scores | None:
    """Train, and leave everything in `out`. Returns the scores of the held-out views, if there are any.

    Raises:
        SplatError: `out` holds a run already and `resume` is not asked for, or the input is unusable.
    """
    config.validate()
    folder = RunFolder(out)
    if folder.checkpoint.exists() and not resume:
        raise SplatError(f"{out} already holds a run; continue it with --resume, or choose another --out")
    checkpoint = Checkpoint.load(folder.checkpoint) if resume else None
    dataset = options.load()
    trainer = Trainer(dataset, config, resume=checkpoint)
    config = trainer.config
    folder.describe(options, config)
    if on_start is not None:
        on_start(trainer)

    began = time.perf_counter()
    first = trainer.step
    curve: list[dict[str, float]] = []

    def record(report: StepReport) -> None:
        if report.step % max(config.steps // _CURVE_POINTS, 1) == 0:
            curve.append({"step": report.step, "gaussians": report.gaussians, **vars(report.values)})
        if on_step is not None:
            on_step(report)

    try:
        with translate_device_lost():
            gaussians = trainer.fit(record, folder.checkpoint)
    except DeviceLostError as error:
        kept = f"{folder.checkpoint} is safe: continue from it with --resume"
        raise DeviceLostError(f"{error}; {kept if folder.checkpoint.exists() else 'no checkpoint was due yet'}") from error
    seconds = time.perf_counter() - began
    gaussians.save_ply(folder.scene)

    metrics: dict[str, Any] = {
        "steps": config.steps,
        "gaussians": len(gaussians),
        "seconds": seconds,
        "steps_per_second": (config.steps - first) / max(seconds, 1e-9),
        "curve": curve,
    }
    scores = None
    if dataset.test:
        scores = evaluate(
            gaussians,
            dataset,
            antialiased=config.antialiased,
            pictures=out / "held-out",
            on_view=on_view,
        )
        metrics["held_out"] = scores.to_json()
    write_json(out / "metrics.json", metrics)
    return scores


def write_json(path: Path, content: Any) -> None:
    """Write JSON, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
