"""Train a scene whole, in two cells with half of the Gaussians each, and whole with as many Gaussians as one cell; compare
held-out PSNR and the memory of each run.

    python benchmarks/large_scenes.py --out benchmarks/large_scenes.json --picture docs/two-rooms.png

The scene is two rooms with a door (`benchmarks/two_rooms.py`). A cell is trained for as many steps as the whole.
Photographs through the door need what both cells have learnt. `held_out` has the means over all held-out photographs, and
over those that show the other room in at least 3 % of their pixels.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from two_rooms import render_rooms, room_surfaces, write_two_rooms

from splat_py.base.files import write_json
from splat_py.demo.shapes import trace
from splat_py.gpu.device import get_device
from splat_py.render.views import render as render_gaussians
from splat_py.scene.data_options import DataOptions
from splat_py.scene.dataset import Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.partition import RUN, cell_folders, divide, write_cells
from splat_py.scene.pictures import beside, write_image
from splat_py.train.benchmark import header
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import evaluate
from splat_py.train.run import merge_cells, train
from splat_py.train.trainer import Trainer

# Share of the other room in a photograph from which it counts as one through the door.
THROUGH_DOOR = 0.03
# Size of the renders in the picture, over that of the photographs.
ENLARGED = 1.4


@dataclass
class Options:
    """Options of this benchmark."""

    steps: int = 3000
    views: int = 64
    size: int = 128
    budget: int = 12_000
    # Folder for the photographs and runs; the default is temporary.
    folder: Path | None = None
    # Write the figures here, as JSON, instead of to the terminal.
    out: Path | None = None
    # Write whole, merged and truth side by side here.
    picture: Path | None = None


def main(options: Options) -> None:
    """Make the scene, train and merge it, and compare."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        data = write_two_rooms(folder / "rooms", views=options.views, size=options.size)
        dataset = DataOptions(data, test_split="first").load()
        doors = through_door(dataset)
        runs = {"whole": run(data, folder / "whole", options.steps, options.budget)}
        runs["half"] = run(data, folder / "half", options.steps, options.budget // 2)
        cells = folder / "cells"
        if not cells.exists():
            grid, parts = divide(dataset, 2, 1, 0.2)
            write_cells(dataset, grid, parts, cells)
        for cell in cell_folders(cells):
            runs[cell.name] = run(cell, cell / RUN, options.steps, options.budget // 2)
        merged, kept = merge_cells([cells])
        scenes = {name: Gaussians.load(folder / name / "scene.ply") for name in ("whole", "half")}
        scenes["merged"] = merged
        content: dict[str, Any] = header(get_device()) | {"photographs": len(dataset), "size": options.size, "runs": runs}
        content["kept"] = kept
        content["held_out"] = {name: scores(scene, dataset, doors) for name, scene in scenes.items()}
        if options.picture is not None:
            write_picture(options.picture, scenes, dataset, doors)
        write_json(options.out or "/dev/stdout", content)


def run(data: Path, out: Path, steps: int, budget: int) -> dict[str, Any]:
    """Train unless the run exists; return the memory and time that it took."""
    trainers: list[Trainer] = []
    if not (out / "metrics.json").exists():
        train(DataOptions(data, test_split="first"), TrainConfig(steps=steps, budget=budget), out, on_start=trainers.append)
    dataset = DataOptions(data, test_split="first").load()
    trainer = trainers[0] if trainers else Trainer(dataset, TrainConfig(steps=steps, budget=budget))
    gaussians = len(Gaussians.load(out / "scene.ply"))
    return {
        "steps": steps,
        "budget": budget,
        "photographs": len(dataset.train),
        "gaussians": gaussians,
        "predicted_bytes": trainer.memory.use.total + trainer.memory.photographs,
    }


def through_door(dataset: Dataset) -> list[bool]:
    """True for each held-out photograph that also shows the other room."""
    answers = []
    for index in dataset.test:
        camera = dataset.views[index].camera
        y, x = np.mgrid[: camera.height : 4, : camera.width : 4].reshape(2, -1) + 0.5
        directions = np.stack([x, y, np.ones(len(x))], -1) @ np.linalg.inv(camera.K).T @ camera.viewmat[:3, :3]
        directions = (directions / np.linalg.norm(directions, axis=1, keepdims=True)).astype(np.float32)
        origin = camera.position.astype(np.float32)
        distance, _ = trace(room_surfaces(), np.broadcast_to(origin, directions.shape), directions)
        points = origin + distance[:, None] * directions
        answers.append(bool((points[:, 0] * np.sign(origin[0]) < -0.2).mean() > THROUGH_DOOR))
    return answers


def scores(scene: Gaussians, dataset: Dataset, doors: list[bool]) -> dict[str, Any]:
    """PSNR and SSIM."""
    result = evaluate(scene, dataset)
    through = [view.psnr for view, door in zip(result.views, doors, strict=True) if door]
    return {
        "gaussians": len(scene),
        "psnr": round(result.psnr, 2),
        "ssim": round(result.ssim, 4),
        "psnr_through_door": round(float(np.mean(through)), 2),
        "through_door": len(through),
    }


def write_picture(path: Path, scenes: dict[str, Gaussians], dataset: Dataset, doors: list[bool]) -> None:
    """A held-out view of each room, whole | merged | truth, enlarged."""
    rows = []
    chosen = [index for index, door in zip(dataset.test, doors, strict=True) if door]
    for index in (chosen[0], chosen[-1]):
        camera = dataset.views[index].camera.scaled(ENLARGED)
        drawn = [render_gaussians(scenes[name], camera, near=dataset.near) for name in ("whole", "merged")]
        rows.append(beside(*drawn, render_rooms(camera.viewmat, camera.K, camera.width, camera.height)))
    line = np.ones((4, rows[0].shape[1], 3), np.float32)
    write_image(path, np.concatenate([rows[0], line, rows[1]]))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
