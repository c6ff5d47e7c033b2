// What a kernel does to memory, counted: for kernels that are compiled with `tests/emulation/counts.py`'s flags, by which clang calls
// these functions before every load and store. Only what lies in a bound buffer or in the workgroup's memory counts: variables
// on a thread's stack are registers of a GPU. threads.cpp includes this where a dispatch and its threads are known.
#pragma once

// Of a buffer, or of the workgroup's memory: how often, and how many bytes.
struct Traffic
{
    unsigned long loads, loaded, stores, stored, atomics;
};

static const int most_counted = 64;
// The last is of the workgroup's memory.
static Traffic traffic[most_counted + 1];
// By threads: of exponentials, of operations of their SIMD group, of barriers; and those that have run.
static unsigned long exponentials, exchanges, barriers, threads_run;
static bool counting;
// Between an atomic operation's beginning and its store; what it has loaded.
static bool in_atomic;
static const void* atomic_object;

static Traffic* traffic_of(const char* address)
{
    if (address >= stacks && address < stacks + most_threads * (stack_bytes + whole_pages(1)))
        return nullptr;
    if (address >= threadgroup_memory && address < threadgroup_memory + most_threadgroup_bytes)
        return &traffic[most_counted];
    for (int i = 0; i < dispatch->buffer_count && i < most_counted; i++)
        if (address >= dispatch->buffers[i].memory && address < dispatch->buffers[i].memory + dispatch->buffers[i].bytes)
            return &traffic[i];
    return nullptr;
}

static void count_load(const void* address, unsigned bytes)
{
    Traffic* t = traffic_of(static_cast<const char*>(address));
    if (!t)
        return;
    // An atomic operation's own load goes with its store.
    if (in_atomic)
    {
        in_atomic = false;
        atomic_object = address;
        return;
    }
    t->loads++;
    t->loaded += bytes;
}

static void count_store(const void* address, unsigned bytes)
{
    Traffic* t = traffic_of(static_cast<const char*>(address));
    if (!t)
        return;
    if (in_atomic || address == atomic_object)
    {
        in_atomic = false;
        atomic_object = nullptr;
        t->atomics++;
        return;
    }
    t->stores++;
    t->stored += bytes;
}

static void begin_atomic()
{
    in_atomic = true;
    atomic_object = nullptr;
}

#define COUNTED(BYTES) \
    extern "C" void __sanitizer_cov_load##BYTES(void* address) { count_load(address, BYTES); } \
    extern "C" void __sanitizer_cov_store##BYTES(void* address) { count_store(address, BYTES); }
COUNTED(1)
COUNTED(2)
COUNTED(4)
COUNTED(8)
COUNTED(16)
// clang wants to tell of functions, too.
extern "C" void __sanitizer_cov_trace_pc_guard(unsigned*) {}
extern "C" void __sanitizer_cov_trace_pc_guard_init(unsigned*, unsigned*) { counting = true; }
extern "C" void runtime_count_exponential() { exponentials++; }

static void begin_counts()
{
    memset(traffic, 0, sizeof traffic);
    exponentials = exchanges = barriers = threads_run = 0;
    in_atomic = false;
    atomic_object = nullptr;
}

// A line for each buffer, `name loads bytes stores bytes atomics`, and one for the rest.
static char counts_text[4096];
extern "C" const char* counts() { return counts_text; }

static void end_counts()
{
    int at = 0;
    for (int i = 0; counting && i <= most_counted; i++)
        if (i < dispatch->buffer_count || i == most_counted)
        {
            const Traffic& t = traffic[i];
            const char* name = i == most_counted ? "workgroup" : dispatch->buffers[i].name;
            at += snprintf(counts_text + at, sizeof counts_text - size_t(at), "%s %lu %lu %lu %lu %lu\n", name, t.loads, t.loaded,
                t.stores, t.stored, t.atomics);
        }
    snprintf(counts_text + at, sizeof counts_text - size_t(at), "rest %lu %lu %lu %lu %lu\n", exponentials, exchanges, barriers,
        threads_run, 0ul);
}
