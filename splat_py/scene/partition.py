"""Partition of a large scene into cells that are trained one by one and merged: the grid, each cell's data and its folder.

The method is VastGaussian's (Lin et al. 2024): cells divide the ground plane into equal shares of cameras and points, and are
widened by a share of their size. A cell's photographs are those taken inside and those that see enough of its points. Its
initial points are those inside and those that its photographs see, since training also needs the background.

cell-0-0/transforms_train.json, transforms_test.json   cameras and paths of their photographs, relative to the folder
cell-0-0/points.ply                                    initial points
cell-0-0/cell.json                                     the part of space that the merged scene takes from this cell
cell-0-0/run/                                          the training run that `splat merge` reads
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import ConvexHull, QhullError

from splat_py.base.errors import SplatError
from splat_py.base.fields import check_fields, check_number, dataclass_of
from splat_py.base.files import atomic_folder, is_file, is_vacant, parse_json, refusing, regular, write_json
from splat_py.scene.camera import MOST_DISTANCE, Camera, mean_up
from splat_py.scene.colmap import read_observations
from splat_py.scene.dataset import Dataset, fingerprint
from splat_py.scene.formats.ply import write_points
from splat_py.scene.transforms import write_transforms

Floats = NDArray[np.float64]

MOST_CELLS = 64
# A photograph belongs to a cell if this share of its points is inside: every further one adds Gaussians outside the cell.
_SEEN = 0.4
# An outside point belongs to a cell if this many of its photographs see it: visibility in a single one may be wrong.
_TIMES = 2
# Radius of the flipping sphere in `unhidden`, as a multiple of the largest distance; a larger sphere hides fewer points.
_RADIUS = 10.0
# With fewer points than the first, none counts as hidden; with more than the second, only a subset is tested.
_FEWEST, _MOST_POINTS = 16, 20_000
# The most by which a part may differ from an equal share; and the width, as a share of the scene, in which a cut avoids points.
_UNEVEN, _NEAR = 0.2, 0.03
# The share of positions at either end that is ignored in a scene's size.
_OUTLIERS = 0.01
CELL_FILE, RUN = "cell.json", "run"
_VERSION, _MOST_BYTES = 1, 1 << 16


@dataclass(frozen=True)
class Grid:
    """A division of space into columns along one axis and of each column into rows along another. Outer cells are unbounded."""

    # Two perpendicular unit vectors in the ground plane, world frame.
    axes: tuple[tuple[float, float, float], tuple[float, float, float]]
    columns: tuple[float, ...]  # borders between columns along the first axis, ascending
    rows: tuple[tuple[float, ...], ...]  # for each column, borders between its rows along the second axis

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.columns) + 1, len(self.rows[0]) + 1

    @property
    def places(self) -> list[tuple[int, int]]:
        columns, rows = self.shape
        return [(column, row) for column in range(columns) for row in range(rows)]

    def bounds(self, place: tuple[int, int]) -> tuple[Floats, Floats]:
        """A cell's lowest and highest coordinates [2] along the axes, infinite for outer cells."""
        column, row = place
        edges = ((-np.inf, *part, np.inf) for part in (self.columns, self.rows[column]))
        (left, right), (near, far) = (list(each)[i : i + 2] for each, i in zip(edges, (column, row), strict=True))
        return np.array([left, near]), np.array([right, far])

    def on_plane(self, positions: ArrayLike) -> Floats:
        """Project positions in the world [N, 3] onto the axes, [N, 2]."""
        return np.asarray(positions, np.float64) @ np.array(self.axes).T

    def inside(self, place: tuple[int, int], positions: ArrayLike) -> NDArray[np.bool_]:
        """True for positions [N, 3] in a cell, bool [N]. Each position is in exactly one cell."""
        low, high = self.bounds(place)
        flat = self.on_plane(positions)
        return np.asarray(((flat >= low) & (flat < high)).all(1))


@dataclass(frozen=True, eq=False)
class CellData:
    """Indices of the dataset's views and points for one cell."""

    place: tuple[int, int]
    train: list[int]
    test: list[int]
    points: NDArray[np.intp]


