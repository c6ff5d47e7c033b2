"""The folders of a partition's cells: each is a capture that names the photographs where they are, and knows its place.

cell-0-0/transforms_train.json, transforms_test.json   cameras, and where their photographs are, relative to the folder
cell-0-0/points.ply                                    points to start from
cell-0-0/cell.json                                     which part of space the cell answers for
cell-0-0/run/                                          where `splat merge` looks for what was trained
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from splat_py.errors import SplatError
from splat_py.fields import Range, check_fields, check_number, dataclass_of
from splat_py.files import atomic_folder, is_file, is_vacant, parse_json, reason, write_json
from splat_py.scene.camera import MOST_DISTANCE
from splat_py.scene.dataset import Dataset
from splat_py.scene.options import fingerprint
from splat_py.scene.partition import MOST_CELLS, CellData, Grid
from splat_py.scene.ply import write_points
from splat_py.scene.transforms_writing import write_transforms

CELL_FILE, RUN = "cell.json", "run"
_VERSION = 1
_MOST_BYTES = 1 << 16
_COORDINATE: Range = (-MOST_DISTANCE, MOST_DISTANCE)


@dataclass(frozen=True)
class Cell:
    """What a cell.json says.

    Attributes:
        version: of the file.
        dataset: fingerprint of what was divided.
        place: column and row.
        axes, columns, rows: of the grid, the same in all cells of a partition.
    """

    version: int
    dataset: str
    place: tuple[int, int]
    axes: tuple[tuple[float, float, float], tuple[float, float, float]]
    columns: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]

    @property
    def grid(self) -> Grid:
        """Of all cells."""
        return Grid(self.axes, self.columns, self.rows)


def cell_name(place: tuple[int, int]) -> str:
    """Of a cell's folder."""
    return f"cell-{place[0]}-{place[1]}"


def cell_folders(root: Path) -> list[Path]:
    """The folders of cells in a partition's, by name; or the folder itself if it is a cell's."""
    if is_file(root / CELL_FILE):
        return [root]
    return sorted(path.parent for path in root.glob(f"cell-*/{CELL_FILE}"))


def write_cells(dataset: Dataset, grid: Grid, cells: Sequence[CellData], out: Path) -> None:
    """Make a folder with one for each cell, whole or not at all. Photographs are not copied.

    Raises:
        SplatError: `out` holds something, or cannot be written.
    """
    if not is_vacant(out):
        raise SplatError(f"{out} holds something already; choose another --out")
    of_dataset = fingerprint(dataset)
    with atomic_folder(out) as temporary:  # beside it, so photographs are as far away
        for data in cells:
            cell = Cell(_VERSION, of_dataset, data.place, **vars(grid))
            _write_cell(dataset, data, cell, temporary / cell_name(data.place))


def _write_cell(dataset: Dataset, data: CellData, cell: Cell, folder: Path) -> None:
    assert dataset.points is not None
    folder.mkdir()
    xyz, rgb = dataset.points
    write_points(folder / "points.ply", xyz[data.points], rgb[data.points])
    for name, views in (("train", data.train), ("test", data.test)):
        # Where nothing is held out of the whole, a run may hold out what it likes.
        if views or dataset.test:
            write_transforms(folder / f"transforms_{name}.json", dataset, views, "points.ply" if name == "train" else None)
    write_json(folder / CELL_FILE, asdict(cell))


def read_cell(folder: Path) -> Cell:
    """What a cell's cell.json says.

    Raises:
        SplatError: it is missing, damaged or of another program.
    """
    path = folder / CELL_FILE
    if not is_file(path):
        raise SplatError(f"{folder} is no cell of a partition: it has no {CELL_FILE}; make cells with `splat partition`")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        cell = dataclass_of(Cell, parse_json(path.read_text(encoding="utf-8")))
        _check(cell)
    except (OSError, ValueError, TypeError) as error:
        raise SplatError(f"{path} is damaged; divide the capture again with `splat partition` ({reason(error)})") from error
    return cell


def _check(cell: Cell) -> None:
    check_fields(cell, {"version": (_VERSION, _VERSION)})
    grid = cell.grid
    if not grid.rows or len(grid.rows) != len(grid.columns) + 1 or len(set(map(len, grid.rows))) != 1:
        raise ValueError("its columns and rows do not belong together")
    columns, rows = grid.shape
    if columns * rows > MOST_CELLS or not (0 <= cell.place[0] < columns and 0 <= cell.place[1] < rows):
        raise ValueError(f"its place is not one of {columns}x{rows} cells")
    for edges in (grid.columns, *grid.rows):
        for edge in edges:
            check_number("an edge", edge, float, _COORDINATE)
        if (np.diff(edges) <= 0).any():
            raise ValueError("its edges do not ascend")
    axes = np.array(grid.axes)
    if np.abs(axes).max() > 2 or np.abs(axes @ axes.T - np.eye(2)).max() > 1e-6:
        raise ValueError("its axes are not at right angles")
    if len(cell.dataset) != 64 or set(cell.dataset) - set("0123456789abcdef"):
        raise ValueError("its dataset is no fingerprint")
