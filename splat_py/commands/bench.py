"""`splat bench`: how long the stages of a render and of a training step take, and how good a scene is after which time."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from splat_py.commands.terminal import console
from splat_py.errors import SplatError
from splat_py.scene.missing_poses import require_capture
from splat_py.splats.config import TrainConfig

# As many Gaussians as a buffer holds, pictures that fit into memory, and what ends some day.
_MOST = {"gaussians": 11_000_000, "side": 16_384, "repeats": 100_000, "seeds": 1000, "points": 1000}


@dataclass
class Bench:
    """Time the stages of a render and of a training step: medians, in milliseconds. With --quality, train instead, and measure
    the PSNR of the held-out views against the time that training has taken until then.

    Examples:
      splat bench --data captures/fox --out benchmarks/rasterization.json
      splat bench --quality --data captures/fox --downscale 8 4 --steps 2000 --out quality.json --plot quality.svg
    """

    # Also time training steps on this capture, with 10,000 Gaussians from random points. With --quality: train on these
    # captures; the embedded demo scene if there is none. NeRF-synthetic's keep their size and split.
    data: tuple[Path, ...] = ()
    # Write the figures here, as JSON.
    out: Path | None = None
    # Gaussians and image side of the random scene.
    gaussians: int = 100_000
    side: int = 512
    # Repetitions; the median is reported.
    repeats: int = 11
    # Train, and measure PSNR over time: by the clock and by processors, each run in a process of its own with all its set-up,
    # without the time to evaluate.
    quality: bool = False
    # With --quality: divide the photographs' sides by these, one run each.
    downscale: tuple[float, ...] = (8.0,)
    # With --quality: steps of a run.
    steps: int = 1000
    # With --quality: Gaussians at the end; 0 is what `splat train` chooses.
    budget: int = 0
    # With --quality: runs that differ in everything random, of which means and spread are reported.
    seeds: int = 3
    # With --quality: how often a run is evaluated.
    points: int = 8
    # With --quality: draw the curves here, as SVG.
    plot: Path | None = None
    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Print a table for each benchmark."""
        if min(self.gaussians, self.side, self.repeats, self.seeds, self.points) < 1:
            raise SplatError("--gaussians, --side, --repeats, --seeds and --points must be at least 1")
        if not self.quality and (len(self.data) > 1 or self.plot):
            raise SplatError("several captures in --data, and --plot, need --quality")
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise SplatError(f"--{name} is {getattr(self, name)}; it must be at most {most:,}")
        for capture in self.data:
            require_capture(capture)
        if self.quality:
            self._config().validate()
        from splat_py.files import require_writable, write_json
        from splat_py.gpu.device import get_device
        from splat_py.splats import benchmark

        for path in (self.out, self.plot):
            if path is not None:
                require_writable(path)
        device = get_device(self.device)
        if self.quality:
            results = benchmark.header(device) | {"quality": self._quality()}
        else:
            results = benchmark.run(device, self.gaussians, self.side, self.repeats, self.data[0] if self.data else None)
            for name, figures in results["benchmarks"].items():
                table = Table("", "ms", title=name)
                for key, value in figures.items():
                    table.add_row(key.replace("_", " "), f"{value:.2f}")
                console.print(table)
        if self.out is not None:
            write_json(self.out, results)

    def _config(self) -> TrainConfig:
        return TrainConfig(steps=self.steps, budget=self.budget)

    def _quality(self) -> dict[str, Any]:
        """Train, print a table for each capture, and draw."""
        from splat_py.demo.scene import write_demo_scene
        from splat_py.splats import quality
        from splat_py.splats.quality_plot import draw

        results = {}
        with tempfile.TemporaryDirectory() as scratch:
            captures = list(quality.captures(self.data, self.downscale))
            captures = captures or list(quality.captures([write_demo_scene(Path(scratch) / "demo")], [1.0]))
            plans = [(name, quality.Plan(data, self._config(), self.points, self.device)) for name, data in captures]
            for name, found in quality.run(plans, self.seeds):
                results[name] = found
                table = Table("steps", "Gaussians", "s", "processor s", "PSNR, dB", "±", "SSIM", title=name)
                for row in found["mean"]:
                    figures = (f"{row['seconds']:.1f}", f"{row['processor_seconds']:.1f}", f"{row['psnr']:.2f}")
                    spread = f"{row['psnr_spread']:.2f}", f"{row['ssim']:.4f}"
                    table.add_row(f"{row['step']:,}", f"{row['gaussians']:,.0f}", *figures, *spread)
                console.print(table)
        if self.plot is not None:
            draw(self.plot, results)
        return results
