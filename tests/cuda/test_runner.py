"""The runner itself: it reports undefined behaviour in CUDA, and accepts right kernels in every order.

tests/metal/test_runner.py tests the part that it shares with Metal's.
"""

from typing import Any

import numpy as np
import pytest

from splat_py.gpu.emission import emit
from tests.cuda.program import PRELUDE_END, Program
from tests.emulation.compiler import Compiler, KernelError
from tests.emulation.statements import INDEX, ORDERS, THREADS, Runner

KERNEL = """
struct Params_0
{{
    uint count_0;
    float scale_0;
}};

struct GlobalParams_0
{{
    Params_0* params_0;
    StructuredBuffer<uint> in_0;
    RWStructuredBuffer<uint> out_0;
    uint * sum_0;
}};

extern "C" __constant__ GlobalParams_0 SLANG_globalParams;
#define globalParams_0 (&SLANG_globalParams)
__device__ __shared__ FixedArray<uint, 70>  shared_0;
__device__ __shared__ uint total_0;

extern "C" __global__ void test()
{{
    uint i_0 = threadIdx.x, lane_0 = _getLaneId();
    uint * out_1 = &(globalParams_0->out_0)[0];
    uint * sum_1 = globalParams_0->sum_0;
    {statement}
}}
"""


@pytest.fixture(scope="module")
def run(compiler: Compiler) -> Runner:
    emitted = emit("cuda", "prefix_sum", "sumBlocks", {}).source
    beginning = PRELUDE_END.search(emitted)
    assert beginning
    prelude = emitted[: beginning.start()]
    return Runner(
        compiler, Program, lambda statement: prelude + KERNEL.format(statement=statement), {"count": THREADS, "scale": 0.5}
    )


