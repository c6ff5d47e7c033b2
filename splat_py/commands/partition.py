"""`splat partition`: a capture in cells that are trained one by one."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from splat_py.commands.terminal import console
from splat_py.errors import SplatError
from splat_py.scene.missing_poses import require_capture


@dataclass
class Partition:
    """Divide a capture whose scene is too large for one device into overlapping cells.

    Each cell becomes a folder that `splat train` takes as it is. It names the photographs where they are, and has those that
    were taken in the cell or see enough of it. Cells are trained one after the other, or on several machines; `splat merge`
    puts them together, each without its margins.

    Example: splat partition captures/town --cells 3x2 --out runs/town
    """

    # Folder of the capture, as for `splat train`. It needs points.
    data: Annotated[Positional[Path], arg(metavar="DATA")]
    # Folder to make, with one for each cell.
    out: Path
    # Along the direction in which cameras are spread most, and across.
    cells: str = "2x2"
    # By what share of its size a cell is widened at each side for training.
    overlap: float = 0.2
    # Hold out every so many photographs by name of the whole, from the first; 0 holds out none.
    test_every: int = 8

    def run(self) -> None:
        """Divide, and print what to do next."""
        columns, rows = self._shape()
        require_capture(self.data)
        from splat_py.scene.cells import RUN, cell_name, write_cells
        from splat_py.scene.dataset import load_dataset
        from splat_py.scene.partition import divide

        with console.status("dividing"):
            dataset = load_dataset(self.data, test_every=self.test_every, memory_limit_bytes=0, undistort=False)
            grid, cells = divide(dataset, columns, rows, self.overlap)
            write_cells(dataset, grid, cells, self.out)
        console.print(f"{len(dataset.train)} photographs and {len(dataset.points[0]):,} points in {len(cells)} cells:")  # type: ignore[index]
        for cell in cells:
            console.print(f"{cell_name(cell.place)}: {len(cell.train)} photographs, {len(cell.points):,} points")
        console.print("train each, with the same options, and put them together:")
        none = [] if dataset.test else ["--test-every", "0"]
        for cell in cells:
            folder = self.out / cell_name(cell.place)
            _print_command("train", str(folder), "--out", str(folder / RUN), *none)
        merged = self.out / "scene.ply"
        _print_command("merge", str(self.out), "--out", str(merged))
        if dataset.test:
            _print_command("eval", str(merged), "--data", str(self.data))

    def _shape(self) -> tuple[int, int]:
        from splat_py.scene.partition import MOST_CELLS

        match = re.fullmatch(r"([0-9]{1,2})[x×]([0-9]{1,2})", self.cells)
        columns, rows = map(int, match.groups()) if match else (0, 0)
        if not 2 <= columns * rows <= MOST_CELLS:
            raise SplatError(f"cells is {self.cells[:32]!r}; give columns and rows, such as 2x2, {MOST_CELLS} cells at most")
        if not 0 <= self.overlap <= 1:
            raise SplatError(f"overlap is {self.overlap}; it must be from 0 to 1, a share of a cell's size")
        return columns, rows


def _print_command(*words: str) -> None:
    console.print(f"  splat {shlex.join(words)}", soft_wrap=True)
