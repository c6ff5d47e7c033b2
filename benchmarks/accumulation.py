"""Ways to add up gradients: time and memory of the rasteriser's backward pass, on small, large and mixed splats.

    python benchmarks/accumulation.py --out benchmarks/accumulation.json

The four ways (A pixel, B wave, C group, D pair; parallel/gradient_accumulation) take turns, so a disturbance hits all of them.
Medians in milliseconds by the device's clock if it has one; `scratch MiB` is the memory that a way needs besides the gradient.
`compare-and-swap` is B on a device that cannot add to floats atomically.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

from splat_py.base.files import write_json
from splat_py.gpu.device import get_device
from splat_py.gpu.kernels import Profile
from splat_py.render.images import Image, Rasterization
from splat_py.render.options import Options as RenderOptions
from splat_py.render.project import project
from splat_py.render.splats import Splats
from splat_py.render.tiles import bin_tiles
from splat_py.train.benchmark import header

WAYS = {
    "A pixel": {"accumulation": "PerPixel"},
    "B wave": {"accumulation": "PerWave"},
    "C group": {"accumulation": "PerGroup"},
    "D pair": {"accumulation": "PerIntersection"},
    "B wave, compare-and-swap": {"accumulation": "PerWave", "native_atomics": False},
}
# Standard deviations in pixels, and the number of Gaussians.
SCENES = {"small": ((0.5, 1.5), 100_000), "large": ((15.0, 40.0), 1_000), "mixed": ((0.5, 20.0), 10_000)}


@dataclass
class Options:
    """Options of this benchmark."""

    # Write the figures here, as JSON, instead of to the terminal.
    out: Path | None = None
    # Side of the image in pixels.
    side: int = 512
    # Repeats of each way.
    repeats: int = 9


def gaussians_of(sigmas: tuple[float, float], count: int, side: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Gaussians all over the image, their sizes log-uniform between two limits; and intrinsics."""
    rng = np.random.default_rng(0)
    u, v, z = rng.uniform(0, side, count), rng.uniform(0, side, count), rng.uniform(2, 6, count)
    means = np.stack([(u - side / 2) * z / side, (v - side / 2) * z / side, z], axis=1)
    scales = np.exp(rng.uniform(*np.log(sigmas), (count, 3))) * z[:, None] / side
    arrays = (means, rng.normal(size=(count, 4)), scales, rng.uniform(0.1, 0.9, count))
    K = torch.tensor([[[float(side), 0, side / 2], [0, side, side / 2], [0, 0, 1]]])
    return [torch.tensor(array, dtype=torch.float32) for array in arrays], K


def times(sigmas: tuple[float, float], count: int, options: Options) -> dict[str, dict[str, float]]:
    """Time and memory of the backward pass of one image, for each way."""
    device, side = get_device(), options.side
    gaussians, K = gaussians_of(sigmas, count, side)
    rng = np.random.default_rng(1)
    memory = device.memory
    colors = memory.array(rng.uniform(size=(1, count, 3)).astype(np.float32))
    v_image = memory.array(rng.normal(size=(1, side, side, 3)).astype(np.float32))
    v_alphas = memory.array(np.zeros((1, side, side, 1), np.float32))
    profile = Profile(device.handle)
    samples: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in WAYS}
    for repeat in range(options.repeats + 1):
        for name, how in WAYS.items():
            render = RenderOptions(device.tuning.tile_size, **how)  # type: ignore[arg-type]
            projected = project(*gaussians, torch.eye(4)[None], K, side, side, render)
            tiles = bin_tiles(projected, side, side, render)
            tensors = (projected.means2d, projected.depths, projected.conics, projected.opacities, projected.radii)
            splats = Splats(*(memory.array(tensor) for tensor in tensors))
            image = Image.empty(device, 1, side, side, 3)
            backgrounds = memory.array(np.zeros((1, 3), np.float32))
            work = Rasterization(device, splats, colors, backgrounds, tiles.arrays, image, render)
            v_splats = memory.empty((1, count, render.gradient_row_length(3)))
            recorder = device.record()
            work.record(recorder)
            recorder.submit()
            before = memory.peak_bytes = memory.live_bytes
            recorder = device.record(profile)
            begin = time.perf_counter()
            work.record_backward(recorder, v_image, v_alphas, v_splats)
            recorder.submit()
            seconds = time.perf_counter() - begin
            seconds = profile.collect().get("rasterize backward", seconds)
            if repeat:
                samples[name]["milliseconds"].append(1e3 * seconds)
                samples[name]["scratch MiB"].append((memory.peak_bytes - before) / 2**20)
    return {name: {what: float(np.median(values)) for what, values in of.items()} for name, of in samples.items()}


def main(options: Options) -> None:
    """Measure every scene."""
    results = header(get_device())
    for name, (sigmas, count) in SCENES.items():
        title = f"{name}: {count:,} Gaussians of {sigmas[0]:g}-{sigmas[1]:g} px at {options.side}×{options.side}"
        results[title] = times(sigmas, count, options)
    if options.out is None:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        write_json(options.out, results)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