def divide(dataset: Dataset, columns: int, rows: int, overlap: float) -> tuple[Grid, list[CellData]]:
    """Return a grid that balances cameras and points, and the data of each cell, widened at each side by the share `overlap`
    of its size."""
    if dataset.points is None:
        raise SplatError(f"{dataset.root} has no points to divide into cells; find some with `splat capture`")
    points = np.asarray(dataset.points[0], np.float64)
    cameras = [view.camera for view in dataset.views]
    positions = np.stack([camera.position for camera in cameras])
    grid = balanced_grid([cameras[i] for i in dataset.train], points, columns, rows)
    seen = visible_points(dataset, points)
    flat = grid.on_plane(np.concatenate([positions, points]))
    ends = np.quantile(flat, (_OUTLIERS, 1 - _OUTLIERS), axis=0)
    cells = []
    for place in grid.places:
        low, high = grid.bounds(place)
        margin = overlap * np.maximum(np.minimum(high, ends[1]) - np.maximum(low, ends[0]), 0)
        within = ((flat >= low - margin) & (flat < high + margin)).all(1)
        taken, held = within[: len(cameras)], within[len(cameras) :]
        core = grid.inside(place, points)
        taken |= [len(rows_seen) > 0 and core[rows_seen].mean() >= _SEEN for rows_seen in seen]
        train, test = ([i for i in part if taken[i]] for part in (dataset.train, dataset.test))
        if not train:
            shape = f"{columns}x{rows}"
            raise SplatError(f"cell {place[0]}-{place[1]} of {shape} has no photograph to train on; use fewer --cells")
        times = np.bincount(np.concatenate([seen[i] for i in train]), minlength=len(points))
        cells.append(CellData(place, train, test, np.flatnonzero(held | (times >= _TIMES))))
    return grid, cells


def balanced_grid(cameras: Sequence[Camera], points: Floats, columns: int, rows: int) -> Grid:
    """A grid with columns along the direction of the cameras' largest spread and rows across it. Each cell has an equal share
    of cameras and points together."""
    positions = np.stack([camera.position for camera in cameras])
    up = mean_up(cameras)
    level = positions - positions.mean(0)
    level -= np.outer(level @ up, up)
    _, spread, directions = np.linalg.svd(level, full_matrices=False)
    first = directions[0] if spread[0] > 1e-9 else np.roll(up, 1)
    first = first - (first @ up) * up
    first *= np.sign(first[np.abs(first).argmax()]) / np.linalg.norm(first)
    axes = np.stack([first, np.cross(up, first)])
    flat = np.concatenate([positions, points]) @ axes.T
    weights = np.concatenate([np.full(len(part), 0.5 / max(len(part), 1)) for part in (positions, points)])
    edges = _shares(flat[:, 0], weights, columns)
    column_of = np.searchsorted(edges, flat[:, 0], side="right")
    inner = (_shares(flat[column_of == i, 1], weights[column_of == i], rows) for i in range(columns))
    u, v = (tuple(map(float, axis)) for axis in axes)
    return Grid((u, v), edges, tuple(inner))  # type: ignore[arg-type]


def _shares(values: Floats, weights: Floats, parts: int) -> tuple[float, ...]:
    """Cut positions that give each part about the same weight. A cut lies between two values with few others nearby: a cut
    along a wall would put its two sides into different cells, which train on different photographs."""
    order = np.argsort(values, kind="stable")
    values, sums = values[order], np.concatenate([[0.0], np.cumsum(weights[order])]) / weights.sum()
    cuts = 0.5 * (values[1:] + values[:-1])
    low, high = np.quantile(values, (_OUTLIERS, 1 - _OUTLIERS))
    near = _NEAR * (high - low)
    crowd = sums[np.searchsorted(values, cuts + near)] - sums[np.searchsorted(values, cuts - near)]
    edges, too_few = [], SplatError(f"cameras and points are in too few places to divide by {parts}; use fewer --cells")
    for share in np.arange(1, parts) / parts:
        off = np.abs(sums[1:-1] - share) * parts
        if not (len(off) and off.min() < _UNEVEN):
            raise too_few
        edges.append(float(cuts[np.argmin(np.where(off < _UNEVEN, crowd + 1e-3 * off, np.inf))]))
    if (np.diff([low, *edges, high]) <= 0).any():
        raise too_few
    return tuple(edges)


