"""Static figures of every kernel under consideration on NVIDIA's GPUs: registers, spills, shared memory, instructions.

    python -m benchmarks.gpu_static --out benchmarks/gpu_static.json --nvdisasm NVDISASM

NVRTC and ptxas come with `pip install 'slang-splat[dev]'`, nvdisasm with CUDA's toolkit or, as a file, inside Triton's wheels
(3.0 and later). It takes seven minutes of one core. `python -m benchmarks.gpu_counts` counts the kernels' memory accesses;
`python -m benchmarks.gpu_tables` makes the tables in docs/gpus.md from both.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from benchmarks.gpu_recording import kernels, specialisations
from benchmarks.gpu_sass import hot_loop, instructions
from splat_py.base.files import write_json
from splat_py.gpu.emission import emit
from splat_py.gpu.kernels import uses_fast_math
from tests.cuda.nvrtc import Assembled, assemble, compile_ptx, version
from tests.emulation.kernels import Specialisation

# Turing, Ada (RTX 4090), Hopper (H100), Blackwell (RTX 50).
ARCHITECTURES = ("sm_75", "sm_89", "sm_90", "sm_120")
# The architecture whose instructions are counted; those of the others differ by a tenth.
DISASSEMBLED = "sm_90"


@dataclass
class Options:
    """Options of this benchmark."""

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


def figures(specialisation: Specialisation, nvdisasm: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Figures by architecture; `before` if it is from the same source."""
    kernel = emit("cuda", specialisation.module, specialisation.entry, dict(specialisation.constants))
    is_fast = uses_fast_math(specialisation.module, specialisation.entry, dict(specialisation.constants))
    options = ("--use_fast_math",) if is_fast else ()
    digest = hashlib.sha256("".join((kernel.source, *options)).encode()).hexdigest()[:16]
    if before.get("source") == digest:
        return before
    found: dict[str, Any] = {"source": digest, "threads": math.prod(kernel.threads)}
    for architecture in ARCHITECTURES:
        assembled = assemble(compile_ptx(kernel.source, architecture, *options), architecture)
        numbers = assembled.figures
        found[architecture] = {
            "registers": numbers.registers,
            "spill bytes": numbers.spill_stores + numbers.spill_loads,
            "stack bytes": numbers.stack,
            "shared bytes": numbers.shared_bytes,
        }
        if architecture == DISASSEMBLED:
            text = disassemble(nvdisasm, assembled)
            found["instructions"] = len(instructions(text))
            loop = hot_loop(text)
            if loop is not None:
                found |= {"loop": loop.counts, "if blended": loop.conditional, "test": loop.around}
    return found


def main(options: Options) -> None:
    """Compile every kernel that has changed."""
    before = json.loads(options.out.read_text(encoding="utf-8"))["kernels"] if options.out.exists() else {}
    used, results = kernels(), {}
    for name, specialisation in specialisations().items():
        results[name] = figures(specialisation, options.nvdisasm, before.get(name, {})) | {"used": list(used[name])}
        print(name, results[name]["sm_90"], results[name].get("loop"), flush=True)
        # If an interrupt comes, kernels that are not done yet keep their old figures.
        write_json(options.out, {"nvrtc": version(), "kernels": before | results})
    write_json(options.out, {"nvrtc": version(), "kernels": results})


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
