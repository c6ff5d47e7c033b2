"""`splat capture` and `splat train`: from photographs to poses, and from a capture to a scene of Gaussians."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.commands.files import Export
from splat_py.commands.terminal import FitBar, OnDevice, console, explicit_options, left_out
from splat_py.fit.process import launch_of
from splat_py.fit.run_folder import refuse_existing, require_checkpoint
from splat_py.scene.data_options import CaptureOptions, DataOptions
from splat_py.scene.sources import find_model, needs_poses, require_capture, require_photographs
from splat_py.train.config import TrainConfig

if TYPE_CHECKING:
    from splat_py.capture.workspace import CaptureReport
    from splat_py.train.trainer import StepReport, Trainer
    from splat_py.viewer.viewer import TrainingViewer

# Photographs without a pose that are listed; all are in capture.json.
_LISTED = 20
# Folder in the run's for photographs' poses that were found first.
_CAPTURED = "captured"
# Share of the last value that the progress bar's PSNR keeps: single photographs differ by several dB.
_SMOOTHING = 0.95


@dataclass
class CaptureCommand:
    """Find where photographs were taken, or the frames of a video, so that `splat train` can make a scene of them.

    SOURCE is a folder of photographs (JPEG, PNG, WebP, TIFF, HEIC), or a video. What is black in a picture with a photograph's
    name in its folder masks is ignored. Twenty photographs or more from all around, each with much of what the last one showed,
    are a good capture; thirty take less than a minute on two cores. A capture that was interrupted goes on when it is called
    again. Needs pycolmap: pip install 'slang-splat[capture]'.

    Example: splat capture photos/ --out scene/ && splat train scene/ --out run/
    """

    source: Annotated[Positional[Path], arg(metavar="SOURCE")]
    # Folder of the captured scene: the photographs upright, and a COLMAP model whose +z is up.
    out: Path
    options: OmitArgPrefixes[CaptureOptions] = field(default_factory=CaptureOptions)

    def run(self) -> None:
        capture_with_progress(self.source, self.out, self.options)
        console.print(f"the scene is in {self.out}; train on it with `splat train {self.out} --out RUN`", soft_wrap=True)


def capture_with_progress(source: Path, out: Path, options: CaptureOptions) -> "CaptureReport":
    """Capture with a progress bar a phase, and say what was found and what was not."""
    options.validate()
    require_photographs(source)
    from splat_py.capture import capture

    columns = (
        TextColumn("{task.description:11}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    progress = Progress(*columns, console=console)

    def show(phase: str, done: int, total: int) -> None:
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
        f"{len(report.registered)} of {total} photographs have a pose; {report.points:,} points, {report.error:.2f} pixels "
        f"from where they were seen; {sum(report.seconds.values()):.0f} s",
        soft_wrap=True,
    )
    for item in report.unregistered[:_LISTED]:
        console.print(f"  {item.name}: {item.reason}; {item.advice}", soft_wrap=True)
    if len(report.unregistered) > _LISTED:
        console.print(f"  and {len(report.unregistered) - _LISTED} more, in {out / 'capture.json'}", soft_wrap=True)
    return report


@dataclass
class Train(OnDevice):
    """Turn photographs or a video into a scene of Gaussians.

    DATA is a COLMAP project, a nerfstudio or instant-ngp folder (transforms.json) or a NeRF-synthetic one; or photographs or a
    video without poses, which are found first, as `splat capture` does, and kept in the run's folder. That gets the scene
    (scene.ply), a page to walk through it (scene.html), a checkpoint, held-out photographs beside their renders, and
    metrics.json.

    Example: splat train captures/fox --downscale 4 --out runs/fox

    On several GPUs: torchrun --nproc-per-node 4 -m splat_py train captures/fox --steps 7500 --out runs/fox
    """

    data: OmitArgPrefixes[DataOptions]
    config: OmitArgPrefixes[TrainConfig]
    # Folder of the run.
    out: Path
    # Continue the run in --out from its last checkpoint, with the options it was begun with; a larger --steps extends it.
    resume: bool = False
    # With --resume: compile the Slang source that the run carries, without its file being named again.
    trust_source: bool = False
    # Show the scene in the browser while it is trained; drawing takes at most a tenth of the time.
    viewer: bool = False

    def run(self) -> None:
        # Before torch is imported.
        launch = launch_of()
        self.data.validate()
        self.config.validate()
        data = self.data
        if self.resume:
            require_checkpoint(self.out)
        else:
            refuse_existing(self.out)
        captures = data.format in ("auto", "colmap") and needs_poses(data.data)
        if not self.resume and not captures:
            require_capture(data.data)
        if self.viewer and launch.rank == 0:
            from splat_py.viewer.page_server import require_viewer

            require_viewer()
        from splat_py.fit.distributed import device_of, joined
        from splat_py.train.run import train

        device = device_of(launch, self.device)
        ranks = joined(device, launch)
        if captures:
            if ranks.first:
                folder = self.out / _CAPTURED
                # With --resume they may have been found before.
                if not (self.resume and find_model(folder)):
                    capture_with_progress(self.data.data, folder, CaptureOptions())
            ranks.wait()
            data = replace(data, data=self.out / _CAPTURED)
        with self._viewer() as viewer, FitBar(device, "--downscale 8 or fewer --steps") as bar:
            progress = _Progress(bar, viewer)
            scores = train(
                data,
                self.config,
                self.out,
                resume=self.resume,
                given=explicit_options(),
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
            console.print(f"held-out views: PSNR {scores.psnr:.2f} dB, SSIM {scores.ssim:.4f}")
        console.print(f"scene, pictures and metrics are in {self.out}")
        self._write_page()

    def _write_page(self) -> None:
        """The scene to walk through, if it is of what the page's viewer draws."""
        from splat_py.train.run import RunFolder

        folder = RunFolder(self.out)
        is_new = not folder.page.exists() or folder.page.stat().st_mtime < folder.scene.stat().st_mtime
        if is_new and folder.record().config.splat == "Gaussian":
            Export(folder.root, folder.page).run()

    @contextmanager
    def _viewer(self) -> "Iterator[TrainingViewer | None]":
        if not self.viewer or launch_of().rank > 0:
            yield None
            return
        from splat_py.viewer.page_server import LOOPBACK, PORT
        from splat_py.viewer.viewer import training_viewer

        with training_viewer(self.out, LOOPBACK, PORT) as (viewer, address):
            console.print(f"the viewer is at {address}", soft_wrap=True)
            yield viewer


