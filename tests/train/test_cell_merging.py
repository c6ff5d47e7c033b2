"""Cells trained one by one and merged are one scene."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py.fit.run_folder import RunRecord
from splat_py.scene.data_options import DataOptions
from splat_py.scene.dataset import load_dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.partition import RUN, cell_folders, divide, read_cell, write_cells
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import evaluate
from splat_py.train.run import RunFolder, merge_cells, train
from tests.formats.scenes import random_gaussians
from tests.refusals import refused


@pytest.fixture
def cells(rooms: Path, tmp_path: Path) -> Path:
    dataset = load_dataset(rooms, undistort=False)
    write_cells(dataset, *divide(dataset, 2, 1, 0.2), tmp_path / "cells")
    return tmp_path / "cells"


def _pretend(folder: Path, gaussians: Gaussians, environment: bool = False) -> None:
    run = RunFolder(folder / RUN)
    run.root.mkdir()
    RunRecord(DataOptions(folder), TrainConfig(steps=1, environment=environment)).save(run.record_file)
    gaussians.save_ply(run.scene)


def test_two_rooms_are_as_good_in_two_cells(rooms: Path, cells: Path, tmp_path: Path) -> None:
    dataset = load_dataset(rooms, undistort=False)
    config = TrainConfig(steps=100, sh_degree=0, coarse_stop=0, densify_every=1000)
    train(DataOptions(rooms), config, tmp_path / "whole")
    for folder in cell_folders(cells):
        train(DataOptions(folder), config, folder / RUN)
    merged, counts = merge_cells([cells])
    whole = evaluate(RunFolder(tmp_path / "whole").gaussians(), dataset)
    parts = evaluate(merged, dataset)
    alone = [evaluate(RunFolder(folder / RUN).gaussians(), dataset) for folder in cell_folders(cells)]
    assert all(0 < kept < count for kept, count in counts.values())
    assert len(merged) == sum(kept for kept, _ in counts.values())
    assert parts.psnr > whole.psnr - 0.5, "no photograph suffers from the seam"
    assert parts.psnr > alone[0].psnr + 1 and parts.psnr > alone[1].psnr + 5


def test_of_each_cell_stays_what_is_inside(cells: Path) -> None:
    for i, folder in enumerate(cell_folders(cells)):
        means = 3 * torch.randn((200, 3), generator=torch.manual_seed(i))
        _pretend(folder, replace(Gaussians.of_arrays(random_gaussians(200)), means=means))
    merged, counts = merge_cells([cells])
    edge = read_cell(cells / "cell-0-0").columns[0]
    kept, _ = counts["cell-0-0"]
    along = merged.means.double().numpy() @ np.array(read_cell(cells / "cell-0-0").axes[0])
    assert (along[:kept] < edge).all() and (along[kept:] >= edge).all() and 50 < kept < 150
    again, _ = merge_cells([cells / "cell-1-0", cells / "cell-0-0"])
    torch.testing.assert_close(again.means, merged.means)


def test_what_is_no_whole_partition_is_refused(cells: Path, rooms: Path, tmp_path: Path) -> None:
    left, right = cell_folders(cells)
    refused(r"cell-0-0 was not trained; run `splat train \S+cell-0-0 --out \S+cell-0-0/run`", merge_cells, [cells])
    _pretend(left, Gaussians.of_arrays(random_gaussians(50)))
    (right / RUN).mkdir()
    shutil.copy(left / RUN / "run.json", right / RUN / "run.json")
    refused(r"cell-1-0 was not trained to its end; run `splat train .* --resume`", merge_cells, [cells])
    refused(r"lacks cell-1-0 of its partition; put all cells beside each other", merge_cells, [left])
    refused("are the same cell; name it once", merge_cells, [cells, left])
    refused("holds no cell of a partition", merge_cells, [rooms])
    dataset = load_dataset(rooms, undistort=False)
    other = tmp_path / "other"
    write_cells(dataset, *divide(dataset, 2, 2, 0.2), other)
    refused("are cells of different partitions; merge those of one", merge_cells, [left, other / "cell-1-0"])


def test_cells_that_were_trained_in_other_ways_are_refused(cells: Path) -> None:
    left, right = cell_folders(cells)
    scene = Gaussians.of_arrays(random_gaussians(50))
    _pretend(left, scene)
    _pretend(right, replace(scene, sh=scene.sh[:, :1].contiguous()))
    refused(r"cell-1-0 has harmonics of degree 0 and cell-0-0 of degree \d; train all cells with", merge_cells, [cells])
    shutil.rmtree(right / RUN)
    _pretend(right, scene, environment=True)
    refused("cell-1-0 was trained with --environment", merge_cells, [cells])
    sky = TrainConfig(steps=1, environment=True)
    refused("cell-0-0 is a cell of a partition, and cells cannot share a sky", train, DataOptions(left), sky, cells / "run")
    assert not (cells / "run" / "run.json").exists()
    shutil.rmtree(right / RUN)
    _pretend(right, replace(scene, antialiased=True))
    refused("some scenes were trained antialiased and others not", merge_cells, [cells])
