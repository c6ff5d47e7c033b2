"""The counts of `tests/emulation/counts.py`, for a kernel that can be counted by hand and for one of the library's."""

import numpy as np
import pytest

from splat_py.gpu.sorting import PrefixSum
from tests.emulation.compiler import Compiler
from tests.emulation.counts import CountingPrograms, Counts, Traffic, counting, last_counts
from tests.emulation.program import Schedule
from tests.metal.device import MetalOnCpu
from tests.metal.program import METAL
from tests.metal.test_runner import runner

# Vectors in a buffer are packed.
PACKED = "packed_uint4 device* p_0 = (packed_uint4 device*)out_1; if (i_0 < 8U) { *(p_0 + i_0) = packed_uint4(uint4(i_0)); }"
# Each of 70 threads loads 4 bytes twice, stores 4 in the workgroup's memory and loads 4 others from there; every second one
# adds atomically. The variables are registers.
STATEMENT = """
    shared_1[i_0] = in_1[i_0] + in_1[0];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint s_0 = simd_sum(i_0);
    float e_0 = exp(float(shared_1[69U - i_0]));
    if ((i_0 & 1U) == 0U) { atomic_fetch_add_explicit(sum_1, 1U, memory_order_relaxed); }
    out_1[i_0] = uint(e_0) + s_0;
"""


@pytest.fixture(scope="module")
def counting_compiler(clang: str, request: pytest.FixtureRequest) -> Compiler:
    """Share the folder of the others: a process has one runtime."""
    return Compiler(clang, request.config.cache.mkdir("metal"), counting(METAL))


def test_a_kernel_counted_by_hand(counting_compiler: Compiler) -> None:
    runner(counting_compiler)(STATEMENT, groups=3)
    counts = Counts()
    counts.add(last_counts(counting_compiler))
    threads = 3 * 70
    assert counts.threads == threads
    assert counts.buffers["in"] == Traffic(loads=2 * threads, loaded_bytes=8 * threads)
    assert counts.buffers["out"] == Traffic(stores=threads, stored_bytes=4 * threads)
    assert counts.buffers["sum"] == Traffic(atomics=threads // 2)
    assert counts.workgroup == Traffic(threads, 4 * threads, threads, 4 * threads)
    assert (counts.exponentials, counts.barriers, counts.wave_operations) == (threads, threads, threads)


def test_packed_vectors(counting_compiler: Compiler) -> None:
    runner(counting_compiler)(PACKED)
    counts = Counts()
    counts.add(last_counts(counting_compiler))
    assert counts.buffers["out"].stored_bytes == 8 * 16


def test_a_prefix_sum(counting_compiler: Compiler) -> None:
    programs = CountingPrograms(counting_compiler)
    device = MetalOnCpu(programs, schedule=Schedule())
    prefix_sum = PrefixSum(device, 9000)
    with device.recording() as recorder:
        prefix_sum.record(recorder, device.memory.array(np.ones(9000, np.uint32)))
    by_entry = {kernel.entry: counts for kernel, counts in programs.counts.items()}
    assert by_entry["sumBlocks"].buffers["values"] == Traffic(loads=9000, loaded_bytes=36_000)
    # The total is one of 9001 offsets.
    assert by_entry["scanBlocks"].buffers["sums_offsets"].stored_bytes == 4 * 9001


def test_a_buffer_that_is_not_bound() -> None:
    counts = Counts()
    counts.add("in (not bound) 1 4 0 0 0\nrest 1 2 3 4 0")
    assert counts.buffers["in (not bound)"] == Traffic(loads=1, loaded_bytes=4)
    assert counts.threads == 4
