"""`splat train`: a training run from a capture to its folder; and such folders, as the other commands read them:

run.json                data and configuration of the run
checkpoint.safetensors  the state to resume from
scene.ply               the Gaussians, in the dataset's own frame
scene.html              a page to walk through the scene, which opens from disk
metrics.json            scores of the held-out views, and the curve of the training loss
held-out/               photographs beside renders
capture.safetensors     other learnt parts: looks of photographs, refined cameras, an environment
transforms.json         the refined cameras, for other programs
"""

import os
import shlex
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from splat_py.base.errors import DeviceLostError, RankLostError, SplatError
from splat_py.base.files import write_json
from splat_py.base.html import table
from splat_py.fit.distributed import ALONE, Ranks
from splat_py.fit.run_folder import RunRecord, finished, recorded_metrics, refuse_existing, removed_without, run_lock
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import UserType
from splat_py.gpu.messages import translate_device_lost
from splat_py.render.views import through
from splat_py.scene.data_options import DataOptions
from splat_py.scene.dataset import Dataset
from splat_py.scene.editing import merge, select
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.partition import CELL_FILE, RUN, Cell, cell_folders, cell_name, read_cell
from splat_py.scene.pictures import UInt8Array, read_picture, thumbnail
from splat_py.scene.sources import Split, is_scene_file, require_cameras
from splat_py.scene.transforms import write_transforms
from splat_py.shaders.custom_types import CAMERA, SLOTS, OwnTypes
from splat_py.train.capture_model import LearntCapture
from splat_py.train.checkpoint import Checkpoint, with_sizes
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import Lpips, Scores, ViewScore, evaluate, open_lpips
from splat_py.train.trainer import StepReport, Trainer

# Pictures of a run that a notebook shows.
_THUMBNAILS = 8
# Points of the training curve in metrics.json.
_CURVE_POINTS = 200


class RunFolder:
    """The files that `splat train` writes: `pandas.DataFrame(RunFolder("runs/fox").curve)` is the course of a run."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = root = Path(root)
        self.record_file, self.checkpoint = root / "run.json", root / "checkpoint.safetensors"
        self.scene, self.page = root / "scene.ply", root / "scene.html"
        self.metrics_file, self.pictures = root / "metrics.json", root / "held-out"
        self.capture, self.transforms = root / "capture.safetensors", root / "transforms.json"

    def record(self) -> RunRecord[TrainConfig]:
        """Read run.json; SplatError if it is missing or damaged."""
        return RunRecord.load(self.record_file, TrainConfig.from_dict)

    def metrics(self) -> dict[str, Any]:
        """Return the content of metrics.json (`recorded_metrics`)."""
        return recorded_metrics(self.metrics_file)

    @property
    def curve(self) -> list[dict[str, Any]]:
        """Up to 200 points: step, seconds, gaussians, divisor of the photographs' sides, loss, l1, ssim, psnr."""
        return list(self.metrics().get("curve", ()))

    def gaussians(self) -> Gaussians:
        """Read the scene. SplatError if it is missing or damaged."""
        return Gaussians.load_ply(self.scene)

    def _repr_html_(self) -> str:
        metrics = self.metrics()
        scores = metrics.get("held_out", {})
        rows: dict[str, object] = {name: metrics[name] for name in ("steps", "gaussians", "seconds") if name in metrics}
        rows |= {f"held-out {name}": scores[name] for name in ("psnr", "ssim") if name in scores}
        pictures = sorted(self.pictures.glob("*.png"))[:_THUMBNAILS] if self.pictures.is_dir() else []
        shown = (thumbnail(partial(_rgb, path), path.stem) for path in pictures)
        return table(self.root.name, rows) + "".join(shown)


