"""Cells of a partition that were trained one by one, put together: of each what lies in its own part of space."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from splat_py.errors import SplatError
from splat_py.scene.cells import RUN, Cell, cell_folders, cell_name, read_cell
from splat_py.scene.editing import merge, select
from splat_py.scene.gaussians import Gaussians
from splat_py.splats.run_folder import RunFolder


@dataclass(frozen=True)
class Merged:
    """What came of it.

    Attributes:
        counts: of each cell by name how many Gaussians it keeps, and of how many.
    """

    gaussians: Gaussians
    counts: dict[str, tuple[int, int]]


def merge_cells(folders: Sequence[Path]) -> Merged:
    """The scene of all cells of a partition. Each keeps the Gaussians whose means are in its part of space, without the margin
    that it was trained with; the outer parts do not end.

    Args:
        folders: of a partition, or of its cells.

    Raises:
        SplatError: cells are missing, were not trained, are of several partitions, or were trained in ways that do not go
            together.
    """
    cells = _whole_partition(folders)
    scenes, counts = [], {}
    degrees: dict[int, str] = {}
    for folder, cell in cells:
        gaussians = _trained(folder)
        name = cell_name(cell.place)
        degrees.setdefault(gaussians.sh_degree, name)
        if len(degrees) > 1:
            (lower, one), (higher, other) = sorted(degrees.items())
            raise SplatError(
                f"{one} has harmonics of degree {lower} and {other} of degree {higher}; train all cells with "
                "the same --sh-degree"
            )
        inside = cell.grid.inside(cell.place, gaussians.means.detach().cpu().double().numpy())
        scenes.append(select(gaussians, inside))
        counts[name] = int(inside.sum()), len(gaussians)
    return Merged(merge(scenes), counts)


def _whole_partition(folders: Sequence[Path]) -> list[tuple[Path, Cell]]:
    """The cells in the grid's order."""
    found: dict[tuple[int, int], tuple[Path, Cell]] = {}
    first: tuple[Path, Cell] | None = None
    for root in folders:
        inside = cell_folders(root)
        if not inside:
            raise SplatError(f"{root} holds no cell of a partition; name the --out of `splat partition`")
        for folder in inside:
            cell = read_cell(folder)
            first = first or (folder, cell)
            if (cell.dataset, cell.grid) != (first[1].dataset, first[1].grid):
                raise SplatError(f"{first[0]} and {folder} are cells of different partitions; merge those of one")
            if cell.place in found:
                raise SplatError(f"{found[cell.place][0]} and {folder} are the same cell; name it once")
            found[cell.place] = folder, cell
    if first is None:
        raise SplatError("there is no cell to merge; name the --out of `splat partition`")
    missing = [place for place in first[1].grid.places if place not in found]
    if missing:
        names = ", ".join(map(cell_name, missing))
        raise SplatError(f"{first[0].parent} lacks {names} of its partition; put all cells beside each other, or name them all")
    return [found[place] for place in first[1].grid.places]


def _trained(folder: Path) -> Gaussians:
    run = RunFolder(folder / RUN)
    if not run.scene.exists():
        out = run.root
        command = shlex.join(["splat", "train", str(folder), "--out", str(out)])
        going_on = " --resume" if run.record_file.exists() else ""
        raise SplatError(f"{folder} was not trained{' to its end' if going_on else ''}; run `{command}{going_on}`")
    if run.record().config.environment:
        raise SplatError(f"{folder} was trained with --environment, and each cell would have its own; train without")
    return run.gaussians()
