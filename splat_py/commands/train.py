"""`splat train`: from a capture to a scene of Gaussians."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import OmitArgPrefixes

from splat_py.capture.options import CaptureOptions
from splat_py.commands.capture import capture_with_progress
from splat_py.commands.export import Export
from splat_py.commands.given import given_options
from splat_py.commands.terminal import FitBar, console, left_out
from splat_py.fit.launch import launch_of
from splat_py.fit.resuming import refuse_existing, require_checkpoint
from splat_py.scene.missing_poses import find_model, needs_poses, require_capture
from splat_py.scene.options import DataOptions
from splat_py.splats.config import TrainConfig

if TYPE_CHECKING:
    from splat_py.splats.contribution import Removal
    from splat_py.splats.trainer import StepReport, Trainer
    from splat_py.viewer.training import TrainingViewer

# Of a run's folder, where photographs come without poses.
_CAPTURED = "captured"
# Share of the last value that the progress bar's PSNR keeps: single photographs differ by several dB.
_SMOOTHING = 0.95
# Steps between two readings of the process' memory, which take the system some time.
_MEMORY_EVERY = 20


@dataclass
class Train:
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
    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Train with a live progress bar, then evaluate."""
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
        from splat_py.splats.run import train

        device = device_of(launch, self.device)
        ranks = joined(device, launch)
        if captures:
            if ranks.first:
                data = replace(data, data=self._captured())
            ranks.wait()
            data = replace(data, data=self.out / _CAPTURED)
        with self._viewer() as viewer, FitBar(device, "--downscale 8 or fewer --steps") as bar:
            progress = _Progress(bar, viewer)
            scores = train(
                data,
                self.config,
                self.out,
                resume=self.resume,
                given=given_options(),
                trust_source=self.trust_source,
                device=device,
                ranks=ranks,
                on_start=progress.on_start,
                on_step=progress.on_step,
                between_steps=None if viewer is None else viewer.between_steps,
            )
        if not ranks.first:
            return
        for removal in progress.removals():
            removed, share = removal.before - removal.after, 1 - removal.after / removal.before
            console.print(f"pruned {removed:,} of {removal.before:,} Gaussians ({share:.0%}) after step {removal.step:,}")
        if scores is not None:
            console.print(f"held-out views: PSNR {scores.psnr:.2f} dB, SSIM {scores.ssim:.4f}")
        console.print(f"scene, pictures and metrics are in {self.out}")
        self._write_page()

    def _write_page(self) -> None:
        """The scene to walk through, if it is of what the page's viewer draws."""
        from splat_py.splats.run_folder import RunFolder

        folder = RunFolder(self.out)
        is_new = not folder.page.exists() or folder.page.stat().st_mtime < folder.scene.stat().st_mtime
        if is_new and folder.record().config.splat == "Gaussian":
            Export(folder.root, folder.page).run()

    def _captured(self) -> Path:
        """The folder in which the photographs' poses are, found now if they were not before."""
        folder = self.out / _CAPTURED
        if not (self.resume and find_model(folder)):
            capture_with_progress(self.data.data, folder, CaptureOptions())
        return folder

    @contextmanager
    def _viewer(self) -> Iterator[TrainingViewer | None]:
        """What shows the run, if that is asked for."""
        if not self.viewer or launch_of().rank > 0:
            yield None
            return
        from splat_py.viewer.page_server import LOOPBACK, PORT
        from splat_py.viewer.training import training_viewer

        with training_viewer(self.out, LOOPBACK, PORT) as (viewer, address):
            console.print(f"the viewer is at {address}", soft_wrap=True)
            yield viewer


class _Progress:
    """Feeds the bar with smoothed PSNR, at the size that photographs are compared at, Gaussians and memory."""

    def __init__(self, bar: FitBar, viewer: TrainingViewer | None) -> None:
        import psutil

        self._bar, self._viewer = bar, viewer
        self._process = psutil.Process()
        self._psnr: float | None = None
        self._mebibytes = 0.0
        self._trainer: Trainer | None = None
        self._divisor = 1

    def on_start(self, trainer: Trainer) -> None:
        """Say what is trained, where."""
        self._trainer = trainer
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

    def removals(self) -> list[Removal]:
        """What was pruned by contribution."""
        return [] if self._trainer is None else self._trainer.removals

    def on_step(self, report: StepReport) -> None:
        """After a step."""
        if self._viewer is not None:
            self._viewer.on_step(report)
        if report.divisor != self._divisor:
            # Small photographs are easier.
            self._divisor, self._psnr = report.divisor, None
        last, psnr = self._psnr, report.values.psnr
        self._psnr = psnr if last is None else _SMOOTHING * last + (1 - _SMOOTHING) * psnr
        if report.step % _MEMORY_EVERY == 0:
            self._mebibytes = self._process.memory_info().rss / 2**20
        size = "" if report.divisor == 1 else f" photographs ÷{report.divisor}"
        self._bar.update(report.step + 1, self._psnr, f"{report.gaussians:,} Gaussians{size} {self._mebibytes:.0f} MiB")
