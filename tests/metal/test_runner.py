"""The runner itself: it reports undefined behaviour in Metal, and accepts right kernels in every order."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.emulation.compiler import Compiler, KernelError
from tests.emulation.program import Buffer, Order, Schedule
from tests.emulation.statements import INDEX, ORDERS, THREADS, Runner, view
from tests.metal.program import Program

WIDTHS = (8, 16, 32, 64)

KERNEL = """
#include <metal_stdlib>
using namespace metal;
struct Params_0
{{
    uint count_0;
    float scale_0;
    int shift_0;
}};
{functions}
[[kernel]] void test(uint3 thread_0 [[thread_position_in_threadgroup]], uint3 group_0 [[threadgroup_position_in_grid]],
    uint lane_0 [[thread_index_in_simdgroup]], Params_0 constant* params_1 [[buffer(0)]],
    uint device* in_1 [[buffer(1)]], uint device* out_1 [[buffer(2)]], atomic<uint> device* sum_1 [[buffer(3)]])
{{
    threadgroup array<uint, int(70)> shared_1;
    uint i_0 = thread_0.x;
    {statement}
}}
"""


BALLOT = "ulong votes_0(bool x_0) { return uint64_t(simd_ballot(x_0)); }"
DEEP = """
uint deep_0(uint n_0)
{
    array<uint, int(100)> a_0;
    a_0[n_0 % 100U] = n_0;
    return deep_0(n_0 + 1U) + a_0[(n_0 + 1U) % 100U];
}
"""


def runner(compiler: Compiler) -> Runner:
    """A runner of single statements, each in its own kernel."""

    def source(statement: str) -> str:
        return KERNEL.format(statement=statement, functions=BALLOT + DEEP)

    return Runner(compiler, Program, source, {"count": THREADS, "scale": 0.5, "shift": -3})


@pytest.fixture(scope="module")
def run(compiler: Compiler) -> Runner:
    return runner(compiler)


# Right kernels, and the contents of `out` after they ran.
RIGHT: dict[str, tuple[str, Any]] = {
    "a barrier between writing and reading": (
        "shared_1[i_0] = in_1[i_0]; threadgroup_barrier(mem_flags::mem_threadgroup); out_1[i_0] = shared_1[69U - i_0];",
        69 - INDEX,
    ),
    "sums over a SIMD group, of which the last is a part": ("out_1[i_0] = simd_sum(1U);", np.where(INDEX < 64, 32, 6)),
    "the same function in a loop": (
        "uint n_0 = 0U; for (uint k_0 = 0U; k_0 < 5U; k_0 = k_0 + 1U) n_0 += uint(popcount(uint(votes_0(lane_0 < k_0))));"
        " out_1[i_0] = n_0;",
        10,
    ),
    "a branch that a whole SIMD group takes": (
        "uint n_0 = 0U; if (i_0 < 32U) { n_0 = simd_max(i_0); } else { n_0 = simd_min(i_0); } out_1[i_0] = n_0;",
        np.select([INDEX < 32, INDEX < 64], [31, 32], 64),
    ),
    "atomic additions": (
        "atomic_fetch_add_explicit(sum_1, i_0, memory_order_relaxed); threadgroup_barrier(mem_flags::mem_device);"
        " out_1[i_0] = atomic_load_explicit(sum_1, memory_order_relaxed);",
        69 * 35,
    ),
    "a loop around a weak compare-and-swap": (
        "uint old_0 = atomic_load_explicit(sum_1, memory_order_relaxed); for (;;) {"
        " if (atomic_compare_exchange_weak_explicit(sum_1, &old_0, old_0 + 1U, memory_order_relaxed, memory_order_relaxed))"
        " { break; } } threadgroup_barrier(mem_flags::mem_device);"
        " out_1[i_0] = atomic_load_explicit(sum_1, memory_order_relaxed);",
        THREADS,
    ),
    "uniforms": ("out_1[i_0] = params_1->count_0 + uint(params_1->scale_0 * 4.0) + uint(-params_1->shift_0);", THREADS + 5),
}


@pytest.mark.parametrize("schedule", ORDERS, ids=str)
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_pass(name: str, schedule: Schedule, run: Runner) -> None:
    statement, expected = RIGHT[name]
    np.testing.assert_array_equal(run(statement, schedule), np.broadcast_to(expected, THREADS))


# Wrong kernels, and their error, in every order of threads.
WRONG: dict[str, tuple[str, str]] = {
    "a SIMD group's operation for some lanes": (
        "if (lane_0 < 5U) { out_1[i_0] = simd_sum(i_0); }",
        r"line \d+: a SIMD group's operation that 5 of \d+ threads reach",
    ),
    "the same one, called from two branches": (
        "ulong n_0; if ((i_0 & 1U) == 0U) { n_0 = votes_0(true); } else { n_0 = votes_0(i_0 > 9U); } out_1[i_0] = uint(n_0);",
        r"a SIMD group's operation that \d+ of \d+ threads reach",
    ),
    "a loop that some lanes leave early": (
        "uint n_0 = 0U; for (uint k_0 = 0U; k_0 < i_0; k_0 = k_0 + 1U) { n_0 = simd_max(n_0 + k_0); } out_1[i_0] = n_0;",
        "a SIMD group's operation",
    ),
    "a SIMD group's operation after an early return": (
        "if (i_0 == 3U) { return; } out_1[i_0] = simd_sum(i_0);",
        "31 of 32 threads",
    ),
    "a barrier after an early return": (
        "if (i_0 >= params_1->count_0 - 1U) { return; } threadgroup_barrier(mem_flags::mem_threadgroup); out_1[i_0] = 0U;",
        "a barrier that 69 of 70 threads reach",
    ),
    "a barrier in each of two branches": (
        "if (i_0 < 32U) { threadgroup_barrier(mem_flags::mem_threadgroup); }"
        " else { threadgroup_barrier(mem_flags::mem_threadgroup); } out_1[i_0] = 0U;",
        "a barrier that .. of 70 threads",
    ),
    "a lane that is not there": ("out_1[i_0] = simd_shuffle(i_0, ushort(lane_0 ^ 8U));", "asks lane .*, which is not among"),
    "a lane beyond the SIMD group": ("out_1[i_0] = simd_shuffle(i_0, ushort(lane_0 + 1U));", "asks lane (32|6),"),
    "threadgroup memory overrun": ("shared_1[i_0 + 1U] = 0U; out_1[i_0] = 0U;", "index 70 of 70"),
    "an index below 0": ("int k_0 = int(i_0) - 1; shared_1[k_0] = 0U; out_1[i_0] = 0U;", "index -1 of 70"),
    "a buffer overrun": ("out_1[i_0 + 1U] = 0U;", r"accesses byte 280 of buffer out, which has 280"),
    "a read behind a buffer": ("out_1[i_0] = in_1[i_0 * 1000U + 70U];", r"accesses byte \d+ of buffer in, which has 280"),
    "an unsigned index that wraps": ("out_1[i_0 - 1U] = 0U;", r"accesses byte 17179869180 of buffer out"),
    "a page in front of a buffer": ("out_1[int(i_0) - 4096] = 0U;", r"accesses byte -16\d+ of buffer out"),
    "a write just in front of a buffer": ("out_1[int(i_0) - 70] = 0U;", "something is written in front of buffer out"),
    "a uniform block overrun": ("out_1[i_0] = params_1[1].count_0;", "accesses byte 12 of buffer params"),
    "no end": ("out_1[i_0] = deep_0(i_0);", "bytes of stack"),
}


@pytest.mark.parametrize("schedule", ORDERS[:3], ids=str)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_caught(name: str, schedule: Schedule, run: Runner) -> None:
    statement, complaint = WRONG[name]
    with pytest.raises(KernelError, match=complaint):
        run(statement, schedule)
    # The next kernel runs as usual.
    np.testing.assert_array_equal(run("out_1[i_0] = simd_max(in_1[i_0]);", schedule)[:32], 31)


# Wrong kernels that Metal accepts: some order, or the first one, must give another result than the right kernel's.
SILENT: dict[str, tuple[str, Any]] = {
    "a missing barrier": ("shared_1[i_0] = in_1[i_0]; out_1[i_0] = shared_1[69U - i_0];", 69 - INDEX),
    "a weak compare-and-swap taken for a strong one": (
        "uint old_0 = 0U; atomic_compare_exchange_weak_explicit(sum_1, &old_0, 1U, memory_order_relaxed, memory_order_relaxed);"
        " out_1[i_0] = old_0;",
        1,
    ),
    "reading and writing where one atomic operation is due": (
        "uint n_0 = atomic_load_explicit(sum_1, memory_order_relaxed);"
        " atomic_store_explicit(sum_1, n_0 + 1U, memory_order_relaxed); threadgroup_barrier(mem_flags::mem_device);"
        " out_1[i_0] = atomic_load_explicit(sum_1, memory_order_relaxed);",
        THREADS,
    ),
    "threadgroup memory that is never written": ("out_1[i_0] = shared_1[i_0];", 0),
    "a variable that is never written": ("uint n_0; if (i_0 > 99U) { n_0 = 1U; } out_1[i_0] = n_0 & 1U;", 1),
}


@pytest.mark.parametrize("name", SILENT)
def test_silent_faults_show(name: str, run: Runner) -> None:
    statement, expected = SILENT[name]
    results = [run(statement, schedule) for schedule in ORDERS]
    assert any((result != np.broadcast_to(expected, THREADS)).any() for result in results)


def test_memory_is_poisoned_before_every_threadgroup(run: Runner) -> None:
    """The second threadgroup sees nothing of the first."""
    statement = "if (group_0.x == 0U) { shared_1[i_0] = 7U; } out_1[i_0] = shared_1[i_0];"
    assert (run(statement, groups=2) == 0xFFFF_FFFF).all()


def test_not_a_number_is_what_new_memory_holds(run: Runner) -> None:
    out = run("if (i_0 == 0U) { out_1[0] = as_type<uint>(1.0); }")
    assert out[0] == 0x3F80_0000 and np.isnan(out[1:].view(np.float32)).all()


def test_buffers_of_nothing_cannot_be_read(run: Runner) -> None:
    with pytest.raises(KernelError, match="buffer in, which has 0"):
        run("out_1[i_0] = in_1[0];", shapes={"in": 0})


def test_what_is_not_bound(compiler: Compiler) -> None:
    """The kernel must not read an unbound buffer, and an unbound uniform is not zero."""
    source = KERNEL.format(statement="out_1[0] = params_1->count_0; if (out_1[0] == 1U) { out_1[1] = in_1[0]; }", functions="")
    program = Program(compiler, source, "test", (1, 1, 1))
    out = Buffer("out", compiler.runtime.guarded_allocate(8), 8)
    program.run((1, 1, 1), {"out": out}, {}, Schedule())
    assert view(out)[0] == 0xFFFF_FFFF
    with pytest.raises(KernelError, match=r"buffer in \(not bound\)"):
        program.run((1, 1, 1), {"out": out}, {"count": 1}, Schedule())
    compiler.runtime.guarded_free(out.address, out.nbytes)


OPERATIONS = {
    "simd_sum(x)": lambda x, lane: np.full_like(x, x.sum()),
    "simd_min(x)": lambda x, lane: np.full_like(x, x.min()),
    "simd_max(x)": lambda x, lane: np.full_like(x, x.max()),
    "simd_prefix_exclusive_sum(x)": lambda x, lane: np.cumsum(x) - x,
    "simd_prefix_inclusive_sum(x)": lambda x, lane: np.cumsum(x),
    "simd_broadcast_first(x)": lambda x, lane: np.full_like(x, x[0]),
    "simd_broadcast(x, ushort(3))": lambda x, lane: np.full_like(x, x[3]),
    "simd_shuffle(x, ushort(lane_0 / 2U))": lambda x, lane: x[lane // 2],
    "simd_shuffle_xor(x, ushort(1))": lambda x, lane: x[lane ^ 1],
    "simd_shuffle_up(x, ushort(2))": lambda x, lane: x[np.where(lane < 2, lane, lane - 2)],
    "uint(simd_is_first())": lambda x, lane: lane == 0,
    "uint(simd_any(x == 4U))": lambda x, lane: np.full_like(x, (x == 4).any()),
    "uint(simd_all(x < 9000U))": lambda x, lane: np.full_like(x, (x < 9000).all()),
    "uint(uint64_t(simd_ballot((x & 1U) == 1U)) >> 32U)": lambda x, lane: np.full_like(x, _ballot(x & 1) >> 32),
    "uint(uint64_t(simd_ballot(x > 5000U)))": lambda x, lane: np.full_like(x, _ballot(x > 5000) & 0xFFFF_FFFF),
}


def _ballot(votes: NDArray) -> int:
    return sum(1 << lane for lane, vote in enumerate(votes) if vote)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_of_a_simd_group(operation: str, run: Runner) -> None:
    statement = f"uint x = i_0 * 2654435761U >> 7U & 16383U; out_1[i_0] = {operation};"
    x = (INDEX * np.uint32(2654435761) >> np.uint32(7) & np.uint32(0x3FFF)).astype(np.int64)
    for width, order in product(WIDTHS, (Order.FORWARD, Order.SHUFFLED)):
        parts = [x[i : i + width] for i in range(0, THREADS, width)]
        expected = np.concatenate([OPERATIONS[operation](part, np.arange(len(part))) for part in parts])
        np.testing.assert_array_equal(run(statement, Schedule(width, order)), expected, err_msg=f"width {width}")
