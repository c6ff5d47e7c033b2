// What a kernel's library and the library that runs it know of each other.
#pragma once

namespace runtime
{
// One GPU thread's place in the grid.
struct Thread
{
    unsigned in_grid[3];
    unsigned in_group[3];
    unsigned group[3];
    unsigned group_size[3];
    unsigned groups[3];
    // In its threadgroup, in its SIMD group, and of the latter in the threadgroup.
    unsigned index, lane, simdgroup;
};

typedef void (*Kernel)(const Thread* thread, void* const* buffers);

// As many lanes as a SIMD group can have, and as many bytes as they can exchange.
constexpr unsigned most_lanes = 64, slot_bytes = 16;

// What the lanes of a SIMD group told each other: a slot each, and a bit for each lane that took part.
struct Exchange
{
    const unsigned char (*slots)[slot_bytes];
    unsigned long lanes;
    unsigned width, lane;
};
} // namespace runtime

extern "C"
{
    // Each of these may hand the processor to another of the GPU's threads. `line` is that of the Metal source.
    __attribute__((nomerge)) runtime::Exchange runtime_exchange(const void* value, unsigned bytes, int line);
    // The same among the lanes of a mask that have not ended: all have to ask for the same operation, and from the same place or
    // from `anywhere`.
    __attribute__((nomerge)) runtime::Exchange runtime_exchange_among(
        const void* value, unsigned bytes, unsigned long mask, const char* operation, bool anywhere, int line);
    __attribute__((nomerge)) void runtime_barrier(int line);
    void runtime_atomic();
    // Only of kernels whose work is counted (counts.h).
    void runtime_count_exponential();

    // This threadgroup's variable: the same for all of its threads, which ask for all variables in the same order.
    void* runtime_threadgroup_variable(unsigned long bytes);
    // The same memory, as a whole.
    char* runtime_threadgroup_memory();
    // Who asks.
    const runtime::Thread* runtime_thread();
    // Whether a weak compare-and-swap shall fail although it need not.
    bool runtime_fails_for_nothing();
    unsigned runtime_simd_width();
    [[noreturn]] void runtime_index_error(long index, long count, int line);
    [[noreturn]] void runtime_lane_error(unsigned lane, unsigned long lanes, int line);
}
