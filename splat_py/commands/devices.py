"""`splat devices`, `selftest`, `bench` and `demo`: the machine's devices, their correctness and speed, and a tour."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from splat_py.base.errors import NoDeviceError, SplatError
from splat_py.base.fields import check_fields
from splat_py.commands.fit import FitVolume
from splat_py.commands.render import Render, SceneOptions
from splat_py.commands.terminal import FitBar, OnDevice, console, print_error
from splat_py.commands.train import Train
from splat_py.scene.data_options import DataOptions
from splat_py.scene.sources import require_capture
from splat_py.train.config import TrainConfig
from splat_py.volume.config import VolumeConfig

if TYPE_CHECKING:
    from splat_py.commands.selftest.checking import SelfTest
    from splat_py.image.fitting import FitReport

# Fallbacks for an operator (`splat_py.gpu.device.Operator`) that a device lacks.
_INSTEAD = {
    "splat forward": "portable baseline",
    "splat backward": "portable baseline",
    "float atomics": "compare and swap",
}
# Reasons for the absence of a backend; mps has its own.
_ABSENT = {
    "metal": "only on macOS",
    "mps": "",
    "cuda": "torch sees no CUDA GPU",
    "vulkan": "no GPU with a Vulkan driver",
    "software": "no software Vulkan driver",
}
# Limits: Gaussians that fit into a buffer, pictures that fit into memory, and runs that finish in reasonable time.
_MOST = {"gaussians": 11_000_000, "side": 16_384, "repeats": 100_000}
# Sizes of the demo's image and field fits, each a few seconds on two processor cores.
_BLOBS, _IMAGE_STEPS = 2_000, 300
_FIELD = VolumeConfig((16, 32, 64), 40, rays_per_step=1 << 15)
# Sides of the demo's photographs in pixels; frames of the turntable.
_SIZE, _FRAMES = 192, 120


@dataclass
class Devices:
    """List the devices of this machine, their native operators, and the default device with the reason for it."""

    def run(self) -> None:
        from splat_py.gpu.availability import why_no_metal_compiler, why_no_torch_metal
        from splat_py.gpu.device import Adapter, Operator, adapters, choose, get_device, preference

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
            native = device.operators
            supported = ["native" if operator in native else _INSTEAD.get(operator.value, "no") for operator in Operator]
            columns.append([adapter.name, *supported, device.memory.bridge.value, str(device.tuning.tile_size)])
        for row in zip(["adapter", *(operator.value for operator in Operator), "tensors", "tile"], *columns, strict=True):
            table.add_row(*row)
        if columns:
            console.print(table)
        for adapter, problem in problems.items():
            if adapter != taken:
                print_error(problem)
        if taken is None or taken in problems:
            get_device()
        absent = [f"{backend} ({why or why_no_torch_metal()})" for backend, why in _ABSENT.items() if backend not in count]
        if absent:
            console.print(f"not available: {', '.join(absent)}")
        asked = os.environ.get("SPLAT_DEVICE")
        if "metal" in count:
            why_not = why_no_metal_compiler()
            say = f"cannot compile here: {why_not}" if why_not else "comes first, since Xcode's metal compiler works"
            instead = "mps, through torch, needs no Xcode and uses MPS tensors without a copy"
            console.print(f"metal, through SlangPy, {say}; {instead}")
        reason = f"SPLAT_DEVICE={asked}" if asked else f"the first available of {', '.join(preference())}"
        console.print(f"→ is the default: {reason}. --device and SPLAT_DEVICE override it.")


@dataclass
class SelfTestCommand(OnDevice):
    """Run every kernel once on this machine's device and compare it with stored results in double precision.

    The first run compiles the kernels, which takes one processor core two to three minutes without a GPU; later runs take ten
    to twenty seconds. Each case prints a line with its largest relative error and the allowed error. The exit code is 1 if a
    case failed.
    The file given by --out adds versions, properties of the device and a few timings, but no names and no paths. Please attach
    it to an issue, even if all is well, especially from an Apple GPU. On a Mac, both metal and mps are tested unless --device
    selects one.

    Example: splat selftest --out mac.json
    """

    # Write the results to this file, as JSON.
    out: Path = Path("splat-selftest.json")

    def run(self) -> None:
        from splat_py.base.files import require_writable
        from splat_py.commands.selftest.checking import SelfTest, metal_devices, save
        from splat_py.gpu.device import get_device

        require_writable(self.out)
        names, skipped = metal_devices(self.device)
        tests = [SelfTest(get_device(name)) for name in names]
        for test in tests:
            _run(test)
        save(self.out, tests, skipped)
        for name, reason in skipped.items():
            console.print(f"{name} was not tested: {reason}")
        outcomes = [outcome for test in tests for outcome in test.outcomes]
        failed = sum(outcome.verdict == "FAILED" for outcome in outcomes)
        verdict = f"{failed} of {len(outcomes)} cases FAILED" if failed else "all is well"
        console.print(f"{verdict}; the results are in {self.out}")
        if failed:
            sys.exit(1)


def _run(test: "SelfTest") -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    adapter = test.device.adapter
    console.print(f"{adapter.name} ({adapter.backend})")
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(test.cases))
        for outcome in test.run():
            progress.update(task, advance=1, description=outcome.name)
        for name in test.measure():
            progress.update(task, description=f"timing: {name}")
    table = Table("case", "worst error", "allowed", "", "ms")
    for outcome in test.outcomes:
        found = outcome.error is not None
        error = f"{outcome.error:.1e} {outcome.worst}" if found else ""
        allowed = (f"{outcome.allowed:.0e}" if outcome.allowed else "exact") if found else ""
        style = "red" if outcome.verdict == "FAILED" else None
        table.add_row(outcome.name, error, allowed, outcome.verdict, f"{outcome.milliseconds:.0f}", style=style)
    console.print(table)
    for outcome in test.outcomes:
        if outcome.reason:
            console.print(f"{outcome.name}: {outcome.verdict}: {outcome.reason}")
    table = Table("median of 7", "ms")
    for name, milliseconds in test.timings.items():
        table.add_row(name, f"{milliseconds:.2f}")
    if test.timings:
        console.print(table)


@dataclass
class Bench(OnDevice):
    """Time the stages of a render and of a training step: medians in milliseconds. With --quality, conduct an experiment
    instead: train kinds of runs with several seeds on several captures, and compare their scores.

    Example: splat bench --data captures/fox --out benchmarks/rasterization.json

    Example of an experiment, for splat bench --quality experiment.toml:
      captures = ["captures/fox"]
      seeds = [0, 1, 2]
      common = {steps = 2000, downscale = 8}
      [kinds.default]
      [kinds.mcmc]
      strategy = "mcmc"
    """

    # Also time training steps on this capture, with 10,000 Gaussians from random points.
    data: Path | None = None
    # Write the figures to this file, as JSON. With --quality: the folder for runs, results.json and index.html, by default
    # runs/NAME after the experiment's file. Finished runs in it are kept, and interrupted ones continued.
    out: Path | None = None
    # Gaussians and image side of the random scene.
    gaussians: int = 100_000
    side: int = 512
    # Number of repetitions; the median is reported.
    repeats: int = 11
    # A TOML file with lists of captures (by default the embedded demo) and of seeds (0, 1 and 2), a table [kinds.NAME] of
    # options of `splat train` for each kind of run, and options that all kinds have, in the table common. Paths are as on the
    # command line.
    quality: Path | None = None

    def run(self) -> None:
        check_fields(self, {name: (1, most) for name, most in _MOST.items()})
        if self.data is not None:
            require_capture(self.data)
        if self.quality is not None:
            if not self.quality.is_file():
                raise SplatError(f"{self.quality} does not exist; name the TOML file of an experiment")
            if self.data is not None:
                raise SplatError("the captures of --quality are in its file; leave out --data")
            from splat_py.commands.experiment import conduct

            conduct(self.quality, self.out or Path("runs") / self.quality.stem, self.device)
            return
        from splat_py.base.files import require_writable, write_json
        from splat_py.gpu.device import get_device
        from splat_py.train import benchmark

        if self.out is not None:
            require_writable(self.out)
        results = benchmark.run(get_device(self.device), self.gaussians, self.side, self.repeats, self.data)
        for name, figures in results["benchmarks"].items():
            table = Table("", "ms", title=name)
            for key, value in figures.items():
                table.add_row(key.replace("_", " "), f"{value:.2f}")
            console.print(table)
        if self.out is not None:
            write_json(self.out, results)


@dataclass
class Demo(OnDevice):
    """Render a small embedded scene, train on the pictures, fit an image and a radiance field, and write a page with all
    results (index.html), a scene, pictures and a video.

    Takes about two minutes on two processor cores without a GPU.
    """

    # Folder for the results.
    out: Path = Path("runs/demo")
    # Training steps.
    steps: int = 750

    def run(self) -> None:
        config = TrainConfig(steps=self.steps)
        config.validate()
        import imageio.v3 as iio
        import numpy as np

        from splat_py.demo import page
        from splat_py.demo.scene import write_demo_scene
        from splat_py.gpu.device import get_device
        from splat_py.scene.pictures import write_image
        from splat_py.train.run import RunFolder

        # Without a device, fail before anything is written.
        device = get_device(self.device)
        data = write_demo_scene(self.out / "photographs", size=_SIZE)
        folder = RunFolder(self.out / "run")
        resume = folder.checkpoint.exists()
        Train(DataOptions(data), config, folder.root, quality="off", resume=resume, device=self.device).run()
        video = self.out / "turntable.mp4"
        Render(SceneOptions(folder.root), video=video, frames=_FRAMES, device=self.device).run()
        rows = [iio.imread(path) for path in sorted(folder.pictures.glob("*.png"))]
        sheet = self.out / "side-by-side.png"
        write_image(sheet, np.concatenate(rows) / np.float32(255))

        names = sorted((data / "images").iterdir())
        photograph = names[len(names) // 2]
        with FitBar(device, "a GPU") as bar:
            bar.begin(_IMAGE_STEPS)

            def on_report(report: "FitReport") -> None:
                bar.update(report.step, report.psnr, f"{_BLOBS:,} 2D Gaussians")

            image = page.image_section(photograph, self.out / "image", _BLOBS, _IMAGE_STEPS, device, on_report)
        field = self.out / "field"
        resume = (field / "checkpoint.safetensors").exists()
        FitVolume(field, DataOptions(data), _FIELD, resume=resume, frames=0, device=self.device).run()
        sections = [
            page.scene_section(folder, video),
            image,
            page.field_section(field),
        ]
        flat = page.flat_color_section(folder.gaussians(), photograph, self.out / "flat-color.png", device)
        height, width, _ = iio.imread(photograph).shape
        adapter = device.adapter
        summary = (
            f"{len(names)} photographs of {width}×{height} pixels were ray traced from an analytic scene; these systems "
            f"learnt from them on {adapter.name} ({adapter.backend}). Times include compilation of shaders if needed."
        )
        index, developers = self.out / "index.html", self.out / "developers.html"
        page.write_page(developers, "splat_py: a new platform's first test", summary, [flat])
        links = [(developers, "For developers: the portable operator, which a new platform runs first")]
        page.write_page(index, "splat_py: three systems", summary, sections, links)
        console.print(f"open {index}: pictures, curves and times")
        console.print(f"or look at {sheet} (photograph | render) and {video}; walk through the scene in {folder.page}")
