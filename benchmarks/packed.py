"""Memory and time that packed splats save: 1,000,000 Gaussians all around a camera, which sees a twentieth. Writes packed.json.

python benchmarks/packed.py [GAUSSIANS]
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import splat_py as splat
from splat_py.base.files import write_json
from splat_py.train.benchmark import header

SIZE, REPEATS = 512, 5


def measure(count: int, packed: bool) -> dict[str, Any]:
    """Medians in milliseconds and peaks in MiB of renders forward and backward, after the first."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(count, 3))
    distances = rng.uniform(2, 6, (count, 1))
    means = directions / np.linalg.norm(directions, axis=1, keepdims=True) * distances
    # The solid angle of a square picture is 4 asin(sin² a), with a half its angle of view: here a twentieth of the sphere.
    focal = SIZE / 2 * math.sqrt(1 / math.sin(math.pi / 20) - 1)
    arrays = (
        means,
        rng.normal(size=(count, 4)),
        rng.uniform(0.5, 1.5, (count, 3)) * distances / focal,
        rng.uniform(0.1, 0.9, count),
        rng.normal(0, 0.2, (count, 16, 3)),
    )
    inputs = [torch.tensor(array, dtype=torch.float32, requires_grad=True) for array in arrays]
    K = torch.tensor([[[focal, 0, SIZE / 2], [0, focal, SIZE / 2], [0, 0, 1]]], dtype=torch.float32)
    device = splat.get_device()
    times, seen, held, peak = [], 0.0, 0, 0
    for _ in range(REPEATS + 1):
        device.memory.peak_bytes = before = device.memory.live_bytes
        begin = time.perf_counter()
        images, _, meta = splat.rasterization(
            *inputs, torch.eye(4)[None], K, SIZE, SIZE, sh_degree=3, packed=packed, device=device
        )
        # The copies of the inputs do not count.
        held = device.memory.live_bytes - before - sum(tensor.nbytes for tensor in inputs)
        torch.autograd.grad(images.sum(), inputs)
        times.append(time.perf_counter() - begin)
        seen = float((meta["radii"] > 0).all(-1).sum()) / count
        peak = device.memory.peak_bytes - before
    splats = sum(meta[name].nbytes for name in ("means2d", "depths", "conics", "opacities", "radii"))
    return {
        "seen": round(seen, 4),
        "forward and backward, ms": round(float(np.median(times[1:])) * 1e3, 1),
        "held for the backward pass, MiB": round(held / 2**20, 1),
        "peak of device memory, MiB": round(peak / 2**20, 1),
        "splats in meta, MiB": round(splats / 2**20, 1),
        "process memory, MiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10),
    }


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    if len(sys.argv) > 2:
        print(json.dumps(measure(count, sys.argv[2] == "packed")))
        return
    # One process each, as a process's peak memory does not go down.
    results = {
        how: json.loads(subprocess.run([sys.executable, __file__, str(count), how], capture_output=True, check=True).stdout)
        for how in ("dense", "packed")
    }
    report = {**header(splat.get_device()), "gaussians": count, "size": SIZE, **results}
    write_json(Path(__file__).with_suffix(".json"), report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
