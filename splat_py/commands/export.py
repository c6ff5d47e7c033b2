"""`splat export`: a run's Gaussians for other viewers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from splat_py.commands.terminal import console
from splat_py.errors import SplatError


@dataclass
class Export:
    """Write a run's Gaussians, as they are in its last checkpoint, to a PLY that other viewers read.

    Example: splat export runs/fox fox.ply
    """

    # Folder of the run.
    run_folder: Annotated[Positional[Path], arg(metavar="RUN")]
    # The file.
    out: Annotated[Positional[Path], arg(metavar="FILE.ply")]

    def run(self) -> None:
        """Convert the checkpoint."""
        if self.out.suffix.lower() != ".ply":
            raise SplatError(f"{self.out} does not end in .ply, the one format that is written")
        if not self.run_folder.is_dir():
            raise SplatError(f"{self.run_folder} is not a folder; name the folder of a training run")
        from splat_py.splats.checkpoint import Checkpoint
        from splat_py.splats.run_folder import RunFolder

        checkpoint = Checkpoint.load(RunFolder(self.run_folder).checkpoint)
        gaussians = checkpoint.gaussians()
        gaussians.save_ply(self.out)
        if gaussians.splat != "Gaussian":
            name = checkpoint.config.splat
            console.print(f"splats are of type {name}; other viewers know only Gaussians, and will draw these as such")
        if gaussians.features is not None:
            name = checkpoint.config.color
            console.print(f"colours are of type {name}; other viewers will show the same from all directions")
        console.print(f"{len(gaussians):,} Gaussians after {checkpoint.step:,} steps are in {self.out}")