class _Progress:
    """Feeds the bar with smoothed PSNR, at the size that photographs are compared at, Gaussians and memory."""

    def __init__(self, bar: FitBar, viewer: "TrainingViewer | None") -> None:
        import psutil

        self._bar, self._viewer = bar, viewer
        self._process = psutil.Process()
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
            f"{camera.width}×{camera.height}{left_out(dataset)}, {trainer.parameters.count:,} Gaussians to begin with; "
            f"{trainer.memory.shown()}",
            soft_wrap=True,
        )
        if self._viewer is not None:
            self._viewer.on_start(trainer)
        self._bar.begin(trainer.config.steps, trainer.step)

    def on_step(self, report: "StepReport") -> None:
        if self._viewer is not None:
            self._viewer.on_step(report)
        if report.divisor != self._divisor:
            # Small photographs are easier.
            self._divisor, self._psnr = report.divisor, None
        last, psnr = self._psnr, report.values.psnr
        self._psnr = psnr if last is None else _SMOOTHING * last + (1 - _SMOOTHING) * psnr
        if report.step % 20 == 0:
            self._mebibytes = self._process.memory_info().rss / 2**20
        size = "" if report.divisor == 1 else f" photographs ÷{report.divisor}"
        self._bar.update(report.step + 1, self._psnr, f"{report.gaussians:,} Gaussians{size} {self._mebibytes:.0f} MiB")
