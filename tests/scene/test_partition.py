"""Each place of a divided scene belongs to one cell, and each cell is a capture of everything visible in it."""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.two_rooms import room_surfaces
from splat_py.demo.shapes import trace
from splat_py.scene import partition
from splat_py.scene.dataset import Dataset, load_dataset
from splat_py.scene.partition import CELL_FILE, Grid, cell_folders, divide, read_cell, unhidden, visible_points, write_cells
from tests.faults.forks import die_at, forked
from tests.refusals import refused

AXES = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))


@pytest.fixture(scope="module")
def dataset(rooms: Path) -> Dataset:
    return load_dataset(rooms, undistort=False)


@pytest.fixture(scope="module")
def cells(dataset: Dataset, rooms: Path) -> Path:
    out = rooms.parent / "parts"
    write_cells(dataset, *divide(dataset, 2, 1, 0.2), out)
    return out


def test_each_place_is_in_one_cell() -> None:
    grid = Grid(AXES, (-1.0, 2.0), ((0.0,), (0.5,), (-3.0,)))
    assert grid.shape == (3, 2) and len(grid.places) == 6
    means = np.random.default_rng(0).normal(0, 3, (5000, 3))
    means[:4] = [[-1, 0, 0], [2, 0.5, 1], [1e9, -1e9, 0], [-1.0, 0.0, 5]]
    inside = np.stack([grid.inside(place, means) for place in grid.places])
    np.testing.assert_array_equal(inside.sum(0), 1)
    assert (inside.sum(1) > 100).all()


