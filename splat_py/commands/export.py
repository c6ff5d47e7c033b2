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

    Or a page, one file that opens from disk in any browser with WebGPU, in which the kernels draw the scene and fit pictures:
    splat export runs/fox --playground fox.html
    """

    # Folder of the run; for a page also a .ply, and by default what `splat demo` has left in runs/demo.
    run_folder: Annotated[Positional[Path | None], arg(metavar="RUN")] = None
    # The file.
    out: Annotated[Positional[Path | None], arg(metavar="FILE.ply")] = None
    # Write this page and no PLY.
    playground: Annotated[Path | None, arg(metavar="PAGE.html")] = None

    def run(self) -> None:
        """Convert the checkpoint."""
        if self.playground is not None:
            from splat_py.pages.playground_export import export_playground

            if self.out is not None:
                raise SplatError(f"there are two files to write, {self.out} and {self.playground}; write one after the other")
            with console.status("making the page"):
                shown = export_playground(self.run_folder, self.playground)
            size = self.playground.stat().st_size / 1e6
            console.print(f"open {self.playground} in a browser with WebGPU: {len(shown):,} Gaussians, {size:.1f} MB")
            return
        if self.run_folder is None or self.out is None:
            raise SplatError("name a run's folder and the file to write: splat export RUN FILE.ply")
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