def visible_points(dataset: Dataset, points: Floats) -> list[NDArray[np.intp]]:
    """Indices of the points [P, 3] that each view sees: those that COLMAP matched in it, otherwise those that project into it
    and that no nearer points hide."""
    observed = {} if dataset.model is None else read_observations(dataset.model)
    # Coordinates are the only link between the model's points and these.
    numbers = {row.tobytes(): i for i, row in enumerate(points.astype(np.float32))} if observed else {}
    step = -(-len(points) // _MOST_POINTS)
    seen = []
    for view in dataset.views:
        if view.name in observed:
            keys = (row.tobytes() for row in observed[view.name].astype(np.float32))
            seen.append(np.array(sorted({numbers[key] for key in keys if key in numbers}), np.intp))
        else:
            seen.append(step * unhidden(view.camera, points[::step]))
    return seen


def unhidden(camera: Camera, points: Floats) -> NDArray[np.intp]:
    """Indices of the points [P, 3] in a camera's picture that others do not hide: the points on the convex hull after all are
    flipped over a sphere around the camera (Katz, Tal and Basri 2007). Lens distortion is ignored."""
    x, y, depth = camera.K @ (camera.viewmat[:3, :3] @ points.T + camera.viewmat[:3, 3:])
    rows = np.flatnonzero((depth > 1e-9) & (x >= 0) & (x < camera.width * depth) & (y >= 0) & (y < camera.height * depth))
    if len(rows) < _FEWEST:
        return rows
    away = points[rows] - camera.position
    distances = np.linalg.norm(away, axis=1)[:, None]
    flipped = away * (2 * _RADIUS * distances.max() / distances - 1)
    try:
        hull = ConvexHull(np.concatenate([flipped, np.zeros((1, 3))]), "QJ").vertices
    except QhullError:
        return rows
    return np.sort(rows[hull[hull < len(rows)]])


@dataclass(frozen=True)
class Cell(Grid):
    """The contents of a cell.json: the grid, which all cells of a partition share, and this cell's place in it."""

    version: int
    dataset: str  # fingerprint of the dataset that was divided
    place: tuple[int, int]  # column and row

    @property
    def grid(self) -> Grid:
        return Grid(self.axes, self.columns, self.rows)


def cell_name(place: tuple[int, int]) -> str:
    return f"cell-{place[0]}-{place[1]}"


def cell_folders(root: Path) -> list[Path]:
    """The cell folders in a partition's folder, by name; or the folder itself if it is a cell's."""
    if is_file(root / CELL_FILE):
        return [root]
    return sorted(path.parent for path in root.glob(f"cell-*/{CELL_FILE}"))


def write_cells(dataset: Dataset, grid: Grid, cells: Sequence[CellData], out: Path) -> None:
    """Write a folder with a subfolder for each cell, atomically. Photographs are not copied."""
    if not is_vacant(out):
        raise SplatError(f"{out} is not empty; choose another --out")
    assert dataset.points is not None
    xyz, rgb = dataset.points
    of_dataset = fingerprint(dataset)
    with atomic_folder(out) as temporary:  # beside `out`, so relative paths to photographs hold
        for data in cells:
            folder = temporary / cell_name(data.place)
            folder.mkdir()
            write_points(folder / "points.ply", xyz[data.points], rgb[data.points])
            for name, rows in (("train", data.train), ("test", data.test)):
                # Without a test split in the dataset, each run may choose its own.
                if rows or dataset.test:
                    points = "points.ply" if name == "train" else None
                    write_transforms(folder / f"transforms_{name}.json", [dataset.views[i] for i in rows], points)
            write_json(folder / CELL_FILE, asdict(Cell(**vars(grid), version=_VERSION, dataset=of_dataset, place=data.place)))


def read_cell(folder: Path) -> Cell:
    path = folder / CELL_FILE
    if not is_file(path):
        raise SplatError(f"{folder} is not a cell of a partition: it has no {CELL_FILE}; make cells with `splat partition`")
    with refusing(f"{path} is damaged", "divide the capture again with `splat partition`", OSError, ValueError, TypeError):
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        cell = dataclass_of(Cell, parse_json(regular(path).read_text(encoding="utf-8")))
        check_fields(cell, {"version": (_VERSION, _VERSION)})
        if not cell.rows or len(cell.rows) != len(cell.columns) + 1 or len(set(map(len, cell.rows))) != 1:
            raise ValueError("its columns and rows do not match")
        columns, rows = cell.shape
        if columns * rows > MOST_CELLS or not (0 <= cell.place[0] < columns and 0 <= cell.place[1] < rows):
            raise ValueError(f"its place is not one of {columns}x{rows} cells")
        for edges in (cell.columns, *cell.rows):
            for edge in edges:
                check_number("an edge", edge, float, (-MOST_DISTANCE, MOST_DISTANCE))
            if (np.diff(edges) <= 0).any():
                raise ValueError("its edges do not ascend")
        axes = np.array(cell.axes)
        if np.abs(axes).max() > 2 or np.abs(axes @ axes.T - np.eye(2)).max() > 1e-6:
            raise ValueError("its axes are not at right angles")
        if len(cell.dataset) != 64 or set(cell.dataset) - set("0123456789abcdef"):
            raise ValueError("its dataset is not a fingerprint")
    return cell