def _rgb(path: Path) -> UInt8Array:
    return read_picture(path, 1)[..., ::-1]


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
    """Train, evaluate, and write everything to `out`. Returns the scores of the held-out views, if there are any. If several
    processes train, all read the capture and the run, and only the first one writes, reports and evaluates.

    Args:
        resume: continue the run in `out` from its checkpoint, with the data and configuration in its run.json. A larger
            number of steps extends it: from its last step on, learning rates, degree and densification are those of the longer
            run. `options.data` says where the capture is now.
        given: names of options that count as given even if they have their default's value.
        trust_source: compile the Slang source that a resumed run carries, if `config.splat` does not name its file again.
        device: where to train and to evaluate; the default device if None.
        ranks: processes that train together, from `joined`.
        on_start: called with the trainer before its first step.
        on_step, between_steps: as `Trainer.fit`.

    Raises:
        SplatError: `out` already holds a run and `resume` is False, or another process writes to it; an option contradicts the
            resumed run; or the input is unusable. A run that fails before its first checkpoint leaves nothing.

    Warns:
        UserWarning: the run to resume is finished. It is left as it is.
    """
    config.validate()
    folder = RunFolder(out)
    # The first process locks the folder before the others read it.
    with run_lock(out) if ranks.first else nullcontext():
        ranks.wait()
        if not resume:
            refuse_existing(out, folder.scene.name, folder.metrics_file.name)
        checkpoint = Checkpoint.load(folder.checkpoint) if resume else None
        recorded = folder.record() if checkpoint else None
        config, named = with_types(config)
        if not resume:
            config = begun(config, named, ranks)
        record = RunRecord(options, config)
        if checkpoint and recorded:
            # Compare users' types as text: the file may have moved.
            for slot in SLOTS:
                slot.refuse_another(out, recorded.config, checkpoint.config, config)
            if recorded.config.parameters() != checkpoint.config.parameters():
                raise SplatError(f"{folder.checkpoint} and {folder.record_file} are of two runs: their types differ")
            record = recorded.resumed(out, record, TrainConfig(), given, "steps")
            metrics = folder.metrics()
            if checkpoint.step >= record.config.steps == metrics.get("steps"):
                if ranks.first:
                    warnings.warn(finished(out, "a larger --steps extends it"), stacklevel=2)
                try:
                    return Scores([ViewScore(**view) for view in metrics["held_out"]["views"]])
                except (KeyError, TypeError):
                    return None
            checkpoint = replace(checkpoint, config=record.config)
        if record.config.environment and (record.data.data / CELL_FILE).exists():
            raise SplatError(
                f"{record.data.data} is a cell of a partition, and cells cannot share a sky; leave out --environment"
            )
        record, dataset = record.load_dataset(out, 0)
        trainer = Trainer(
            dataset,
            record.config,
            device=device,
            resume=checkpoint,
            splat=named.get("splat"),
            camera=named.get("camera"),
            color=named.get("color"),
            pixel_loss=named.get("pixel_loss"),
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
                record.save(folder.record_file)
            if on_start is not None:
                on_start(trainer)
            return _fit(trainer, folder, on_step, between_steps)


def with_types(config: TrainConfig) -> tuple[TrainConfig, dict[str, UserType]]:
    """Return `config` with the names and texts of the types in its Slang files, and these types by option."""
    named: dict[str, UserType] = {}
    for slot in SLOTS:
        name, source = slot.fields(config)
        kind = name if source else slot.resolve(name)
        if not isinstance(kind, str):
            named[slot.option] = kind
            config = replace(config, **{slot.option: kind.name, f"{slot.option}_source": kind.text})  # type: ignore[arg-type]
    return config, named


def begun(config: TrainConfig, named: Mapping[str, UserType], ranks: Ranks = ALONE) -> TrainConfig:
    """Return what run.json holds of a new run: the result of `with_types`, with the sizes of its colour and its batch."""
    config = with_sizes(config, named.get("color", config.color))
    return replace(config, batch=ranks.batch_of(config.batch))


def _fit(
    trainer: Trainer,
    folder: RunFolder,
    on_step: Callable[[StepReport], None] | None,
    between_steps: Callable[[Callable[[], None]], None] | None,
) -> Scores | None:
    config, dataset = trainer.config, trainer.dataset
    began, processors, first = time.perf_counter(), time.process_time(), trainer.step
    # Keep the curve of a resumed run.
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
    seconds, processors = time.perf_counter() - began, time.process_time() - processors
    gaussians.save_ply(folder.scene)
    learnt = trainer.learnt_capture()
    learnt.save(folder.capture)
    dataset = learnt.refined(dataset)
    if config.refine_cameras:
        write_transforms(folder.transforms, dataset.views)

    metrics: dict[str, Any] = {
        "steps": config.steps,
        "gaussians": len(gaussians),
        "seconds": seconds,
        "steps_per_second": (config.steps - first) / max(seconds, 1e-9),
        "curve": curve,
    }
    if not first:
        metrics["processor_seconds"] = processors
    if config.refine_cameras and config.camera_params:
        metrics["camera_params"] = list(dataset.train_cameras[0].params)
    if trainer.removals:
        metrics["pruned"] = [vars(removal) for removal in trainer.removals]
    scores = None
    if dataset.test:
        lpips = open_lpips()
        scores = evaluate(
            gaussians,
            dataset,
            antialiased=config.antialiased,
            align_poses=config.refine_cameras,
            environment=learnt.environment,
            response=learnt.response,
            pictures=folder.pictures,
            lpips=lpips if isinstance(lpips, Lpips) else None,
            device=trainer.device,
        )
        metrics["held_out"] = scores.to_json()
    write_json(folder.metrics_file, metrics)
    return scores


def _with_advice(error: SplatError, folder: RunFolder) -> SplatError:
    kept = f"{folder.checkpoint} is safe: continue from it with --resume"
    return type(error)(f"{error}; {kept if folder.checkpoint.exists() else 'no checkpoint was due yet'}")


def open_scene(
    scene: Path,
    data: Path | None,
    downscale: float | None,
    own: OwnTypes | None = None,
    *,
    test_split: Split | None = None,
) -> tuple[Gaussians, Dataset, TrainConfig]:
    """Open a scene, and the capture whose cameras and photographs go with it.

    Args:
        scene: a run's folder, or a scene's file (`Gaussians.load`).
        data, downscale: the capture and its scale; by default those of the run. A scene file has none.
        own: Slang source that the scene was trained with, and for a file the camera model.
        test_split: as in `load_dataset`; by default the run's, and for a file "middle".

    Raises:
        SplatError: a file is missing or damaged, no capture is named, or Slang source is not trusted.
    """
    own, is_file = own or OwnTypes(), is_scene_file(scene)
    require_cameras(scene, data)
    if data is not None and is_file:
        gaussians, options = Gaussians.load(scene), DataOptions(data)
        config = TrainConfig(antialiased=gaussians.antialiased)
        gaussians, camera = gaussians.trust_source(own, str(scene)), CAMERA.resolve(own.camera or "dataset")
    else:
        folder = RunFolder(scene)
        record = folder.record()
        options, config = record.data, record.config
        gaussians = folder.gaussians().trust_source(own, str(scene))
        camera = CAMERA.trusted(CAMERA.of(config), own.camera, own.trust_source, str(scene))
    if data is not None:
        options = replace(options, data=data)
    if downscale is not None:
        options = replace(options, downscale=downscale)
    if test_split is not None:
        options = replace(options, test_split=test_split)
    dataset = through(options.load(), camera, config.camera_params)
    return gaussians, dataset if is_file else learnt_of(scene, config).refined(dataset), config


def capture_of(scene: Path, data: Path | None) -> Dataset | None:
    """Return the capture of a scene (a run's folder or a file) with the camera model of the run, or None if it is not known or
    missing; SplatError if `data` is not a capture."""
    if data is not None:
        return DataOptions(data).load()
    if is_scene_file(scene):
        return None
    try:
        record = RunFolder(scene).record()
        dataset = learnt_of(scene, record.config).refined(record.data.load())
        # A type of one's own is only named: nothing is drawn through these cameras.
        return through(dataset, CAMERA.of(record.config))  # type: ignore[arg-type]
    except SplatError:
        return None


def learnt_of(scene: Path, config: TrainConfig) -> LearntCapture:
    """Return the capture parts learnt with a scene: those of a run's folder, or none for a file; SplatError if the run learns
    some and their file is missing or damaged."""
    return LearntCapture({}) if is_scene_file(scene) else LearntCapture.load(RunFolder(scene).capture, config)


def merge_cells(folders: Sequence[Path]) -> tuple[Gaussians, dict[str, tuple[int, int]]]:
    """Merge the cells of a partition, given its folder or theirs. Returns the scene, and by a cell's name how many Gaussians it
    keeps, of how many. A cell keeps those whose means are in its part of space, without its training margin; outer cells are
    unbounded. SplatError if cells are missing, untrained, of several partitions, or trained in ways that cannot be merged."""
    cells = _whole_partition(folders)
    scenes: list[Gaussians] = []
    counts: dict[str, tuple[int, int]] = {}
    degrees: dict[int, str] = {}
    for folder, cell in cells:
        gaussians, name = _trained(folder), cell_name(cell.place)
        degrees.setdefault(gaussians.sh_degree, name)
        if len(degrees) > 1:
            (lower, one), (higher, other) = sorted(degrees.items())
            raise SplatError(
                f"{one} has harmonics of degree {lower} and {other} of degree {higher}; train all cells with "
                "the same --sh-degree"
            )
        inside = cell.grid.inside(cell.place, gaussians.means.detach().cpu().double().numpy())
        scenes.append(select(gaussians, inside))
        counts[name] = int(inside.sum()), len(gaussians)
    return merge(scenes), counts


def _whole_partition(folders: Sequence[Path]) -> list[tuple[Path, Cell]]:
    found: dict[tuple[int, int], tuple[Path, Cell]] = {}
    for root in folders:
        inside = cell_folders(root)
        if not inside:
            raise SplatError(f"{root} holds no cell of a partition; name the --out of `splat partition`")
        for folder in inside:
            cell = read_cell(folder)
            start, first = next(iter(found.values()), (folder, cell))
            if (cell.dataset, cell.grid) != (first.dataset, first.grid):
                raise SplatError(f"{start} and {folder} are cells of different partitions; merge those of one")
            if cell.place in found:
                raise SplatError(f"{found[cell.place][0]} and {folder} are the same cell; name it once")
            found[cell.place] = folder, cell
    if not found:
        raise SplatError("there is no cell to merge; name the --out of `splat partition`")
    missing = [place for place in first.grid.places if place not in found]
    if missing:
        names = ", ".join(map(cell_name, missing))
        raise SplatError(f"{start.parent} lacks {names} of its partition; put all cells beside each other, or name them all")
    return [found[place] for place in first.grid.places]


def _trained(folder: Path) -> Gaussians:
    run = RunFolder(folder / RUN)
    if not run.scene.exists():
        command = shlex.join(["splat", "train", str(folder), "--out", str(run.root)])
        going_on = " --resume" if run.record_file.exists() else ""
        raise SplatError(f"{folder} was not trained{' to its end' if going_on else ''}; run `{command}{going_on}`")
    if run.record().config.environment:
        raise SplatError(f"{folder} was trained with --environment, which cells cannot share; train it without --environment")
    return run.gaussians()
