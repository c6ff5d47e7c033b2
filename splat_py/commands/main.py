"""The command line: `splat train`, `render`, `eval`, `export`, `fit-image`, `fit-volume`, `devices`, `bench`, `selftest` and
`demo`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import imageio.v3 as iio
import numpy as np
import psutil
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg, subcommand

from splat_py.commands.fit_image import FitImage
from splat_py.commands.fit_volume import FitVolume
from splat_py.commands.selftest import SelfTestCommand
from splat_py.commands.terminal import track
from splat_py.demo.scene import write_demo_scene
from splat_py.errors import NoDeviceError, SplatError
from splat_py.gpu.device import BACKENDS, Adapter, Device, Operator, adapters, choose, get_device
from splat_py.scene.camera import orbit
from splat_py.scene.dataset import Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.splats import benchmark
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.config import TrainConfig
from splat_py.splats.evaluation import Scores, ViewScore, evaluate
from splat_py.splats.rendering import render, write_image, write_video
from splat_py.splats.run import DataOptions, RunFolder, train, write_json
from splat_py.splats.trainer import StepReport, Trainer

_console = Console(highlight=False)
_errors = Console(stderr=True, highlight=False)

# Share of the last value that the progress bar's PSNR keeps: single photographs differ by several dB.
_SMOOTHING = 0.95


@dataclass
class Train:
    """Turn a folder of posed photographs into a scene of Gaussians.

    DATA is a COLMAP project, a nerfstudio or instant-ngp folder (transforms.json) or a NeRF-synthetic one. The run's folder
    gets the scene (scene.ply), a checkpoint, held-out photographs beside their renders, and metrics.json.

    Example: splat train captures/fox --downscale 4 --out runs/fox
    """

    data: OmitArgPrefixes[DataOptions]
    config: OmitArgPrefixes[TrainConfig]
    # Folder of the run.
    out: Path
    # Continue the run in --out from its last checkpoint, with the configuration it was begun with.
    resume: bool = False
    # metal, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Train with a live progress bar, then evaluate."""
        _use(self.device)
        with _training_progress() as (on_start, on_step):
            scores = train(self.data, self.config, self.out, resume=self.resume, on_start=on_start, on_step=on_step)
        if scores is not None:
            _console.print(f"held-out views: PSNR {scores.psnr:.2f} dB, SSIM {scores.ssim:.4f}")
        _console.print(f"scene, pictures and metrics are in {self.out}")


@dataclass
class Render:
    """Render a scene: the views of its dataset, or a video on a path around it.

    SCENE is a run's folder or a .ply; a .ply needs --data to know cameras.

    Example: splat render runs/fox --video orbit.mp4
    """

    scene: Positional[Path]
    # Folder for one PNG a view.
    out: Path | None = None
    # File for a video around the scene (.mp4).
    video: Path | None = None
    # Which views to render to --out.
    views: Annotated[str, arg(metavar="test|train|all")] = "test"
    # Length of the video in frames, at 30 a second.
    frames: int = 240
    # Multiply the pictures' sides by this.
    scale: float = 1.0
    # Capture whose cameras to use; by default the one the run was trained on.
    data: Path | None = None
    # Divide the photographs' sides by this; by default as the run was trained.
    downscale: float | None = None
    # metal, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Render with a progress bar."""
        if self.out is None and self.video is None:
            raise SplatError("nothing to render: name a folder with --out, a file with --video, or both")
        if self.views not in ("test", "train", "all"):
            raise SplatError(f"--views is {self.views!r}; use test, train or all")
        if self.frames < 1:
            raise SplatError(f"--frames is {self.frames}; it must be at least 1")
        if not self.scale > 0:
            raise SplatError(f"--scale is {self.scale}; it must be above 0")
        _use(self.device)
        gaussians, dataset, config = _open_scene(self.scene, self.data, self.downscale)
        background, antialiased = dataset.background, config.antialiased
        if self.out is not None:
            views = {"test": dataset.test, "train": dataset.train, "all": range(len(dataset))}[self.views]
            for view in track(views, "views"):
                camera = dataset.views[view].camera.scaled(self.scale)
                name = Path(dataset.views[view].name).with_suffix(".png").name
                write_image(self.out / name, render(gaussians, camera, background, antialiased=antialiased))
            _console.print(f"{len(views)} views are in {self.out}")
        if self.video is not None:
            cameras = orbit([view.camera for view in dataset.views], self.frames)
            frames = (
                render(gaussians, camera.scaled(self.scale), background, antialiased=antialiased)
                for camera in track(cameras, "frames")
            )
            write_video(self.video, frames)
            _console.print(f"the video is {self.video}")


@dataclass
class Evaluate:
    """Compare a scene with the photographs that were held out from training: PSNR and SSIM, view by view.

    SCENE is a run's folder or a .ply; a .ply needs --data.

    Example: splat eval runs/fox --json scores.json
    """

    scene: Positional[Path]
    # Write the scores here, as JSON.
    json: Path | None = None
    # Write photographs beside renders into this folder.
    pictures: Path | None = None
    # Capture to compare with; by default the one the run was trained on.
    data: Path | None = None
    # Divide the photographs' sides by this; by default as the run was trained.
    downscale: float | None = None
    # metal, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Print a table."""
        _use(self.device)
        gaussians, dataset, config = _open_scene(self.scene, self.data, self.downscale)
        scores = evaluate(gaussians, dataset, antialiased=config.antialiased, pictures=self.pictures)
        _print_scores(scores)
        if self.json is not None:
            write_json(self.json, scores.to_json())


