"""Count the memory accesses of a training step in the emulator (tests/emulation/counts.py), in waves of 32 lanes.

    python -m benchmarks.gpu_counts --capture captures/fox --run runs/fox --out benchmarks/gpu_counts.json

Two scenes have as many pixels a Gaussian as a million Gaussians have at 1920×1080, so their counts a Gaussian and a pixel
carry over to such a scene: the random one of `splat bench`, and a run of `splat train CAPTURE --downscale 8
--steps 1000`, seen by the first training camera. Takes ten minutes of one core.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from benchmarks.gpu_model import ACCUMULATIONS, PIXELS
from splat_py import load_dataset
from splat_py.base.files import write_json
from splat_py.gpu import device as devices
from splat_py.gpu.device import _GPU_TUNING
from splat_py.render.images import Image, Rasterization
from splat_py.render.options import Options as RenderOptions
from splat_py.render.project import project
from splat_py.render.shade import shade
from splat_py.render.splats import ProjectedSplats
from splat_py.render.tiles import BinnedTiles, bin_tiles
from splat_py.train.benchmark import random_scene
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.trainer import Trainer
from tests.emulation.compiler import Compiler, find_clang
from tests.emulation.counts import CountingPrograms, Counts, counting
from tests.metal.device import MetalOnCpu
from tests.metal.program import METAL

# The ratio of a million Gaussians at 1920×1080.
PIXELS_PER_GAUSSIAN = 1920 * 1080 / 1e6
_TILE = 16
# Thresholds: intersections of splats that touch at least this many tiles.
_TILE_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass
class Options:
    """Options of this benchmark."""

    # Folder of the capture.
    capture: Path
    # Folder of a run of `splat train` on this capture.
    run: Path
    # Write the counts here, as JSON.
    out: Path
    # Gaussians of the random scene.
    gaussians: int = 10_000


@dataclass(frozen=True)
class Scene:
    """Splats on an image."""

    name: str
    gaussians: int
    width: int
    height: int
    splats: ProjectedSplats
    colors: torch.Tensor


def random(device: MetalOnCpu, count: int) -> Scene:
    """Small Gaussians all over a square image."""
    side = round((count * PIXELS_PER_GAUSSIAN) ** 0.5)
    arrays, focal = random_scene(count, side)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    K = torch.tensor([[[focal, 0, side / 2], [0, focal, side / 2], [0, 0, 1]]])
    given = tuple(tensors[name] for name in ("means", "quats", "scales", "opacities"))
    return _scene("random", given, tensors["colors"], torch.eye(4)[None], K, (side, side), device)


def trained(device: MetalOnCpu, capture: Path, run: Path) -> Scene:
    """The trained scene, seen by the first training camera."""
    gaussians = Checkpoint.load(run / "checkpoint.safetensors").gaussians()
    dataset = load_dataset(capture, downscale=8, test_split="first")
    camera = dataset.views[dataset.train[0]].camera
    count = gaussians.means.shape[0]
    camera = camera.scaled((count * PIXELS_PER_GAUSSIAN / (camera.width * camera.height)) ** 0.5)
    viewmat, K = (torch.from_numpy(a.astype(np.float32))[None] for a in (camera.viewmat, camera.K))
    given = (gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities)
    return _scene("fox", given, gaussians.sh, viewmat, K, (camera.width, camera.height), device)


def _scene(
    name: str,
    given: tuple[torch.Tensor, ...],
    sh: torch.Tensor,
    viewmat: torch.Tensor,
    K: torch.Tensor,
    size: tuple[int, int],
    device: MetalOnCpu,
) -> Scene:
    splats = project(*given, viewmat, K, *size, RenderOptions(_TILE), device=device)
    colors = shade(given[0], sh, viewmat, splats.radii, 3, device=device)
    return Scene(name, given[0].shape[0], *size, splats, colors)


def distribution(scene: Scene, tiles: BinnedTiles) -> dict[str, Any]:
    """The number of intersections, and the share of them whose splats touch many tiles."""
    touched = np.bincount(tiles.ids.numpy(), minlength=scene.gaussians)
    lengths = np.diff(tiles.offsets.numpy())
    total = int(touched.sum())
    return {
        "visible": int((touched > 0).sum()),
        "intersections": total,
        "longest list": int(lengths.max()),
        "mean list": float(lengths.mean()),
        "share of intersections by tiles of their splat": {
            str(least): round(float(touched[touched >= least].sum()) / total, 4) for least in _TILE_COUNTS
        },
    }


def rasteriser(device: MetalOnCpu, programs: CountingPrograms, scene: Scene) -> Iterator[tuple[str, Counts]]:
    """Count, for every number of pixels a thread, a forward pass and a backward pass in every way to add up."""
    memory = device.memory
    rng = np.random.default_rng(0)
    shape = (1, scene.height, scene.width)
    v_image = memory.array(rng.normal(size=(*shape, 3)).astype(np.float32))
    v_alphas = memory.array(rng.normal(size=(*shape, 1)).astype(np.float32))
    ways = {name: RenderOptions(_TILE, accumulation=name) for name in ACCUMULATIONS}
    size = scene.width, scene.height
    tiles = {name: bin_tiles(scene.splats, *size, how, device=device) for name, how in ways.items()}
    splats, colors = scene.splats.arrays(device), memory.array(scene.colors.contiguous())
    backgrounds = memory.array(np.zeros((1, 3), np.float32))
    for pixels in PIXELS:
        device.tuning = replace(_GPU_TUNING, pixels_per_thread=pixels)
        for name, how in ways.items():
            image = Image.empty(device, *shape, 3)
            work = Rasterization(device, splats, colors, backgrounds, tiles[name].arrays, image, how)
            programs.counts.clear()
            recorder = device.record()
            work.record(recorder)
            recorder.submit()
            if name == "PerPixel":
                yield f"forward {pixels}", _only(programs, "rasterizeForward")
            programs.counts.clear()
            recorder = device.record()
            work.record_backward(recorder, v_image, v_alphas, memory.empty((1, splats.count, how.gradient_row_length(3))))
            recorder.submit()
            yield f"backward {pixels} {name}", _only(programs, "rasterizeBackward")
            if how.per_isect and pixels == 1:
                yield "sum of rows", _only(programs, "sumIsects")
    device.tuning = _GPU_TUNING


def _only(programs: CountingPrograms, entry: str) -> Counts:
    (counts,) = (counts for kernel, counts in programs.counts.items() if kernel.entry == entry)
    return counts


def summary(counts: Counts) -> dict[str, int]:
    """The counts as the JSON stores them."""
    memory, shared = counts.memory, counts.workgroup
    lists = counts.buffers.get("lists_ids")
    return {
        "threads": counts.threads,
        "dispatches": counts.dispatches,
        "loaded bytes": memory.loaded_bytes,
        "stored bytes": memory.stored_bytes,
        "atomics": memory.atomics,
        "evaluations": counts.exponentials,
        "list loads": lists.loads if lists else 0,
        "workgroup bytes": shared.loaded_bytes + shared.stored_bytes,
        "wave operations": counts.wave_operations,
        "barriers": counts.barriers,
    }


def training_step(device: MetalOnCpu, programs: CountingPrograms, options: Options) -> dict[str, Any]:
    """Count one step of the run's trainer, kernel by kernel."""
    dataset = load_dataset(options.capture, downscale=8, test_split="first")
    checkpoint = Checkpoint.load(options.run / "checkpoint.safetensors")
    config = replace(checkpoint.config, steps=checkpoint.step + 2)
    trainer = Trainer(dataset, device=device, resume=replace(checkpoint, config=config))
    trainer.advance()
    trainer.finish()
    programs.counts.clear()
    trainer.advance()
    trainer.finish()
    camera = dataset.views[dataset.train[0]].camera
    kernels = {str(kernel): summary(counts) for kernel, counts in programs.counts.items()}
    return {"gaussians": trainer.parameters.count, "width": camera.width, "height": camera.height, "kernels": kernels}


def main(options: Options) -> None:
    """Count both scenes and the training step."""
    with tempfile.TemporaryDirectory() as folder:
        programs = CountingPrograms(Compiler(find_clang(), Path(folder), counting(METAL)))
        device = MetalOnCpu(programs, _GPU_TUNING)
        devices.choose = lambda name=None: device.adapter  # type: ignore[assignment]
        devices._open = lambda adapter: device  # type: ignore[assignment]
        results: dict[str, Any] = {}
        for scene in (random(device, options.gaussians), trained(device, options.capture, options.run)):
            tiles = bin_tiles(scene.splats, scene.width, scene.height, RenderOptions(_TILE), device=device)
            found: dict[str, Any] = {"gaussians": scene.gaussians, "width": scene.width, "height": scene.height}
            found |= distribution(scene, tiles)
            for what, counts in rasteriser(device, programs, scene):
                found[what] = summary(counts)
                print(scene.name, what, found[what], flush=True)
            # Every contribution adds nine numbers, which are zero only by chance.
            found["contributions"] = found["backward 1 PerPixel"]["atomics"] // 9
            results[scene.name] = found
        results["step"] = training_step(device, programs, options)
    write_json(options.out, results)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
