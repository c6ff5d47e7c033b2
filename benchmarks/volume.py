"""Time one iteration on a radiance field, forward + replay + Adam: seven views of 128×128 pixels, every ray carrying gradient.

    python benchmarks/volume.py --out benchmarks/volume.json

The cases and the cameras are those of Mitsuba 3's radiance-field tutorial: the unit cube, cameras around it at a distance of
1.3 with 45° of view, grids of 16³ and 64³ with as many steps a unit length as voxels, degree 0 and 2; nothing in the cube is
empty. Medians, in milliseconds, of the steps that `volume.fit` takes: `iteration`, its stages by the device's clock, and
`processor`, the processor time of the process divided by the cores, which other programs disturb less. `forward` and `replay`
are the two passes of `volume.render` on the same rays, independent of each other.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tyro

from splat_py.base.files import write_json
from splat_py.gpu.device import get_device
from splat_py.gpu.kernels import Profile
from splat_py.scene.camera import Camera
from splat_py.train.benchmark import header
from splat_py.volume.config import VolumeConfig
from splat_py.volume.device_field import Box, March, RayImage, camera_rays
from splat_py.volume.fitting import Views, VolumeTrainer
from splat_py.volume.grid import Volume, row_floats

CASES = ((16, 0), (16, 2), (64, 0), (64, 2))
VIEWS, SIDE = 7, 128
UNIT_CUBE = [[0, 0, 0], [1, 1, 1]]


@dataclass
class Options:
    """Options of this benchmark."""

    # Write the figures here, as JSON, instead of to the terminal.
    out: Path | None = None
    # Iterations; the median is reported.
    repeats: int = 11


def iteration(resolution: int, degree: int, repeats: int) -> dict[str, float]:
    """Medians of one case: the whole, its stages by the device's clock, and the processor's time."""
    rng = np.random.default_rng(0)
    viewmats, Ks = (np.stack([getattr(camera, name) for camera in cameras()]) for name in ("viewmat", "K"))
    # Steps too small to change anything, so all of them are the same.
    config = VolumeConfig((resolution,), repeats + 1, degree, rate=1e-6)
    trainer = VolumeTrainer(Views.of_arrays(rng.uniform(size=(VIEWS, SIDE, SIDE, 3)), viewmats, Ks), UNIT_CUBE, config)
    samples: list[dict[str, float]] = []
    with trainer.device.profiled() as profile:
        for _ in range(repeats + 1):
            begin, processor = time.perf_counter(), time.process_time()
            trainer.advance()
            processor = (time.process_time() - processor) / (psutil.cpu_count() or 1)
            samples.append({"iteration": time.perf_counter() - begin, "processor": processor, **profile.collect()})
    return medians(samples)


def passes(resolution: int, degree: int, repeats: int) -> dict[str, float]:
    """Medians of the two passes of `volume.render`."""
    device = get_device()
    memory = device.memory
    coefficients = (degree + 1) ** 2
    rng = np.random.default_rng(0)
    grid = np.zeros((resolution,) * 3 + (row_floats(coefficients),), np.float32)
    grid[..., 0] = 1.0
    volume = Volume(device, memory.array(grid))
    march = March(Box.of(UNIT_CUBE), float(resolution))
    recorder = device.record()
    rays = camera_rays(device, recorder, cameras())
    volume.record_occupancy(recorder, march)
    v_grid = volume.empty_gradients()
    recorder.clear(v_grid)
    recorder.submit()
    background, image = memory.array(np.zeros(3, np.float32)), RayImage.empty(device, rays.count)
    v_image = RayImage(
        memory.array(rng.normal(0, 1e-6, (rays.count, 3)).astype(np.float32)),
        *(memory.array(np.zeros(rays.count, np.float32)) for _ in range(2)),
    )
    profile = Profile(device.handle)
    samples: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        recorder = device.record(profile)
        volume.record_forward(recorder, march, rays, background, image)
        volume.record_backward(recorder, march, rays, background, image, v_image, v_grid)
        recorder.submit()
        samples.append(profile.collect())
    return medians(samples)


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    """Medians in milliseconds, without the first sample, which compiles the kernels."""
    return {name: 1e3 * float(np.median([s[name] for s in samples[1:]])) for name in samples[1]}


def cameras() -> list[Camera]:
    """Cameras in a circle around the unit cube."""
    angles = 2 * np.pi * np.arange(VIEWS) / VIEWS
    eyes = 0.5 + 1.3 * np.stack([np.sin(angles), np.zeros(VIEWS), np.cos(angles)], axis=1)
    return [Camera.look_at(eye, (0.5, 0.5, 0.5), (0, 1, 0), 45, SIDE, SIDE) for eye in eyes]


def main(options: Options) -> None:
    """Measure every case."""
    results: dict[str, Any] = {
        **header(get_device()),
        "milliseconds": {
            f"{resolution}³, degree {degree}": iteration(resolution, degree, options.repeats)
            | passes(resolution, degree, options.repeats)
            for resolution, degree in CASES
        },
    }
    if options.out is None:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        write_json(options.out, results)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
