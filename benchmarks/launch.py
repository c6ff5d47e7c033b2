"""Time from `import` to the first image and its first gradient, in a new process: kernels compiled, and kernels from the disk.

    python benchmarks/launch.py --out benchmarks/launch.json

Medians in seconds. `cold` starts with an empty kernel cache (splat_py/gpu/compile_cache.py), `warm` with the cache of an
earlier run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from splat_py.base.files import write_json
from splat_py.gpu.device import get_device
from splat_py.train.benchmark import header

FIRST_IMAGE = """
import json, time
begin = time.perf_counter()
import torch
torch_imported = time.perf_counter()
import splat_py
splat_py.rasterization, splat_py.get_device  # names are imported when they are used
imported = time.perf_counter()
def tensors():
    g = torch.Generator().manual_seed(0)
    means = torch.randn(100, 3, generator=g) + torch.tensor([0.0, 0, 6])
    rest = torch.randn(100, 4, generator=g), torch.rand(100, 3, generator=g), torch.rand(100, generator=g)
    return [t.requires_grad_() for t in (means, *rest, torch.randn(100, 16, 3, generator=g))]
inputs = tensors()
K = torch.tensor([[[50.0, 0, 32], [0, 50, 32], [0, 0, 1]]])
image, _, _ = splat_py.rasterization(*inputs, torch.eye(4)[None], K, 64, 64, sh_degree=3)
rendered = time.perf_counter()
image.sum().backward()
done = time.perf_counter()
print(json.dumps({
    "import torch": torch_imported - begin,
    "import splat_py": imported - torch_imported,
    "first image": rendered - imported,
    "first gradient": done - rendered,
    "whole": done - begin,
}))
"""


@dataclass
class Options:
    """Options of this benchmark."""

    # Write the figures here, as JSON, instead of to the terminal.
    out: Path | None = None
    # Processes of each kind.
    repeats: int = 5


def launch(cache: str) -> dict[str, float]:
    """Time one process that keeps its kernels in `cache`."""
    environment = os.environ | {"XDG_CACHE_HOME": cache, "MESA_SHADER_CACHE_DIR": cache}
    process = subprocess.run([sys.executable, "-c", FIRST_IMAGE], env=environment, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return figures


def main(options: Options) -> None:
    """Run both kinds in turns."""
    samples: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as cache:
            samples["cold"].append(launch(cache))
            samples["warm"].append(launch(cache))
    results = {
        **header(get_device()),
        "seconds": {
            kind: {name: float(np.median([run[name] for run in runs])) for name in runs[0]} for kind, runs in samples.items()
        },
    }
    if options.out is None:
        print(json.dumps(results, indent=2))
    else:
        write_json(options.out, results)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