@dataclass
class Export:
    """Write a run's Gaussians, as they are in its last checkpoint, to a PLY that other viewers read.

    Example: splat export runs/fox fox.ply
    """

    # Folder of the run.
    run_folder: Positional[Path]
    # The file.
    out: Positional[Path]

    def run(self) -> None:
        """Convert the checkpoint."""
        if self.out.suffix.lower() != ".ply":
            raise SplatError(f"{self.out} does not end in .ply, the one format that is written")
        checkpoint = Checkpoint.load(RunFolder(self.run_folder).checkpoint)
        gaussians = checkpoint.gaussians()
        gaussians.save_ply(self.out)
        _console.print(f"{len(gaussians):,} Gaussians after {checkpoint.step:,} steps are in {self.out}")


# What stands in for an operator that a device does not have.
_INSTEAD = {
    Operator.SPLAT_FORWARD: "portable baseline",
    Operator.SPLAT_BACKWARD: "portable baseline",
    Operator.FLOAT_ATOMICS: "compare and swap",
}


_ABSENT = {
    "metal": "only on macOS",
    "cuda": "torch sees no CUDA GPU",
    "vulkan": "no GPU with a Vulkan driver",
    "software": "no software Vulkan driver",
}


@dataclass
class Devices:
    """List every way to run here, what it does natively, and which one is taken by default, and why."""

    def run(self) -> None:
        """Print a table, a column a device."""
        try:
            taken = choose()
        except SplatError:
            taken = None
        table = Table("")
        columns: list[list[str]] = []
        problems: dict[Adapter, SplatError] = {}
        count: dict[str, int] = {}
        for adapter in adapters():
            index = count[adapter.backend] = count.get(adapter.backend, -1) + 1
            name = f"{adapter.backend}:{index}" if index else adapter.backend
            table.add_column(f"→ {name}" if adapter == taken else name)
            try:
                device = get_device(name)
            except NoDeviceError as error:
                problems[adapter] = error
                columns.append([adapter.name, "cannot be opened", *[""] * (len(Operator) + 1)])
                continue
            supported = ["native" if operator in device.operators else _INSTEAD.get(operator, "no") for operator in Operator]
            columns.append([adapter.name, *supported, device.memory.bridge.value, str(device.tuning.tile_size)])
        for row in zip(["adapter", *(operator.value for operator in Operator), "tensors", "tile"], *columns, strict=True):
            table.add_row(*row)
        if columns:
            _console.print(table)
        for adapter, problem in problems.items():
            if adapter != taken:
                _errors.print(f"splat: {problem}", soft_wrap=True, markup=False)
        if taken is None or taken in problems:
            get_device()
        absent = [f"{backend} ({why})" for backend, why in _ABSENT.items() if backend not in count]
        if absent:
            _console.print(f"not here: {', '.join(absent)}")
        asked = os.environ.get("SPLAT_DEVICE")
        reason = f"SPLAT_DEVICE={asked}" if asked else f"the first there is of {', '.join(BACKENDS)}"
        _console.print(f"→ is taken by default: {reason}. --device and SPLAT_DEVICE overrule it.")


@dataclass
class Bench:
    """Time the stages of a render and of a training step: medians, in milliseconds.

    Example: splat bench --data captures/fox --out benchmarks/results.json
    """

    # Also time training steps on this capture, with 10,000 Gaussians from random points.
    data: Path | None = None
    # Write the figures here, as JSON.
    out: Path | None = None
    # Gaussians and image side of the random scene.
    gaussians: int = 100_000
    side: int = 512
    # Repetitions; the median is reported.
    repeats: int = 11
    # metal, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Print a table for each benchmark."""
        if self.gaussians < 1 or self.side < 1 or self.repeats < 1:
            raise SplatError("--gaussians, --side and --repeats must be at least 1")
        device = _use(self.device)
        results = benchmark.run(device, self.gaussians, self.side, self.repeats, self.data)
        for name, figures in results["benchmarks"].items():
            table = Table("", "ms", title=name)
            for key, value in figures.items():
                table.add_row(key.replace("_", " "), f"{value:.2f}")
            _console.print(table)
        if self.out is not None:
            write_json(self.out, results)


