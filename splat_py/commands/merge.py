"""`splat merge`: the trained cells of a partition as one scene."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from splat_py.commands.terminal import console, print_error
from splat_py.scene.formats.endings import require_ending


@dataclass
class Merge:
    """Put the cells of `splat partition` together, once each is trained in its folder `run`.

    Of each cell those Gaussians stay that lie within it, without the margins that it was trained with; outer cells do not end.
    Scenes that are no cells are merged by `splat edit`.

    Example: splat merge runs/town --out town.ply
    """

    # The folder that `splat partition` made; or those of its cells, wherever they are now.
    cells: Annotated[Positional[tuple[Path, ...]], arg(metavar="FOLDER [FOLDER ...]")]
    # The scene to write; its ending says the format, as for `splat edit`.
    out: Path

    def run(self) -> None:
        """Merge, write, and say what is left of each cell."""
        require_ending(self.out)
        from splat_py.splats.cell_merging import merge_cells

        with console.status("merging"):
            merged = merge_cells(self.cells)
            losses = merged.gaussians.save(self.out)
        for name, (kept, count) in merged.counts.items():
            console.print(f"{name}: {kept:,} of {count:,} Gaussians")
        for loss in losses:
            print_error(f"{self.out} does not hold {loss}")
        console.print(f"{len(merged.gaussians):,} Gaussians are in {self.out}", soft_wrap=True)
