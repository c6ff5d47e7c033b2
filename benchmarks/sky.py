"""A capture with a sky, with and without a learnt environment: held-out PSNR, and Gaussians far from the scene.

    python benchmarks/sky.py --out benchmarks/sky.json

The photographs are the embedded demo's, with a sky of smooth clouds, and a meadow, behind the table. `far` are Gaussians more
than twice as far from the centre as the cameras; `near the cameras` those within half that distance of any camera, where there
is nothing: floaters. Both count Gaussians with an opacity above 0.1.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from splat_py.base.files import write_json
from splat_py.demo.scene import CAMERA_DISTANCE, LOOK_AT, still_life, write_demo_scene
from splat_py.demo.shapes import trace, unit
from splat_py.gpu.device import get_device
from splat_py.scene.dataset import Dataset, load_dataset
from splat_py.train.benchmark import header
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import evaluate
from splat_py.train.trainer import Trainer

SUBPIXELS = 3


@dataclass
class Options:
    """Options of this benchmark."""

    steps: int = 1000
    seeds: int = 3
    # Write the figures here, as JSON, instead of to the terminal.
    out: Path | None = None


def sky(directions: NDArray[np.float32]) -> NDArray[np.float32]:
    """Colours of world directions: blue with clouds above, a meadow below, haze between."""
    x, y, z = directions.T
    above = np.array([0.35, 0.55, 0.9]) + 0.3 * (0.5 + 0.5 * np.sin(5 * x + 2 * y) * np.cos(4 * y - 3 * z))[:, None]
    below = np.array([0.3, 0.4, 0.2]) + 0.05 * np.sin(7 * x - 5 * y)[:, None]
    share = 1 / (1 + np.exp(-12 * z))[:, None]
    return np.clip(share * above + (1 - share) * below, 0, 1).astype(np.float32)


def with_sky(folder: Path) -> Dataset:
    """The demo's photographs, with the sky behind them where rays miss the scene."""
    dataset = load_dataset(write_demo_scene(folder))
    for view in dataset.views:
        camera = view.camera
        to_world = camera.viewmat[:3, :3].T @ np.linalg.inv(camera.K)
        y, x = np.mgrid[: camera.height, : camera.width].reshape(2, -1)
        behind = np.zeros((len(x), 3), np.float32)
        for sample in range(SUBPIXELS**2):
            dy, dx = (np.array(divmod(sample, SUBPIXELS)) + 0.5) / SUBPIXELS
            directions = unit((np.stack([x + dx, y + dy, np.ones(len(x))], axis=-1) @ to_world.T).astype(np.float32))
            origins = np.broadcast_to(camera.position.astype(np.float32), directions.shape)
            _, hit = trace(still_life(), origins, directions)
            behind += np.where(hit[:, None] < 0, sky(directions), 0) / SUBPIXELS**2
        path = view.path
        photograph = imageio.imread(path) / 255 + behind.reshape(camera.height, camera.width, 3)
        imageio.imwrite(path, np.round(255 * np.clip(photograph, 0, 1)).astype(np.uint8))
    return load_dataset(folder, test_split="first")


def train(dataset: Dataset, environment: bool, steps: int, seed: int) -> dict[str, Any]:
    """Held-out PSNR, and where the Gaussians are."""
    trainer = Trainer(dataset, TrainConfig(steps=steps, environment=environment, seed=seed))
    gaussians = trainer.fit()
    scores = evaluate(gaussians, dataset, environment=trainer.learnt_capture().environment)
    means, opaque = gaussians.means.numpy(), torch.sigmoid(gaussians.logit_opacities).numpy() > 0.1
    eyes = np.stack([view.camera.position for view in dataset.views])
    to_camera = np.min(np.linalg.norm(means[:, None] - eyes, axis=-1), axis=1)
    return {
        "psnr": scores.psnr,
        "gaussians": len(gaussians),
        "far": int(np.sum(opaque & (np.linalg.norm(means - LOOK_AT, axis=-1) > 2 * CAMERA_DISTANCE))),
        "near the cameras": int(np.sum(opaque & (to_camera < CAMERA_DISTANCE / 2))),
    }


def main(options: Options) -> None:
    """Train with and without an environment, and print or write the figures."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = with_sky(Path(folder) / "demo")
        results: dict[str, Any] = {}
        for name, environment in (("Gaussians alone", False), ("environment", True)):
            runs = [train(dataset, environment, options.steps, seed) for seed in range(options.seeds)]
            results[name] = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
            print(name, results[name], flush=True)
    if options.out is not None:
        write_json(options.out, header(get_device()) | {"steps": options.steps, "seeds": options.seeds, "sky": results})


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
