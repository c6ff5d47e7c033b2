"""Figures of AMD's and Intel's compilers for every kernel, without one of their GPUs: registers, spills, waves, instructions.

    SPLAT_DEVICE=software python -m benchmarks.vulkan_static --out benchmarks/vulkan_static.json

Mesa's RADV compiles the SPIR-V for GPUs that this machine lacks (tests/vulkan). `waves` is how many of 16 a SIMD holds at a
time, as registers and group-shared memory allow; RADV's waves have 64 threads by default. `loop` counts the instructions of
the loop over splats or samples, with both sides of branches. A wave evaluates all its pixels for a splat that reaches one of
them: `evaluations a pixel` says how often that is for `splat bench`'s random splats, by the pixels of a wave.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.progress import track

from splat_py.base.errors import BindingError
from splat_py.base.files import write_json
from splat_py.gpu.emission import emit_spirv
from splat_py.render.options import Options as RenderOptions
from splat_py.render.project import project
from splat_py.train.benchmark import random_scene
from tests.emulation.kernels import shipped
from tests.vulkan.assembly import hot_loop
from tests.vulkan.pipelines import Compiled, PipelineCompiler, VulkanError, open_intel, open_radv
from tests.vulkan.spirv import adds_floats_atomically, group_size

AMD = {"navi31": "RDNA 3: Radeon RX 7900", "navi21": "RDNA 2: Radeon RX 6800, 6900"}
# Threads of a wave; None leaves them to the driver.
AMD_WAVES, INTEL_WAVES = (64, 32), (None,)
_RASTER = {"CHANNELS": 3}
_PIXELS = (1, 2, 4, 8)
_ACCUMULATIONS = {"A pixel": "PerPixel", "B wave": "PerWave", "C group": "PerGroup", "D pair": "PerIntersection"}
_SORT = {"ITEMS": 7, "THREADS": 128, "TILE_BITS": 4}
_VOLUME = {"JITTER": True, "K": 9, "SKIP_EMPTY": True}

# Kernels of a training step and of the other renderers: module.entry and constants.
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "project": ("project.projectForward", {"RAW_PARAMS": True}),
    "project, backward": ("project.projectBackward", {"RAW_PARAMS": True}),
    "shade": ("shade.shadeForward", {"FEATURES": 48, "FOURS": True}),
    "shade, backward": ("shade.shadeBackward", {"FEATURES": 48, "FOURS": True, "ADD_TO_MEANS": True, "LEARNS": True}),
    "count tiles": ("tiles.countTiles", {}),
    "emit intersections": ("tiles.emitIsects", {}),
    "sort, count": ("radix_sort.countDigits", _SORT),
    "sort, scatter": ("radix_sort.scatter", _SORT),
    **{f"rasterise, {pixels} px a thread": ("rasterize.rasterizeForward", {**_RASTER, "PIXELS": pixels}) for pixels in _PIXELS},
    **{
        f"rasterise backward, {name}, {pixels} px a thread": (
            "rasterize.rasterizeBackward",
            {**_RASTER, "PIXELS": pixels, "Accumulation": accumulation},
        )
        for (name, accumulation), pixels in product(_ACCUMULATIONS.items(), _PIXELS)
    },
    "loss, SSIM": ("loss.ssimInTiles", {}),
    "loss, gradient": ("loss.gradientInTiles", {}),
    "Adam": ("optimize.adam", {"ROW": 48, "HEAD": 3}),
    "density control, statistics": ("densify.addStatistics", {}),
    "density control, move rows": ("gaussian_rows.moveRows", {}),
    "volume": ("volume.volumeForward", _VOLUME),
    "volume, backward": ("volume.volumeBackward", {**_VOLUME, "RAYS": False}),
    "volume, Adam": ("volume_fit.adamVolume", {"QUADS": 8}),
    "hash grid": ("volume.volumeForward", {"Field": "HashedField", "FEATURE_COUNT": 16}),
    "image": ("image_group.renderByGroup", {}),
    "image, backward": ("image_group.differentiateByGroup", {"LINEAR": False}),
}


@dataclass
class Options:
    """Options of this benchmark."""

    # Write the figures here, as JSON, instead of to the terminal.
    out: Path | None = None
    # Also compile every specialisation that ships, for a summary of spills: ten minutes more.
    everything: bool = False


def figures(compiled: Compiled, threads: int) -> dict[str, Any]:
    """The figures to keep from a driver's statistics."""
    of = compiled.statistics
    if "SEND Count" in of:  # Intel's statistics
        row = {"registers": of["Max live registers"], "spilled": of["Spill Count"], "scratch bytes": of["Scratch Memory Size"]}
        row |= {"shared bytes": of["Workgroup Memory Size"], "instructions": of["Instruction Count"], "sends": of["SEND Count"]}
        return {"threads": threads, "wave": compiled.wave, **row}
    row = {"registers": of["VGPRs"], "spilled": of["Spilled VGPRs"] + of["Spilled SGPRs"], "scratch bytes": of["Scratch size"]}
    # RADV counts in waves of 32.
    row |= {"shared bytes": of["LDS size"], "waves": of["Subgroups per SIMD"] * 32 // compiled.wave}
    row |= {"code bytes": of["Code size"], "instructions": of["Instructions"]}
    loop = hot_loop(compiled.texts.get("Assembly", ""))
    return {"threads": threads, "wave": compiled.wave, **row, **({"loop": loop} if loop else {})}


def compiled_kernels(compiler: PipelineCompiler, waves: tuple[int | None, ...]) -> dict[str, Any]:
    """The named kernels, in waves of these widths."""
    rows: dict[str, Any] = {}
    for name, (kernel, constants) in track(KERNELS.items(), compiler.name):
        module, entry = kernel.split(".")
        code = emitted(module, entry, constants)
        if adds_floats_atomically(code) and not compiler.float_atomics:
            try:
                code = emitted(module, entry, {**constants, "NATIVE_ATOMICS": False})
            except BindingError:
                rows[name] = "needs float atomics"
                continue
        rows[name] = [figures(compiler.compile(code, wave), group_size(code)) for wave in waves]
    return rows


def emitted(module: str, entry: str, constants: dict[str, Any]) -> bytes:
    """SPIR-V, emitted once."""
    key = f"{module}.{entry} {sorted(constants.items())}"
    if key not in _MADE:
        _MADE[key] = emit_spirv(module, entry, constants)
    return _MADE[key]


_MADE: dict[str, bytes] = {}


def every_specialisation(compilers: dict[str, PipelineCompiler]) -> dict[str, Any]:
    """A summary for each family over everything that ships, in waves of the driver's width."""
    counts = {family: Counter[str]() for family in compilers}
    spilling: dict[str, list[str]] = {family: [] for family in compilers}
    for kernel in track([kernel for kernel in shipped() if not kernel.module.startswith("cpu/")], "every specialisation"):
        code = emitted(kernel.module, kernel.entry, dict(kernel.constants))
        for family, compiler in compilers.items():
            if adds_floats_atomically(code) and not compiler.float_atomics:
                counts[family]["need float atomics"] += 1
                continue
            row = figures(compiler.compile(code), group_size(code))
            counts[family]["compiled"] += 1
            if "waves" in row:
                counts[family][f"{row['waves']} waves"] += 1
            if row["spilled"] or row["scratch bytes"]:
                spilling[family].append(f"{kernel}: {row['spilled']} registers, {row['scratch bytes']} bytes a thread")
    return {family: {**counts[family], "spilling": spilling[family]} for family in compilers}


def evaluations(side: int = 256, window: int = 48) -> dict[str, float]:
    """Evaluations of random splats by the pixels of a wave, with the density of a million at 1920×1080; none stops early."""
    count = round(side * side / (1920 * 1080 / 1e6))
    arrays, focal = random_scene(count, side)
    gaussians = [torch.from_numpy(arrays[name]) for name in ("means", "quats", "scales", "opacities")]
    K = torch.tensor([[[focal, 0, side / 2], [0, focal, side / 2], [0, 0, 1]]])
    splats = project(*gaussians, torch.eye(4)[None], K, side, side, RenderOptions(16))
    sizes = {"1": (1, 1), "32": (4, 8), "64": (8, 8), "128": (8, 16), "256": (16, 16)}
    totals = Counter[str]()
    numbers = (splats.means2d, splats.conics, splats.opacities[..., None], splats.radii)
    for (u, v), (a, b, c), (opacity,), radii in zip(*(array[0].numpy() for array in numbers), strict=True):
        if min(radii) <= 0:
            continue
        # Tiles around the mean, clipped to the image.
        x, y = (np.arange(window) + 16 * int(middle / 16 - 1) for middle in (u, v))
        dx, dy = x + 0.5 - u, (y + 0.5 - v)[:, None]
        sees = opacity * np.exp(-0.5 * (a * dx * dx + c * dy * dy) - b * dx * dy) >= 1 / 255
        sees &= ((x >= 0) & (x < side)) & ((y >= 0) & (y < side))[:, None]
        for name, (h, w) in sizes.items():
            totals[name] += int(sees.reshape(window // h, h, window // w, w).any((1, 3)).sum()) * h * w
    return {name: round(totals[name] / side**2, 1) for name in sizes}


def main(options: Options) -> None:
    """Compile, and write the figures."""
    result: dict[str, Any] = {"date": date.today().isoformat(), "slangpy": version("slangpy"), "families": {}}
    result["evaluations a pixel"] = evaluations()
    with ExitStack() as stack:
        compilers = {family: stack.enter_context(open_radv(family)) for family in AMD}
        with suppress(VulkanError):
            compilers["intel"] = stack.enter_context(open_intel())
        for family, compiler in compilers.items():
            kernels = compiled_kernels(compiler, AMD_WAVES if family in AMD else INTEL_WAVES)
            about = {"name": AMD.get(family, compiler.name), "driver": compiler.driver, "float atomics": compiler.float_atomics}
            result["families"][family] = {**about, "kernels": kernels}
        if options.everything:
            result["every specialisation"] = every_specialisation(compilers)
    if options.out:
        write_json(options.out, result)
    else:
        json.dump(result, sys.stdout, indent=2)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
