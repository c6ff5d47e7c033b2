"""A training run from a capture to its folder: what `splat train` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from splat_py.errors import DeviceLostError, SplatError
from splat_py.gpu.device import Device
from splat_py.gpu.device_lost import translate_device_lost
from splat_py.scene.options import DataOptions
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.config import TrainConfig
from splat_py.splats.evaluation import Scores, evaluate
from splat_py.splats.run_folder import RunFolder
from splat_py.splats.trainer import StepReport, Trainer

# Points of the training curve in metrics.json.
_CURVE_POINTS = 200


def train(
    options: DataOptions,
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    device: Device | None = None,
    on_start: Callable[[Trainer], None] | None = None,
    on_step: Callable[[StepReport], None] | None = None,
) -> Scores | None:
    """Train, evaluate, and leave everything in `out`. Returns the scores of the held-out views, if there are any.

    Args:
        resume: continue the run in `out` from its checkpoint, with that one's configuration.
        device: where to train and to evaluate; the default device if None.
        on_start: told of the trainer before its first step.
        on_step: as `Trainer.fit`.

    Raises:
        SplatError: `out` holds a run already and `resume` is not asked for, or the input is unusable.
    """
    config.validate()
    folder = RunFolder(out)
    if folder.checkpoint.exists() and not resume:
        raise SplatError(f"{out} already holds a run; continue it with --resume, or choose another --out")
    checkpoint = Checkpoint.load(folder.checkpoint) if resume else None
    dataset = options.load()
    trainer = Trainer(dataset, config, device=device, resume=checkpoint)
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
        scores = evaluate(gaussians, dataset, antialiased=config.antialiased, pictures=folder.pictures, device=trainer.device)
        metrics["held_out"] = scores.to_json()
    folder.write_metrics(metrics)
    return scores
