"""A training run from a capture to its folder: what `splat train` does."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from splat_py.errors import DeviceLostError, RankLostError, SplatError
from splat_py.fit.distributed import ALONE, Ranks
from splat_py.fit.resuming import finished, refuse_existing
from splat_py.fit.run_lock import run_lock
from splat_py.fit.run_record import RunRecord, removed_without
from splat_py.gpu.device import Device
from splat_py.gpu.device_lost import translate_device_lost
from splat_py.gpu.kernels import UserType
from splat_py.scene.options import DataOptions
from splat_py.scene.transforms_writing import write_transforms
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.config import TrainConfig
from splat_py.splats.evaluation import Scores, ViewScore, evaluate
from splat_py.splats.own_types import SLOTS
from splat_py.splats.run_folder import RunFolder
from splat_py.splats.trainer import StepReport, Trainer
from splat_py.splats.training_colors import with_sizes

# Points of the training curve in metrics.json.
_CURVE_POINTS = 200


def train(
    options: DataOptions,
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    given: Collection[str] = (),
    trust_source: bool = False,
    device: Device | None = None,
    ranks: Ranks = ALONE,
    on_start: Callable[[Trainer], None] | None = None,
    on_step: Callable[[StepReport], None] | None = None,
    between_steps: Callable[[Callable[[], None]], None] | None = None,
) -> Scores | None:
    """Train, evaluate, and leave everything in `out`. Returns the scores of the held-out views, if there are any.

    Of several processes all read the capture and the run, and the first one alone writes, tells and evaluates.

    Args:
        resume: continue the run in `out` from its checkpoint. The run's own record, run.json, then decides about data and
            configuration. More steps than it was begun with extend it: from its last step on, learning rates, degree and
            densification are those of a run of so many steps. `options.data` says where the capture is now.
        given: names of options that count as given although they have their default's value.
        trust_source: compile Slang source that a run carries which is resumed without naming its file again in `config.splat`.
        device: where to train and to evaluate; the default device if None.
        ranks: processes that train together, from `joined`.
        on_start: told of the trainer before its first step.
        on_step, between_steps: as `Trainer.fit`.

    Raises:
        SplatError: `out` holds a run already and `resume` is not asked for, or another process writes to it; an option
            contradicts the run that is resumed; or the input is unusable. Nothing is left if it fails before its first
            checkpoint.

    Warns:
        UserWarning: the run that is to be resumed is finished. It is left as it is.
    """
    config.validate()
    folder = RunFolder(out)
    with _held(out, ranks):
        if not resume:
            refuse_existing(out, folder.scene.name, folder.metrics_file.name)
        checkpoint = Checkpoint.load(folder.checkpoint) if resume else None
        recorded = folder.record() if checkpoint else None
        named: dict[str, UserType] = {}
        for slot in SLOTS:
            name, source = slot.fields(config)
            kind = name if source else slot.named(name)
            if not isinstance(kind, str):
                named[slot.option] = kind
                config = replace(config, **{slot.option: kind.name, f"{slot.option}_source": kind.text})  # type: ignore[arg-type]
        if not resume:
            config = with_sizes(config, named.get("color", config.color))
            config = replace(config, batch=ranks.batch_of(config.batch))
        record = RunRecord(options, config)
        if checkpoint and recorded:
            _refuse_other_types(folder, recorded.config, checkpoint.config, config)
            record = recorded.resumed(out, record, TrainConfig(), given, "steps")
            if checkpoint.step >= record.config.steps == folder.metrics().get("steps"):
                if ranks.first:
                    warnings.warn(finished(out, "a larger --steps extends it"), stacklevel=2)
                return _stored_scores(folder)
            checkpoint = replace(checkpoint, config=record.config)
        record, dataset = record.load_dataset(out, 0)
        trainer = Trainer(
            dataset,
            record.config,
            device=device,
            resume=checkpoint,
            splat=named.get("splat"),
            camera=named.get("camera"),
            color=named.get("color"),
            trust_source=trust_source,
            distributed=ranks,
            max_memory=record.data.max_bytes,
        )
        dataset.hold(trainer.memory.decoded)
        if not ranks.first:
            try:
                trainer.fit()
            except RankLostError as error:
                raise _with_advice(error, folder) from error
            return None
        with removed_without(folder.checkpoint, folder.record_file):
            if recorded is None or record.changes(recorded):
                folder.describe(record)
            if on_start is not None:
                on_start(trainer)
            return _fit(trainer, folder, on_step, between_steps)


@contextmanager
def _held(out: Path, ranks: Ranks) -> Iterator[None]:
    """Around a run: the first process holds its folder, before the others read it."""
    if not ranks.first:
        ranks.wait()
        yield
        return
    with run_lock(out):
        ranks.wait()
        yield


def _refuse_other_types(folder: RunFolder, recorded: TrainConfig, saved: TrainConfig, asked: TrainConfig) -> None:
    """Types of one's own are compared as text: the same file may be elsewhere now."""
    for slot in SLOTS:
        slot.refuse_another(folder.root, recorded, saved, asked)
    if recorded.parameters() != saved.parameters():
        raise SplatError(f"{folder.checkpoint} and {folder.record_file} are of two runs: their types differ")


