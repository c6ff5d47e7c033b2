"""Cells that were trained one by one are one scene once they are merged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py.demo.two_rooms import write_two_rooms
from splat_py.errors import SplatError
from splat_py.fit.run_record import RunRecord
from splat_py.scene.cells import RUN, cell_folders, read_cell, write_cells
from splat_py.scene.dataset import load_dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.options import DataOptions
from splat_py.scene.partition import divide
from splat_py.splats.cell_merging import merge_cells
from splat_py.splats.config import TrainConfig
from splat_py.splats.evaluation import evaluate
from splat_py.splats.run import train
from splat_py.splats.run_folder import RunFolder
from tests.formats.scenes import random_gaussians


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_rooms(tmp_path_factory.mktemp("rooms") / "data", views=24, size=32)


@pytest.fixture
def cells(rooms: Path, tmp_path: Path) -> Path:
    """Not trained."""
    dataset = load_dataset(rooms, undistort=False)
    write_cells(dataset, *divide(dataset, 2, 1, 0.2), tmp_path / "cells")
    return tmp_path / "cells"


def _pretend(folder: Path, gaussians: Gaussians, environment: bool = False) -> None:
    """Leave what training leaves."""
    run = RunFolder(folder / RUN)
    run.root.mkdir()
    run.describe(RunRecord(DataOptions(folder), TrainConfig(steps=1, environment=environment)))
    gaussians.save_ply(run.scene)


def test_two_rooms_are_as_good_in_two_cells(rooms: Path, cells: Path, tmp_path: Path) -> None:
    dataset = load_dataset(rooms, undistort=False)
    config = TrainConfig(steps=100, sh_degree=0, coarse_stop=0, densify_every=1000)
    train(DataOptions(rooms), config, tmp_path / "whole")
    for folder in cell_folders(cells):
        train(DataOptions(folder), config, folder / RUN)
    merged = merge_cells([cells])
    whole = evaluate(RunFolder(tmp_path / "whole").gaussians(), dataset)
    parts = evaluate(merged.gaussians, dataset)
    alone = [evaluate(RunFolder(folder / RUN).gaussians(), dataset) for folder in cell_folders(cells)]
    assert all(0 < kept < count for kept, count in merged.counts.values())
    assert len(merged.gaussians) == sum(kept for kept, _ in merged.counts.values())
    assert parts.psnr > whole.psnr - 0.5, "no photograph suffers from the seam"
    # Two photographs were held out in one room and one in the other.
    assert parts.psnr > alone[0].psnr + 1 and parts.psnr > alone[1].psnr + 5


def test_of_each_cell_stays_what_is_inside(cells: Path) -> None:
    for i, folder in enumerate(cell_folders(cells)):
        means = 3 * torch.randn((200, 3), generator=torch.manual_seed(i))
        _pretend(folder, replace(Gaussians.of_arrays(random_gaussians(200)), means=means))
    merged = merge_cells([cells])
    edge = read_cell(cells / "cell-0-0").columns[0]
    kept, _ = merged.counts["cell-0-0"]
    along = merged.gaussians.means.double().numpy() @ np.array(read_cell(cells / "cell-0-0").axes[0])
    assert (along[:kept] < edge).all() and (along[kept:] >= edge).all() and 50 < kept < 150
    # Cells may have come from several machines.
    again = merge_cells([cells / "cell-1-0", cells / "cell-0-0"])
    torch.testing.assert_close(again.gaussians.means, merged.gaussians.means)


def test_what_is_no_whole_partition_is_refused(cells: Path, rooms: Path, tmp_path: Path) -> None:
    left, right = cell_folders(cells)
    with pytest.raises(SplatError, match=r"cell-0-0 was not trained; run `splat train \S+cell-0-0 --out \S+cell-0-0/run`"):
        merge_cells([cells])
    scene = Gaussians.of_arrays(random_gaussians(50))
    _pretend(left, scene)
    (right / RUN).mkdir()
    shutil.copy(left / RUN / "run.json", right / RUN / "run.json")
    with pytest.raises(SplatError, match=r"cell-1-0 was not trained to its end; run `splat train .* --resume`"):
        merge_cells([cells])
    with pytest.raises(SplatError, match=r"lacks cell-1-0 of its partition; put all cells beside each other"):
        merge_cells([left])
    with pytest.raises(SplatError, match="are the same cell; name it once"):
        merge_cells([cells, left])
    with pytest.raises(SplatError, match="holds no cell of a partition"):
        merge_cells([rooms])
    dataset = load_dataset(rooms, undistort=False)
    other = tmp_path / "other"
    write_cells(dataset, *divide(dataset, 2, 2, 0.2), other)
    with pytest.raises(SplatError, match="are cells of different partitions; merge those of one"):
        merge_cells([left, other / "cell-1-0"])


def test_cells_that_were_trained_in_other_ways_are_refused(cells: Path) -> None:
    left, right = cell_folders(cells)
    scene = Gaussians.of_arrays(random_gaussians(50))
    _pretend(left, scene)
    _pretend(right, replace(scene, sh=scene.sh[:, :1].contiguous()))
    with pytest.raises(SplatError, match=r"cell-1-0 has harmonics of degree 0 and cell-0-0 of degree \d; train all cells with"):
        merge_cells([cells])
    shutil.rmtree(right / RUN)
    _pretend(right, scene, environment=True)
    with pytest.raises(SplatError, match="cell-1-0 was trained with --environment"):
        merge_cells([cells])
    shutil.rmtree(right / RUN)
    _pretend(right, replace(scene, antialiased=True))
    with pytest.raises(SplatError, match="some of the scenes were trained antialiased and others not"):
        merge_cells([cells])
