"""`splat bench`: how long the stages of a render and of a training step take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from splat_py.commands.terminal import console
from splat_py.errors import SplatError


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
        from splat_py.files import write_json
        from splat_py.gpu.device import get_device
        from splat_py.splats import benchmark

        device = get_device(self.device)
        results = benchmark.run(device, self.gaussians, self.side, self.repeats, self.data)
        for name, figures in results["benchmarks"].items():
            table = Table("", "ms", title=name)
            for key, value in figures.items():
                table.add_row(key.replace("_", " "), f"{value:.2f}")
            console.print(table)
        if self.out is not None:
            write_json(self.out, results)
