"""`splat capture` and `splat train`: from photographs to poses, and from a capture to a scene of Gaussians."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.base.errors import SplatError
from splat_py.commands.files import Export
from splat_py.commands.terminal import FitBar, Lines, OnDevice, console, explicit_options, left_out, open_browser
from splat_py.fit.process import launch_of
from splat_py.fit.run_folder import refuse_existing, require_checkpoint, run_lock
from splat_py.scene.data_options import OMITTED_DATA, CaptureOptions, DataOptions
from splat_py.scene.sources import OMITTED, find_model, needs_poses, require_capture, require_photographs
from splat_py.train.config import TrainConfig

if TYPE_CHECKING:
    from splat_py.train.trainer import StepReport, Trainer
    from splat_py.viewer.training import TrainingViewer

# The most photographs without a pose to list; capture.json has all.
_LISTED = 20
# Subfolder of the run for a capture made from photographs without poses.
_CAPTURED = "captured"
# Files of a run that are never overwritten.
_RESULTS = ("scene.ply", "metrics.json")
# Share of the last value in the progress bar's smoothed PSNR: photographs differ by several dB.
_SMOOTHING = 0.95


@dataclass
class CaptureCommand:
    """Find the camera poses of photographs or of a video's frames, for `splat train`.

    SOURCE may have a folder masks with pictures of the photographs' names, whose black pixels are ignored. A good capture has
    at least twenty photographs from all around that overlap well; thirty take less than a minute on two cores. Run the command
    again to continue an interrupted capture. Needs pycolmap: pip install 'slang-splat[capture]'.

    Example: splat capture photos/ --out scene/ && splat train scene/ --out run/
    """

    # A folder of photographs (JPEG, PNG, WebP, TIFF, HEIC; not RAW), or a video.
    source: Annotated[Positional[Path], arg(metavar="SOURCE")]
    # Folder for the capture: upright photographs, and a COLMAP model whose +z is up.
    out: Path
    # Options for finding poses.
    options: OmitArgPrefixes[CaptureOptions] = field(default_factory=CaptureOptions)

    def run(self) -> None:
        capture_with_progress(self.source, self.out, self.options)
        console.print(f"the capture is in {self.out}; train on it with `splat train {self.out} --out RUN`")


def capture_with_progress(source: Path, out: Path, options: CaptureOptions) -> None:
    """Make a capture with a progress bar for each phase, and report its result and the photographs without a pose."""
    options.validate()
    require_photographs(source)
    from splat_py.capture import capture

    columns = (
        TextColumn("{task.description:11}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    tasks: dict[str, TaskID] = {}
    progress = Progress(*columns, console=console)

    lines = Lines()

    def show(phase: str, done: int, total: int) -> None:
        lines.tell(f"{phase}: {done} of {total}")
        progress.start()
        if phase not in tasks:
            tasks[phase] = progress.add_task(phase)
        progress.update(tasks[phase], completed=done, total=total)

    try:
        report = capture(source, out, options, on_progress=show)
    finally:
        if tasks:
            progress.stop()
    total = len(report.registered) + len(report.unregistered)
    console.print(
        f"{len(report.registered)} of {total} photographs have a pose; {report.points:,} points, reprojection error "
        f"{report.error:.2f} pixels; {sum(report.seconds.values()):.0f} s"
    )
    listed = report.unregistered[:_LISTED]
    # The same advice once, below all that it is for.
    for advice in dict.fromkeys(item.advice for item in listed):
        for item in listed:
            if item.advice == advice:
                console.print(f"  {item.name}: {item.reason}")
        console.print(f"    {advice}")
    if len(report.unregistered) > _LISTED:
        console.print(f"  and {len(report.unregistered) - _LISTED} more, in {out / 'capture.json'}")


@dataclass
class Train(OnDevice):
    """Turn photographs or a video into a scene of Gaussians.

    DATA is a folder of photographs, a video, or a capture whose poses are known: a COLMAP project, a nerfstudio or instant-ngp
    folder (transforms.json), or a NeRF-synthetic folder. If there are no poses, training first runs `splat capture` and keeps
    its result in the run's folder. That folder also gets the scene (scene.ply), a page to walk through it (scene.html), a
    checkpoint, held-out photographs beside their renders, and metrics.json.

    Example: splat train photos/

    On several GPUs: torchrun --nproc-per-node 4 -m splat_py train captures/fox --steps 7500 --out runs/fox
    """

    data: OmitArgPrefixes[DataOptions] = OMITTED_DATA
    config: OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)
    # Folder of the run; by default runs/NAME after DATA, or the next of runs/NAME-2, runs/NAME-3 that is free.
    out: Path | None = None
    # Time of training, by steps timed on this device: about 2 minutes (draft), 10 (good) or 60 (best). It chooses --steps and
    # --downscale, and where photographs call for them --exposure, --environment and --filter-3d; options that you give keep
    # their values. off chooses nothing. By default good, or off if you give --steps or start several processes. A run that is
    # resumed keeps its options.
    quality: Literal["auto", "draft", "good", "best", "off"] = "auto"
    # Continue the run in --out, or else the last run of DATA, from its last checkpoint with its original options; a larger
    # --steps extends it. DATA may be left out.
    resume: bool = False
    # With --resume: compile the Slang source stored in the run without naming its file again.
    trust_source: bool = False
    # Show the scene in the browser during training; drawing takes at most a tenth of the time.
    viewer: bool = False

    def run(self) -> None:
        # Before torch is imported.
        launch = launch_of()
        self.data.validate()
        self.config.validate()
        data, config, given = self.data, self.config, explicit_options()
        captures = data.format in ("auto", "colmap") and needs_poses(data.data)
        if not (captures or self.resume):
            require_capture(data.data)
        out = self.out or _folder_of(data.data, self.resume)
        if not self.resume:
            refuse_existing(out, *_RESULTS)
        else:
            require_checkpoint(out)
            if captures:
                _require_captured(out, data.data)
        quality = self.quality
        if quality == "auto":
            quality = "good" if launch.alone and "steps" not in given else "off"
        elif quality != "off" and self.resume:
            console.print(f"--quality {quality} chooses options of new runs; a larger --steps extends this one")
        elif quality != "off" and not launch.alone:
            raise SplatError(
                f"--quality {quality} times a single process; choose --steps and --downscale yourself, or start one"
            )
        shown = self.viewer and launch.rank == 0
        if shown:
            from splat_py.viewer.page_server import require_viewer

            require_viewer()
        if data.cut_out and not (self.resume or config.environment or "random_background" in given):
            config = replace(config, random_background=True)
        if self.config.environment and not (self.config.splat == "Gaussian" and self.config.has_harmonics):
            console.print(
                "the sky will be missing in exported files, because far Gaussians cannot join splats or colours of another "
                "type; see it with `splat view`, or leave out --splat and --color"
            )
        from splat_py.fit.distributed import device_of, joined
        from splat_py.train.run import RunFolder, train

        device = device_of(launch, self.device)
        ranks = joined(device, launch)
        if captures:
            # With --resume, the run has its capture.
            if ranks.first and not self.resume:
                capture_with_progress(data.data, out / _CAPTURED, CaptureOptions())
            ranks.wait()
            data = replace(data, data=out / _CAPTURED)
        if quality != "off" and not self.resume:
            from splat_py.commands.quality import choose

            console.print("timing a few steps of training; on a new machine, kernels are compiled first")
            trial = Progress(BarColumn(bar_width=20), MofNCompleteColumn(), console=console, transient=True)
            # Another run there, or a folder that cannot be written to, is refused before the trial.
            with run_lock(out), trial:
                task = trial.add_task("", total=None)
                data, config, said = choose(
                    data, config, given, quality, device, lambda done, total: trial.update(task, completed=done, total=total)
                )
            for sentence in said:
                console.print(sentence)
        viewing: AbstractContextManager[TrainingViewer | None] = nullcontext()
        if shown:
            from splat_py.viewer.training import training_viewer

            viewing = training_viewer(out)
        with viewing as viewer, FitBar(device, "--quality good, a larger --downscale or fewer --steps") as bar:
            if viewer is not None:
                console.print(f"the viewer is at {viewer.address}")
                open_browser(viewer.address)
            progress = _Progress(bar, viewer)
            scores = train(
                data,
                config,
                out,
                resume=self.resume,
                given=given,
                trust_source=self.trust_source,
                device=device,
                ranks=ranks,
                on_start=progress.on_start,
                on_step=progress.on_step,
                between_steps=None if viewer is None else viewer.between_steps,
            )
        if not ranks.first:
            return
        for removal in progress.trainer.removals if progress.trainer else ():
            removed, share = removal.before - removal.after, 1 - removal.after / removal.before
            console.print(f"pruned {removed:,} of {removal.before:,} Gaussians ({share:.0%}) after step {removal.step:,}")
        if scores is not None:
            trained = progress.trainer and progress.trainer.config
            # The exposure of a photograph that was held out is not known.
            matched = f" ({scores.corrected_psnr:.2f} dB with colours matched)" if trained and trained.exposure else ""
            console.print(f"held-out views: PSNR {scores.psnr:.2f} dB{matched}, SSIM {scores.ssim:.4f}")
        console.print(f"scene, pictures and metrics are in {out}")
        run = RunFolder(out)
        if numbers := run.metrics().get("camera_params"):
            console.print(f"the camera's numbers are {' '.join(f'{number:.6g}' for number in numbers)}")
        is_outdated = not run.page.exists() or run.page.stat().st_mtime < run.scene.stat().st_mtime
        # The page's viewer draws no other splats.
        if is_outdated and run.record().config.splat in ("Gaussian", "Surfel"):
            Export(scene=run.root, out=run.page, device=self.device).run()


def _folder_of(data: Path, resume: bool) -> Path:
    """Return the first folder for runs of `data` without one or, to resume, the last with one."""

    def holds_run(folder: Path) -> bool:
        return any((folder / name).exists() for name in ("checkpoint.safetensors", *_RESULTS))

    if data == OMITTED:
        raise SplatError("name the run to resume with --out")
    name = (data.stem if data.is_file() else data.resolve().name) or "run"
    folders = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    if not resume:
        return next(folder for folder in folders if not holds_run(folder))
    runs = list(takewhile(holds_run, folders))
    if not runs:
        raise SplatError(
            f"{Path('runs') / name} has no checkpoint to resume from; leave out --resume, or name a run with --out"
        )
    return runs[-1]


def _require_captured(out: Path, photographs: Path) -> None:
    """Raise SplatError unless the run in `out` was begun with these photographs or this video."""
    from splat_py.capture.workspace import Workspace

    captured = out / _CAPTURED
    if not find_model(captured):
        raise SplatError(f"the run in {out} was not begun with {photographs}; leave DATA out, or choose another --out")
    Workspace(captured, photographs)


class _Progress:
    """Feeds the bar with smoothed PSNR, the number of Gaussians, the downscaling of photographs, and memory."""

    def __init__(self, bar: FitBar, viewer: "TrainingViewer | None") -> None:
        self._bar, self._viewer = bar, viewer
        self._psnr: float | None = None
        self._mebibytes = 0.0
        self.trainer: Trainer | None = None
        self._divisor = 1

    def on_start(self, trainer: "Trainer") -> None:
        self.trainer = trainer
        adapter, dataset = trainer.device.adapter, trainer.dataset
        camera = dataset.views[dataset.train[0]].camera
        console.print(
            f"{adapter.name} ({adapter.backend}): {len(dataset.train)} photographs, "
            f"{camera.width}×{camera.height}{left_out(dataset)}, {trainer.parameters.count:,} initial Gaussians; "
            f"{trainer.memory.shown()}"
        )
        if self._viewer is not None:
            self._viewer.on_start(trainer)
        self._bar.begin(trainer.config.steps, trainer.step)

    def on_step(self, report: "StepReport") -> None:
        from splat_py.gpu.device import process_bytes

        if self._viewer is not None:
            self._viewer.on_step(report)
        if report.divisor != self._divisor:
            self._divisor, self._psnr = report.divisor, None  # smaller photographs have a higher PSNR
        last, psnr = self._psnr, report.values.psnr
        self._psnr = psnr if last is None else _SMOOTHING * last + (1 - _SMOOTHING) * psnr
        if report.step % 20 == 0 or not self._mebibytes:
            self._mebibytes = process_bytes() / 2**20
        size = "" if report.divisor == 1 else f" ÷{report.divisor}"
        self._bar.update(report.step + 1, self._psnr, f"{report.gaussians:,} Gaussians{size} {self._mebibytes:.0f} MiB")