@dataclass
class Demo:
    """Render a small embedded scene from known geometry, train on the pictures, and leave a scene, pictures and a video.

    Takes about two minutes on two processor cores without a GPU.
    """

    # Folder for everything.
    out: Path = Path("runs/demo")
    # Training steps.
    steps: int = 1500
    # metal, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Make the data, train, make the video."""
        _use(self.device)
        data = write_demo_scene(self.out / "photographs")
        folder = RunFolder(self.out / "run")
        resume = folder.checkpoint.exists()
        config = TrainConfig(steps=self.steps)
        Train(DataOptions(data), config, folder.root, resume=resume, device=self.device).run()
        video = self.out / "turntable.mp4"
        Render(folder.root, video=video, frames=120, scale=3, device=self.device).run()
        pairs = [iio.imread(path) for path in sorted((folder.root / "held-out").glob("*.png"))]
        sheet = self.out / "side-by-side.png"
        write_image(sheet, np.concatenate(pairs) / np.float32(255))
        _console.print(f"look at {sheet} (photograph | render) and {video}; the scene is {folder.scene}")


Command = (
    Annotated[Train, subcommand("train")]
    | Annotated[Render, subcommand("render")]
    | Annotated[Evaluate, subcommand("eval")]
    | Annotated[Export, subcommand("export")]
    | Annotated[FitImage, subcommand("fit-image")]
    | Annotated[FitVolume, subcommand("fit-volume")]
    | Annotated[Devices, subcommand("devices")]
    | Annotated[Bench, subcommand("bench")]
    | Annotated[SelfTestCommand, subcommand("selftest")]
    | Annotated[Demo, subcommand("demo")]
)


def main() -> None:
    """Entry point: errors of the user's are one sentence on the error stream and exit code 1."""
    warnings.showwarning = _show_warning
    command = tyro.cli(
        Command,
        prog="splat",
        description="Differentiable Gaussian splatting on Metal, Vulkan and CUDA.",
    )
    try:
        command.run()
    except SplatError as error:
        _fail(str(error), 1)
    except NotImplementedError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail(
            "interrupted; what was finished is saved, and `--resume` continues a run of train, fit-image or fit-volume",
            130,
        )
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}", 1)


def _use(name: str | None) -> Device:
    """Open the device that --device names, and make it the default of everything below."""
    if name is not None:
        os.environ["SPLAT_DEVICE"] = name
    return get_device()


def _fail(message: str, code: int) -> None:
    _errors.print(f"splat: {message}", soft_wrap=True, markup=False)
    sys.exit(code)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _errors.print(f"splat: {message}", soft_wrap=True, markup=False)


def _open_scene(scene: Path, data: Path | None, downscale: float | None) -> tuple[Gaussians, Dataset, TrainConfig]:
    """A scene and a capture to look at it with: a run's own, or a .ply and what --data names."""
    if scene.suffix.lower() == ".ply":
        if data is None:
            raise SplatError(f"{scene} says nothing about cameras; name a capture with --data")
        gaussians, options, config = Gaussians.load_ply(scene), DataOptions(data), TrainConfig()
    else:
        folder = RunFolder(scene)
        options, config = folder.options()
        gaussians = folder.gaussians()
    changes = {"data": data, "downscale": downscale}
    options = DataOptions(**{**vars(options), **{k: v for k, v in changes.items() if v is not None}})
    return gaussians, options.load(), config


def _print_scores(scores: Scores) -> None:
    table = Table("view", "PSNR", "SSIM")

    def row(view: ViewScore) -> None:
        table.add_row(view.name, f"{view.psnr:.2f}", f"{view.ssim:.4f}")

    for view in scores.views:
        row(view)
    table.add_section()
    row(ViewScore("mean", scores.psnr, scores.ssim))
    _console.print(table)


@contextmanager
def _training_progress() -> Iterator[tuple[Callable[[Trainer], None], Callable[[StepReport], None]]]:
    """A bar with steps per second, PSNR, Gaussians and memory."""
    progress = Progress(
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TextColumn("PSNR {task.fields[psnr]:.2f} dB"),
        TextColumn("{task.fields[gaussians]:,} Gaussians"),
        TextColumn("{task.fields[memory]:.0f} MiB"),
        TimeRemainingColumn(),
        console=_console,
    )
    process = psutil.Process()
    psnr: float | None = None
    task = None

    def on_start(trainer: Trainer) -> None:
        nonlocal task
        views, gaussians = len(trainer.dataset.train), trainer.parameters.count
        camera = trainer.dataset.views[trainer.dataset.train[0]].camera
        _console.print(
            f"{trainer.device.adapter.name} ({trainer.device.adapter.backend}): {views} photographs, "
            f"{camera.width}×{camera.height}, {gaussians:,} Gaussians to begin with"
        )
        task = progress.add_task(
            "training",
            total=trainer.config.steps,
            completed=trainer.step,
            speed="",
            psnr=0.0,
            gaussians=gaussians,
            memory=0.0,
        )

    def on_step(report: StepReport) -> None:
        nonlocal psnr
        assert task is not None
        psnr = report.values.psnr if psnr is None else _SMOOTHING * psnr + (1 - _SMOOTHING) * report.values.psnr
        speed = progress.tasks[0].speed
        progress.update(
            task,
            completed=report.step + 1,
            speed=f"{speed:.1f} steps/s" if speed else "",
            psnr=psnr,
            gaussians=report.gaussians,
            memory=process.memory_info().rss / 2**20 if report.step % 20 == 0 else progress.tasks[0].fields["memory"],
        )

    with progress:
        yield on_start, on_step


if __name__ == "__main__":
    main()
