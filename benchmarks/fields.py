"""Voxels against a hash grid at equal memory: held-out PSNR and time, on the embedded demo's photographs and on a capture.

    python benchmarks/fields.py --capture captures/fox --out benchmarks/fields.json

Both sample rays alike, with jitter: 64 samples a side of the box in the last stage. Voxels of degree 2 take 32 MiB at 64³, and
the hash grid gets as much. `grid, longer` are the voxels with more steps, for about as long as the hash grid takes.
`seconds` are processor time divided by the cores; `ms a step` are medians of the last stage.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import tyro

from splat_py.base.files import write_json
from splat_py.demo.scene import write_demo_scene
from splat_py.gpu.device import get_device
from splat_py.scene.dataset import Dataset, load_dataset
from splat_py.train.benchmark import header
from splat_py.volume.config import VolumeConfig
from splat_py.volume.fitting import Views, VolumeTrainer
from splat_py.volume.hash_grid import HashRadianceField

RESOLUTIONS, RAYS = (16, 32, 64), 1 << 13
MOST_TIMES = 12


@dataclass
class Options:
    """Options of this benchmark."""

    # Folder of a capture; without one only the demo is fitted.
    capture: Path | None = None
    # Factor by which its photographs are shrunk.
    downscale: float = 16
    # Steps of each of the three stages.
    steps: int = 100
    # Write the figures here, as JSON, instead of to the terminal.
    out: Path | None = None


def fit(dataset: Dataset, field: Literal["grid", "hash"], steps: int) -> dict[str, Any]:
    """PSNR of the held-out views, and times."""
    config = VolumeConfig(RESOLUTIONS, steps, field=field, rays_per_step=RAYS, jitter=True)
    trainer = VolumeTrainer(Views.of_dataset(dataset), dataset.bounds, config, background=dataset.background)
    # The first step compiles the kernels, or reads them.
    trainer.advance()
    times = []
    while trainer.step < config.steps:
        begin = time.process_time()
        trainer.advance()
        times.append((time.process_time() - begin) / (psutil.cpu_count() or 1))
    fitted = trainer.field()
    errors = []
    for index in dataset.test:
        camera = dataset.views[index].camera
        render = fitted.render(camera.viewmat, camera.K, camera.width, camera.height)
        errors.append(np.mean((render - dataset.image(index)[..., :3] / 255) ** 2))
    is_hash = isinstance(fitted, HashRadianceField)
    nbytes = fitted.shape.nbytes if is_hash else trainer.checkpoint().state["grid"].nbytes
    return {
        "psnr": round(float(np.mean(-10 * np.log10(errors))), 2),
        "seconds": round(float(np.sum(times)), 1),
        "ms a step": round(1e3 * float(np.median(times[-steps:])), 1),
        "steps": config.steps,
        "MiB": round(nbytes / 2**20, 1),
    }


def compare(dataset: Dataset, steps: int) -> dict[str, Any]:
    """Fit the hash grid, the voxels, and the voxels for as long as the hash grid."""
    hashed, grid = fit(dataset, "hash", steps), fit(dataset, "grid", steps)
    times = min(max(round(hashed["seconds"] / grid["seconds"]), 1), MOST_TIMES)
    return {
        "photographs": f"{len(dataset.train)} of {dataset.views[0].camera.width}×{dataset.views[0].camera.height}",
        "hash": hashed,
        "grid": grid,
        "grid, longer": fit(dataset, "grid", steps * times),
    }


def main(options: Options) -> None:
    """Fit both fields to the demo and to the capture."""
    results: dict[str, Any] = header(get_device())
    with tempfile.TemporaryDirectory() as folder:
        demo = load_dataset(write_demo_scene(Path(folder) / "demo"), downscale=2, test_split="first")
        results["demo"] = compare(demo, options.steps)
    if options.capture is None:
        results["capture"] = "left out: name one with --capture"
    else:
        dataset = load_dataset(options.capture, downscale=options.downscale, test_split="first")
        results[options.capture.name] = compare(dataset, options.steps)
    if options.out is None:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        write_json(options.out, results)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
