"""Every kernel's CUDA source, compiled by NVRTC and assembled by ptxas; and mistakes that these must reject.

One specialisation of each, for an H100; in `make full` also for two other architectures if the kernel takes most of a frame.
"""

import hashlib

import pytest

from splat_py.gpu.emission import emit
from tests.cuda.nvrtc import ARCHITECTURES, NvidiaError, assemble, compile_ptx, skip_without_compilers, version
from tests.emulation.kernels import by_kernel
from tests.emulation.programs import Programs

HEAVY = {"rasterizeForward", "rasterizeBackward", "projectForward", "projectBackward", "shadeForward", "shadeBackward"}
HEAVY |= {"volumeForward", "volumeBackward"}
# All kernels that ship, except those of CPU drivers.
BY_KERNEL = {kernel: found for kernel, found in by_kernel().items() if not kernel[0].startswith("cpu/")}
CASES = [(sm, *kernel) for sm in ARCHITECTURES for kernel in BY_KERNEL if sm == "sm_90" or kernel[1] in HEAVY]
# Without a mask of the participating lanes, Slang votes after every branch: most of a loop. `parallel/wave.slang` passes the
# mask, and a few votes are still needed.
MOST_VOTES = 20


@pytest.fixture(autouse=True)
def compilers() -> None:
    skip_without_compilers()


@pytest.mark.parametrize(("architecture", "module", "entry"), CASES, ids=lambda name: name)
def test_kernel(architecture: str, module: str, entry: str, programs: Programs, pytestconfig: pytest.Config) -> None:
    """The kernel spills no registers."""
    specialisation = BY_KERNEL[module, entry][0]
    source = programs.kernel(specialisation).source
    cache, digest = pytestconfig.cache, hashlib.sha256(f"{version()} {source}".encode()).hexdigest()[:32]
    assert cache is not None
    if cache.get(f"cuda/{digest}-{architecture}", None) is not None:
        return
    ptx = compile_ptx(source, architecture)
    assert ptx.count("vote.sync") <= MOST_VOTES, f"{specialisation} votes after every branch"
    figures = assemble(ptx, architecture).figures
    assert figures.spill_loads == figures.spill_stores == 0, f"{specialisation}: {figures}"
    cache.set(f"cuda/{digest}-{architecture}", figures._asdict())


KERNEL = """
extern "C" __global__ void test(float* values)
{{
    __shared__ float shared[256];
    shared[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    {statement}
    values[threadIdx.x] = shared[255 - threadIdx.x];
}}
"""


def test_figures() -> None:
    figures = assemble(compile_ptx(KERNEL.format(statement=""), "sm_90"), "sm_90").figures
    assert figures.shared_bytes == 1024 and figures.barriers == 1 and 0 < figures.registers < 32
    assert figures.stack == figures.spill_loads == 0


@pytest.mark.parametrize("statement", ["undeclared();", "float2 v = values[0];", "__ballot_sync(true);"])
def test_wrong_source_is_rejected(statement: str) -> None:
    with pytest.raises(NvidiaError, match="error"):
        compile_ptx(KERNEL.format(statement=statement), "sm_90")


def test_code_that_cannot_be_assembled_is_rejected() -> None:
    with pytest.raises(NvidiaError, match="nowhere"):
        assemble(compile_ptx(KERNEL.format(statement=""), "sm_90").replace("bar.sync", "nowhere.sync"), "sm_90")


def test_constants_arrive() -> None:
    narrow, wide = (emit("cuda", "radix_sort", "scatter", {"TILE_BITS": 2, "THREADS": n, "ITEMS": 4}) for n in (32, 64))
    assert narrow.threads == (32, 1, 1) and wide.threads == (64, 1, 1)
    shared = [assemble(compile_ptx(kernel.source, "sm_90"), "sm_90").figures.shared_bytes for kernel in (narrow, wide)]
    assert shared == [4 * (256 + (4 + 2 * 4) * n) for n in (32, 64)]
