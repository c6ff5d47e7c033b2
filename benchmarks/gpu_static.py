"""Static figures of every kernel under consideration on NVIDIA's GPUs, without one: registers, spills, shared memory, instructions.

    python -m benchmarks.gpu_static --out benchmarks/gpu_static.json --nvdisasm NVDISASM

NVRTC and ptxas come with `pip install 'splat_py[nvidia]'`, nvdisasm with CUDA's toolkit or, as a file, inside Triton's wheels
(3.0 and later). Takes four minutes of one core. `python -m benchmarks.gpu_counts` counts what kernels do to memory;
`python -m benchmarks.gpu_model` makes of both the tables in docs/gpus.md.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from benchmarks.gpu_recording import kernels, specialisations
from benchmarks.gpu_sass import hot_loop, instructions
from splat_py.files import write_json
from splat_py.gpu.emission import emit_cuda
from tests.cuda.nvrtc import Assembled, assemble, compile_ptx, version
from tests.emulation.kernels import Specialisation

# Turing, Ada (RTX 4090), Hopper (H100), Blackwell (RTX 50).
ARCHITECTURES = ("sm_75", "sm_89", "sm_90", "sm_120")


@dataclass
class Options:
    """Where to."""

    # Write the figures here, as JSON.
    out: Path
    # NVIDIA's disassembler.
    nvdisasm: Path


def disassemble(nvdisasm: Path, assembled: Assembled) -> str:
    """Machine code as text."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(assembled.cubin)
        return subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout


def threads_of(source: str, threads: tuple[int, int, int], ptx: str, specialisation: Specialisation) -> int:
    """Of a block. Where they follow from constants of another module, Slang does not say."""
    x, y, z = threads
    if x * y * z:
        return x * y * z
    constants = dict(specialisation.constants)
    if specialisation.module == "rasterize":
        return constants["TILE"] ** 2 // constants["PIXELS"]
    return constants["THREADS"]


def figures(specialisation: Specialisation, nvdisasm: Path) -> dict[str, Any]:
    """By architecture."""
    kernel = emit_cuda(specialisation.module, specialisation.entry, dict(specialisation.constants))
    found: dict[str, Any] = {}
    for architecture in ARCHITECTURES:
        ptx = compile_ptx(kernel.source, architecture)
        assembled = assemble(ptx, architecture)
        text = disassemble(nvdisasm, assembled)
        loop = hot_loop(text)
        found["threads"] = threads_of(kernel.source, kernel.threads, ptx, specialisation)
        numbers = assembled.figures
        found[architecture] = {
            "registers": numbers.registers,
            "spill bytes": numbers.spill_stores + numbers.spill_loads,
            "shared bytes": numbers.shared_bytes,
            "instructions": len(instructions(text)),
        }
        if loop is not None:
            found[architecture] |= {"loop": loop.counts, "loop, if blended": loop.conditional}
    return found


def main(options: Options) -> None:
    """Compile everything."""
    used, results = kernels(), {}
    for name, specialisation in specialisations().items():
        results[name] = {"used": list(used[name]), **figures(specialisation, options.nvdisasm)}
        print(name, results[name]["sm_90"], flush=True)
    write_json(options.out, {"nvrtc": version(), "kernels": results})


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