LANES = np.where(INDEX < 64, 32, 6)
READ = "(globalParams_0->in_0)[i_0]"
# Right kernels, and the contents of `out` after they ran.
RIGHT: dict[str, tuple[str, Any]] = {
    "a barrier between writing and reading": (
        f"shared_0[i_0] = {READ}; __syncthreads(); out_1[i_0] = shared_0[69U - i_0];",
        69 - INDEX,
    ),
    "who is there, in a warp that is not whole": ("out_1[i_0] = __popc(__ballot_sync(4294967295U, true));", LANES),
    "the prelude's sums": ("out_1[i_0] = _waveSum(__ballot_sync(~0U, true), 1U);", LANES),
    "the prelude's sums of floats": ("out_1[i_0] = uint(_waveSum(__ballot_sync(~0U, true), 0.5f) * 2.0f);", LANES),
    "the prelude's largest": (
        "out_1[i_0] = uint(_waveMax(__ballot_sync(~0U, true), float(i_0)));",
        np.select([INDEX < 32, INDEX < 64], [31, 63], 69),
    ),
    "both branches ask who comes out of them": (
        "uint mask = __ballot_sync(~0U, true), after; if (lane_0 < 3U) { after = __ballot_sync(mask, true); }"
        " else { after = __ballot_sync(mask, true); } out_1[i_0] = __popc(after);",
        LANES,
    ),
    "some lanes among themselves": (
        "uint mask = __ballot_sync(~0U, (lane_0 & 1U) == 0U); if ((lane_0 & 1U) == 0U) { out_1[i_0] = _waveSum(mask, 1U); }"
        " else { out_1[i_0] = 0U; }",
        np.where(INDEX % 2 == 0, LANES // 2, 0),
    ),
    "lanes that have ended": (
        "if (lane_0 >= 4U) { out_1[i_0] = 9U; return; } out_1[i_0] = __popc(__ballot_sync(~0U, true));",
        np.where(INDEX % 32 < 4, 4, 9),
    ),
    "a lane's number": (
        "out_1[i_0] = __shfl_sync(__ballot_sync(~0U, true), i_0, int(lane_0 / 2U));",
        INDEX // 32 * 32 + INDEX % 32 // 2,
    ),
    "atomic additions": ("atomicAdd(sum_1, i_0); __syncthreads(); out_1[i_0] = *sum_1;", 69 * 35),
    "one variable of a block": (
        "if (i_0 == 0U) { total_0 = 0U; } __syncthreads(); atomicMax(&total_0, i_0); __syncthreads(); out_1[i_0] = total_0;",
        69,
    ),
    "a loop around a compare-and-swap": (
        "uint old = *sum_1; for (;;) { uint before = atomicCAS(sum_1, old, old + 1U); if (before == old) { break; }"
        " old = before; } __syncthreads(); out_1[i_0] = *sum_1;",
        THREADS,
    ),
    "uniforms": (
        "out_1[i_0] = globalParams_0->params_0->count_0 + uint(globalParams_0->params_0->scale_0 * 4.0f);",
        THREADS + 2,
    ),
    "counts of buffers": ("out_1[i_0] = uint((globalParams_0->in_0).count);", THREADS),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_pass(name: str, run: Runner) -> None:
    statement, expected = RIGHT[name]
    for schedule in ORDERS:
        np.testing.assert_array_equal(run(statement, schedule), np.broadcast_to(expected, THREADS))


# Wrong kernels, and their error, in every order of threads.
WRONG: dict[str, tuple[str, str]] = {
    "a mask that names lanes which are elsewhere": (
        "if (lane_0 < 5U) { out_1[i_0] = __any_sync(~0U, true); } else { __syncthreads(); }",
        "a question to any of the lanes 0xffffffff that only 0x1f reach",
    ),
    "a mask without the lane itself": (
        "out_1[i_0] = __any_sync(1U, true);",
        r"of the lanes 0x1 by thread \d+, which is not among",
    ),
    "lanes with different masks": (
        "out_1[i_0] = __shfl_sync((lane_0 & 1U) == 0U ? ~0U : 0xAAAAAAAAU, i_0, 1);",
        "asks lane 1, which is not among",
    ),
    "a value from two branches": (
        "uint n; if (lane_0 < 5U) { n = __shfl_sync(~0U, i_0, 0); } else { n = __shfl_sync(~0U, i_0 + 1U, 0); }"
        " out_1[i_0] = n;",
        "a shuffle of the lanes .*: in divergent control flow",
    ),
    "a lane that is not there": ("out_1[i_0] = __shfl_sync(~0U, i_0, int(lane_0 ^ 8U));", "asks lane .*, which is not among"),
    "a lane that has ended": (
        "if (lane_0 == 3U) { return; } out_1[i_0] = __shfl_sync(~0U, i_0, 3);",
        "asks lane 3, which is not among",
    ),
    "a sum over lanes that are not there": ("out_1[i_0] = uint(_waveSum(~0, float(i_0)));", "asks lane .*, which is not among"),
    "a loop that some lanes leave early": (
        "uint n = 0U; for (uint k = 0U; k < lane_0; k++) { n += __shfl_sync(~0U, k, 31); } out_1[i_0] = n;",
        "asks lane 31|a shuffle of the lanes",
    ),
    "a barrier after an early return": (
        "if (i_0 >= 69U) { return; } __syncthreads(); out_1[i_0] = 0U;",
        "a barrier that 69 of 70",
    ),
    "reading behind a buffer": ("out_1[i_0] = (globalParams_0->in_0)[i_0 + 1U];", "byte 280 of buffer in, which has 280"),
    "writing behind a buffer": ("out_1[i_0 + 1U] = 0U;", "byte 280 of buffer out, which has 280"),
    "an index beyond an array": ("shared_0[i_0 + 1U] = 0U; out_1[i_0] = 0U;", "index 70 of 70"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_told(name: str, run: Runner) -> None:
    statement, message = WRONG[name]
    for schedule in ORDERS[:3]:
        with pytest.raises(KernelError, match=message):
            run(statement, schedule)


def test_what_is_read_through_a_cache_is_not_written(run: Runner) -> None:
    statement = f"out_1[i_0] = {READ} + 1U;"
    np.testing.assert_array_equal(run(statement), INDEX + 1)
    with pytest.raises(KernelError, match="out is read only, and out is the same memory"):
        run(statement, alias=True)


def test_shared_memory_that_nobody_has_written(run: Runner) -> None:
    assert (run("out_1[i_0] = shared_0[i_0];") == 0xFFFF_FFFF).all()


def test_a_missing_barrier_shows(run: Runner) -> None:
    results = [run(f"shared_0[i_0] = {READ}; out_1[i_0] = shared_0[69U - i_0];", schedule) for schedule in ORDERS]
    assert any((result != 69 - INDEX).any() for result in results)