def _fit(
    trainer: Trainer,
    folder: RunFolder,
    on_step: Callable[[StepReport], None] | None,
    between_steps: Callable[[Callable[[], None]], None] | None,
) -> Scores | None:
    """Train to the end, and leave what there is to leave."""
    config, dataset = trainer.config, trainer.dataset
    began, first = time.perf_counter(), trainer.step
    # Of a run that is extended.
    curve = [point for point in folder.metrics().get("curve", ()) if first > 0 and point["step"] < first]
    before = curve[-1].get("seconds", 0.0) if curve else 0.0

    def record(report: StepReport) -> None:
        if report.step % max(config.steps // _CURVE_POINTS, 1) == 0:
            elapsed = before + time.perf_counter() - began
            point = {"step": report.step, "seconds": elapsed, "gaussians": report.gaussians, "divisor": report.divisor}
            curve.append(point | vars(report.values))
        if on_step is not None:
            on_step(report)

    try:
        with translate_device_lost():
            gaussians = trainer.fit(record, folder.checkpoint, between_steps)
    except (DeviceLostError, RankLostError) as error:
        raise _with_advice(error, folder) from error
    seconds = time.perf_counter() - began
    gaussians.save_ply(folder.scene)
    learnt = trainer.learnt_capture()
    learnt.save(folder.capture)
    dataset = learnt.refined(dataset)
    if config.refine_cameras:
        write_transforms(folder.transforms, dataset)

    metrics: dict[str, Any] = {
        "steps": config.steps,
        "gaussians": len(gaussians),
        "seconds": seconds,
        "steps_per_second": (config.steps - first) / max(seconds, 1e-9),
        "curve": curve,
    }
    if trainer.removals:
        metrics["pruned"] = [vars(removal) for removal in trainer.removals]
    scores = None
    if dataset.test:
        scores = evaluate(
            gaussians,
            dataset,
            antialiased=config.antialiased,
            align_poses=config.refine_cameras,
            environment=learnt.environment,
            pictures=folder.pictures,
            device=trainer.device,
        )
        metrics["held_out"] = scores.to_json()
    folder.write_metrics(metrics)
    return scores


def _with_advice(error: SplatError, folder: RunFolder) -> SplatError:
    kept = f"{folder.checkpoint} is safe: continue from it with --resume"
    return type(error)(f"{error}; {kept if folder.checkpoint.exists() else 'no checkpoint was due yet'}")


def _stored_scores(folder: RunFolder) -> Scores | None:
    """Those of a finished run."""
    try:
        return Scores([ViewScore(**view) for view in folder.metrics()["held_out"]["views"]])
    except (KeyError, TypeError):
        return None
