"""`splat capture` and `splat train`: from photographs to poses, and from a capture to a scene of Gaussians."""

from contextlib import AbstractContextManager, nullcontext
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
    from splat_py.train.trainer import StepReport, Trainer
    from splat_py.viewer.viewer import TrainingViewer

# The most photographs without a pose to list; capture.json has all.
_LISTED = 20
# Subfolder of the run for a capture made from photographs without poses.
_CAPTURED = "captured"
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

    # A folder of photographs (JPEG, PNG, WebP, TIFF, HEIC), or a video.
    source: Annotated[Positional[Path], arg(metavar="SOURCE")]
    # Folder for the capture: upright photographs, and a COLMAP model whose +z is up.
    out: Path
    # How poses are found.
    options: OmitArgPrefixes[CaptureOptions] = field(default_factory=CaptureOptions)

    def run(self) -> None:
        capture_with_progress(self.source, self.out, self.options)
        console.print(f"the capture is in {self.out}; train on it with `splat train {self.out} --out RUN`", soft_wrap=True)


def capture_with_progress(source: Path, out: Path, options: CaptureOptions) -> None:
    """Make a capture with a progress bar for each phase, and report its result and the photographs without a pose."""
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
        f"{len(report.registered)} of {total} photographs have a pose; {report.points:,} points, reprojection error "
        f"{report.error:.2f} pixels; {sum(report.seconds.values()):.0f} s",
        soft_wrap=True,
    )
    for item in report.unregistered[:_LISTED]:
        console.print(f"  {item.name}: {item.reason}; {item.advice}", soft_wrap=True)
    if len(report.unregistered) > _LISTED:
        console.print(f"  and {len(report.unregistered) - _LISTED} more, in {out / 'capture.json'}", soft_wrap=True)


@dataclass
class Train(OnDevice):
    """Turn photographs or a video into a scene of Gaussians.

    DATA is a COLMAP project, a nerfstudio or instant-ngp folder (transforms.json), a NeRF-synthetic folder, photographs or a
    video. If there are no poses, training first runs `splat capture` and keeps its result in the run's folder. That folder also
    gets the scene (scene.ply), a page to walk through it (scene.html), a checkpoint, held-out photographs beside their renders,
    and metrics.json.

    Example: splat train captures/fox --downscale 4 --out runs/fox

    On several GPUs: torchrun --nproc-per-node 4 -m splat_py train captures/fox --steps 7500 --out runs/fox
    """

    data: OmitArgPrefixes[DataOptions]
    config: OmitArgPrefixes[TrainConfig]
    # Folder of the run.
    out: Path
    # Continue the run in --out from its last checkpoint with its original options; a larger --steps extends it.
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
        data = self.data
        if self.resume:
            require_checkpoint(self.out)
        else:
            refuse_existing(self.out)
        captures = data.format in ("auto", "colmap") and needs_poses(data.data)
        if not self.resume and not captures:
            require_capture(data.data)
        shown = self.viewer and launch.rank == 0
        if shown:
            from splat_py.viewer.page_server import require_viewer

            require_viewer()
        if self.config.environment and not (self.config.splat == "Gaussian" and self.config.has_harmonics):
            console.print(
                "the sky will be missing in exported files, because far Gaussians cannot join splats or colours of another "
                "type; see it with `splat view`, or leave out --splat and --color",
                soft_wrap=True,
            )
        from splat_py.fit.distributed import device_of, joined
        from splat_py.train.run import RunFolder, train

        device = device_of(launch, self.device)
        ranks = joined(device, launch)
        if captures:
            if ranks.first:
                folder = self.out / _CAPTURED
                # With --resume, an earlier process may have made the capture.
                if not (self.resume and find_model(folder)):
                    capture_with_progress(self.data.data, folder, CaptureOptions())
            ranks.wait()
            data = replace(data, data=self.out / _CAPTURED)
        viewing: AbstractContextManager[TrainingViewer | None] = nullcontext()
        if shown:
            from splat_py.viewer.viewer import training_viewer

            viewing = training_viewer(self.out)
        with viewing as viewer, FitBar(device, "--downscale 8 or fewer --steps") as bar:
            if viewer is not None:
                console.print(f"the viewer is at {viewer.address}", soft_wrap=True)
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
        run = RunFolder(self.out)
        is_outdated = not run.page.exists() or run.page.stat().st_mtime < run.scene.stat().st_mtime
        # The page's viewer draws no other splats.
        if is_outdated and run.record().config.splat == "Gaussian":
            Export(run.root, run.page).run()


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
            f"{trainer.memory.shown()}",
            soft_wrap=True,
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
        if report.step % 20 == 0:
            self._mebibytes = process_bytes() / 2**20
        size = "" if report.divisor == 1 else f" photographs ÷{report.divisor}"
        self._bar.update(report.step + 1, self._psnr, f"{report.gaussians:,} Gaussians{size} {self._mebibytes:.0f} MiB")