@pytest.mark.parametrize(("columns", "rows"), [(2, 1), (2, 2), (3, 2)])
def test_cells_are_balanced(dataset: Dataset, columns: int, rows: int) -> None:
    grid, cells = divide(dataset, columns, rows, 0.1)
    assert grid.shape == (columns, rows) == (columns, len(cells) // columns)
    positions = np.stack([view.camera.position for view in dataset.views])
    parts = (positions, dataset.points[0])
    shares = [sum(0.5 * grid.inside(cell.place, part).mean() for part in parts) for cell in cells]
    np.testing.assert_allclose(shares, 1 / (columns * rows), atol=0.12)
    covered = set().union(*(cell.train for cell in cells)), set().union(*(cell.test for cell in cells))
    assert covered == (set(dataset.train), set(dataset.test))


def test_rooms_are_divided_beside_their_wall(dataset: Dataset) -> None:
    """The edge is not along the wall, where each side would belong to another cell and be seen through the other."""
    grid, cells = divide(dataset, 2, 1, 0.2)
    (edge,) = grid.columns
    assert 0.2 < abs(edge) < 0.9 and abs(grid.axes[0][0]) > 0.99 and abs(grid.axes[0][2]) < 0.02
    positions = np.stack([view.camera.position for view in dataset.views])
    seen = visible_points(dataset, np.asarray(dataset.points[0], float))
    for cell in cells:
        core, points = grid.inside(cell.place, positions), grid.inside(cell.place, dataset.points[0])
        own = {i for i in dataset.train if core[i]}
        assert own <= set(cell.train), "a cell has every photograph taken in it"
        # The other photographs see the cell, or were taken in its margin.
        along = np.abs(grid.on_plane(positions)[:, 0] - edge)
        assert all(points[seen[i]].mean() >= 0.4 for i in set(cell.train) - own if along[i] > 1)
        assert points.sum() < len(cell.points) < len(dataset.points[0]), "a cell has points seen beyond it, but not all points"
    # The wall belongs to the cell on its side of the edge.
    (with_wall,) = [cell for cell in cells if grid.inside(cell.place, np.zeros((1, 3)))[0]]
    assert len(with_wall.train) == max(len(cell.train) for cell in cells)


def test_points_behind_others_are_hidden(dataset: Dataset) -> None:
    points = np.asarray(dataset.points[0], float)  # type: ignore[index]
    right = wrong = visible = 0
    for view in dataset.views:
        away = points - view.camera.position
        distances = np.linalg.norm(away, axis=1)
        origins = np.broadcast_to(view.camera.position.astype(np.float32), away.shape)
        free, _ = trace(room_surfaces(), origins, (away / distances[:, None]).astype(np.float32))
        truth = distances < 1.03 * free + 0.03
        seen = unhidden(view.camera, points)
        right, wrong = right + truth[seen].sum(), wrong + (~truth[seen]).sum()
        pixels = view.camera.K @ (view.camera.viewmat[:3, :3] @ points.T + view.camera.viewmat[:3, 3:])
        within = (pixels[2] > 0) & (np.abs(pixels[:2] - 16 * pixels[2]) < 16 * pixels[2]).all(0)
        visible += (truth & within).sum()
    assert wrong < 0.1 * right and right > 0.6 * visible


def test_what_colmap_matched_is_what_is_seen(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.asarray(dataset.points[0], float)  # type: ignore[index]
    name = dataset.views[3].name
    matched = np.concatenate([points[[7, 2, 7]], [[9.0, 9, 9]]])
    monkeypatch.setattr(partition, "read_observations", lambda folder: {name: matched})
    seen = visible_points(replace(dataset, model=Path("sparse")), points)
    np.testing.assert_array_equal(seen[3], [2, 7])
    np.testing.assert_array_equal(seen[4], unhidden(dataset.views[4].camera, points))


@pytest.mark.skipif(sys.platform == "win32", reason="processes there cannot be forked")
def test_a_division_that_is_killed_leaves_all_cells_or_none(dataset: Dataset, rooms: Path) -> None:
    grid, parts = divide(dataset, 2, 1, 0.2)
    owners = [(partition, name) for name in ("write_points", "write_transforms", "write_json")] + [(os, "replace")]
    for i, (owner, name) in enumerate(owners):
        for late in range(2):
            out = rooms.parent / f"killed {i}.{late}"

            def work(owner: Any = owner, name: str = name, late: int = late, out: Path = out) -> None:
                die_at(owner, name, late)
                write_cells(dataset, grid, parts, out)

            assert os.WTERMSIG(os.waitpid(forked(work), 0)[1]) == signal.SIGKILL
            assert not out.exists()
            write_cells(dataset, grid, parts, out)
            assert [read_cell(folder).place for folder in cell_folders(out)] == [(0, 0), (1, 0)]


def test_a_cell_is_a_capture_of_the_same_photographs(
    dataset: Dataset, cells: Path, rooms: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = cell_folders(cells)
    assert [folder.name for folder in folders] == ["cell-0-0", "cell-1-0"]
    held_out = {dataset.views[i].path.resolve() for i in dataset.test}
    for folder in folders:
        cell = load_dataset(folder, undistort=False)
        assert cell.train and cell.test and not list(folder.rglob("*.png"))
        for i in range(len(cell)):
            (whole,) = [j for j, view in enumerate(dataset.views) if view.path.samefile(cell.views[i].path)]
            np.testing.assert_allclose(cell.views[i].camera.viewmat, dataset.views[whole].camera.viewmat, atol=1e-9)
            np.testing.assert_allclose(cell.views[i].camera.K, dataset.views[whole].camera.K)
            np.testing.assert_array_equal(cell.image(i), dataset.image(whole))
        assert {cell.views[i].path.resolve() for i in cell.test} <= held_out
        assert not {cell.views[i].path.resolve() for i in cell.train} & held_out
        monkeypatch.chdir(folder.parent)
        assert [v.name for v in load_dataset(folder.name).views] == [v.name for v in cell.views]
        assert read_cell(folder).dataset == read_cell(folders[0]).dataset


def test_what_cannot_be_divided_is_refused(dataset: Dataset, cells: Path) -> None:
    refused("has no points to divide into cells", divide, replace(dataset, points=None), 2, 2, 0.2)
    few = replace(dataset, train=dataset.train[:2], points=(dataset.points[0][:3], dataset.points[1][:3]))  # type: ignore[index]
    refused("use fewer --cells", divide, few, 8, 8, 0.0)
    before = sorted(cells.rglob("*"))
    refused("is not empty; choose another --out", write_cells, dataset, *divide(dataset, 2, 1, 0.2), cells)
    assert sorted(cells.rglob("*")) == before and not list(cells.parent.glob(".parts-*"))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("version", 2, "version is 2"),
        ("place", [0, 9], "its place is not one of 2x1 cells"),
        ("place", [-1, 0], "its place is not one of 2x1 cells"),
        ("columns", ["0"], "columns is '0'"),
        ("columns", [float("nan")], "it must be finite"),
        ("columns", [1e12], "an edge"),
        ("columns", [0.0, 1.0], "columns and rows do not match"),
        ("rows", [[1.0, 0.0], [0.0, 1.0]], "edges do not ascend"),
        ("rows", [[float(i) for i in range(40)]] * 2, "its place is not one of 2x41 cells"),
        ("rows", [], "columns and rows do not match"),
        ("axes", [[1, 0, 0], [1, 0, 0]], "axes are not at right angles"),
        ("axes", [[1e200, 0, 0], [0, 1, 0]], "axes are not at right angles"),
        ("dataset", "../../etc", "dataset is not a fingerprint"),
        ("unknown", 1, "there is no field 'unknown'"),
    ],
)
def test_a_damaged_cell_is_refused(cells: Path, tmp_path: Path, field: str, value: Any, why: str) -> None:
    content = json.loads((cells / "cell-0-0" / CELL_FILE).read_text())
    (tmp_path / CELL_FILE).write_text(json.dumps({**content, field: value}))
    refused(rf"cell\.json is damaged \(.*{why}.*\); divide the capture again", read_cell, tmp_path)


def test_a_cell_file_of_any_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    refused(r"it has no cell\.json", read_cell, tmp_path)
    with (tmp_path / CELL_FILE).open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    refused("it is larger than 65536 bytes", read_cell, tmp_path)
