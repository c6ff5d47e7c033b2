// Runs a kernel on the CPU: a fiber for each thread of a threadgroup, one threadgroup after the other, all on one processor
// core. A fiber runs until its thread has to meet others, in a SIMD group's operation or at a barrier; the scheduler resumes it
// once all of them are there, and reports an error if they never will be.
//
// Buffers and stacks lie between unreadable pages. A signal handler turns an access to these into an error, too.
#include "threads.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace runtime;

// --- memory between unreadable pages ---

// What an index of 32 bits reaches: signed, of 4-byte elements, in front of a buffer; unsigned, of 16-byte ones, behind it.
static const size_t guard_before = 8ul << 30, guard_behind = 64ul << 30;
// Not a number as a float, and an index out of range as an integer.
static const int poison = 0xFF;

static size_t whole_pages(size_t bytes)
{
    size_t page = size_t(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
}

// Poisoned memory that ends where the unreadable pages begin; null if there is none.
extern "C" void* guarded_allocate(size_t bytes)
{
    size_t usable = whole_pages(bytes);
    void* region = mmap(
        nullptr, guard_before + usable + guard_behind, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED)
        return nullptr;
    char* pages = static_cast<char*>(region) + guard_before;
    if (usable && mprotect(pages, usable, PROT_READ | PROT_WRITE) != 0)
        return nullptr;
    memset(pages, poison, usable);
    return pages + usable - bytes;
}

extern "C" void guarded_free(void* memory, size_t bytes)
{
    size_t usable = whole_pages(bytes);
    char* pages = static_cast<char*>(memory) + bytes - usable;
    munmap(pages - guard_before, guard_before + usable + guard_behind);
}

// The rest of a buffer's first page is no guard, but nobody may have written there.
static bool is_intact_before(const char* memory, size_t bytes)
{
    for (const char* p = memory + bytes - whole_pages(bytes); p < memory; p++)
        if (static_cast<unsigned char>(*p) != poison)
            return false;
    return true;
}

// --- what is to be run ---

enum Order
{
    forward,
    reverse,
    shuffled,
};

struct Buffer
{
    const char* name;
    char* memory;
    size_t bytes;
};

struct Dispatch
{
    Kernel kernel;
    const Buffer* buffers;
    int buffer_count;
    unsigned groups[3], threads[3];
    unsigned simd_width;
    int order;
    unsigned seed;
};

static const unsigned most_threads = 1024;
static const size_t stack_bytes = 128 << 10;
static const size_t most_threadgroup_bytes = 32 << 10;

enum State
{
    ready,
    in_exchange,
    at_barrier,
    finished,
};

struct Fiber
{
    void* stack_pointer;
    State state;
    // Where it waits: the line in the kernel's source, and a hash of the calls that led there.
    int line;
    unsigned long path;
    // What it has for others, and whom it waits for: with no operation, for its whole SIMD group.
    unsigned char value[slot_bytes];
    unsigned long mask;
    const char* operation;
    bool anywhere;
    // Who took part in its last exchange.
    unsigned long lanes;
    // How much of the threadgroup's memory it has asked for.
    size_t threadgroup_bytes;
    Thread thread;
};

struct SimdGroup
{
    // Of the last exchange of each lane: written when none can run, so that nobody still reads the one before.
    unsigned char slots[most_lanes][slot_bytes];
};

static const Dispatch* dispatch;
static Fiber fibers[most_threads];
static SimdGroup simdgroups[most_threads];
static unsigned thread_count;
static Fiber* current;
static void* scheduler_stack_pointer;
static char* stacks;
static char* threadgroup_memory;
static unsigned random_state;

static char message[512];
static bool failed;
static sigjmp_buf way_out;

#include "counts.h"

static void fail(const char* format, ...)
{
    if (failed)
        return;
    failed = true;
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
}

static unsigned random_below(unsigned end)
{
    random_state = random_state * 1664525u + 1013904223u;
    return unsigned((unsigned long)(random_state) * end >> 32);
}

// 0 … count - 1 in the order of this run.
static void arrange(unsigned* places, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        places[i] = dispatch->order == reverse ? count - 1 - i : i;
    if (dispatch->order == shuffled)
        for (unsigned i = count; i > 1; i--)
        {
            unsigned j = random_below(i), last = places[i - 1];
            places[i - 1] = places[j];
            places[j] = last;
        }
}

// --- fibers ---

// Leave this stack, remembering it in *from, and go on where `to` was left. Registers that calls preserve lie on the stacks.
extern "C" void switch_stack(void** from, void* to) __asm__("switch_stack");
#if defined(__x86_64__)
__asm__(R"(
.text
.globl switch_stack
switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
// Six registers, the address to go on at, and one word so that the stack is aligned there as after a call.
static const int saved_words = 8, saved_address = 6;
#elif defined(__aarch64__)
__asm__(R"(
.text
.p2align 2
.globl switch_stack
switch_stack:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
static const int saved_words = 20, saved_address = 11;
#else
#error "a processor whose calls preserve registers that are not known here"
#endif

static void leave(State state)
{
    current->state = state;
    switch_stack(&current->stack_pointer, scheduler_stack_pointer);
}

static void run_kernel()
{
    void* memory[64];
    for (int i = 0; i < dispatch->buffer_count; i++)
        memory[i] = dispatch->buffers[i].memory;
    dispatch->kernel(&current->thread, memory);
    leave(finished);
    abort();
}

static char* stack_of(unsigned index) { return stacks + index * (stack_bytes + whole_pages(1)) + whole_pages(1); }

static void start(Fiber& fiber)
{
    void** top = reinterpret_cast<void**>(stack_of(fiber.thread.index) + stack_bytes) - saved_words;
    memset(top, 0, saved_words * sizeof *top);
    top[saved_address] = reinterpret_cast<void*>(run_kernel);
    fiber.stack_pointer = top;
    fiber.state = ready;
    fiber.threadgroup_bytes = 0;
}

static void resume(Fiber& fiber)
{
    current = &fiber;
    switch_stack(&scheduler_stack_pointer, fiber.stack_pointer);
}

// Which calls led here: threads meet only if they come the same way. Lines would not do, as Slang wraps operations in functions.
__attribute__((always_inline)) static inline unsigned long path_to_here()
{
    unsigned long path = 0;
    char* low = stack_of(current->thread.index);
    void** frame = static_cast<void**>(__builtin_frame_address(0));
    while (reinterpret_cast<char*>(frame) >= low && reinterpret_cast<char*>(frame) < low + stack_bytes)
    {
        path = path * 1000003 + reinterpret_cast<unsigned long>(frame[1]);
        frame = static_cast<void**>(frame[0]);
    }
    return path;
}

__attribute__((always_inline)) static inline Exchange exchange(
    const void* value, unsigned bytes, unsigned long mask, const char* operation, bool anywhere, int line)
{
    Fiber* fiber = current;
    memcpy(fiber->value, value, bytes);
    fiber->mask = mask;
    fiber->operation = operation;
    fiber->anywhere = anywhere;
    exchanges++;
    fiber->line = line;
    fiber->path = path_to_here();
    leave(in_exchange);
    return {simdgroups[fiber->thread.simdgroup].slots, fiber->lanes, dispatch->simd_width, fiber->thread.lane};
}

extern "C" Exchange runtime_exchange(const void* value, unsigned bytes, int line)
{
    return exchange(value, bytes, ~0ul, nullptr, false, line);
}

extern "C" Exchange runtime_exchange_among(
    const void* value, unsigned bytes, unsigned long mask, const char* operation, bool anywhere, int line)
{
    if (!(mask >> current->thread.lane & 1))
    {
        fail("line %d: %s of the lanes %#lx by thread %u, which is not among them", line, operation, mask, current->thread.index);
        leave(finished);
    }
    return exchange(value, bytes, mask, operation, anywhere, line);
}

extern "C" void runtime_barrier(int line)
{
    current->line = line;
    current->path = path_to_here();
    barriers++;
    leave(at_barrier);
}

// Between a thread's atomic operations others may have theirs.
extern "C" void runtime_atomic()
{
    if (dispatch->order == shuffled && random_below(4) == 0)
        leave(ready);
    begin_atomic();
}

extern "C" bool runtime_fails_for_nothing() { return random_below(4) == 0; }

extern "C" unsigned runtime_simd_width() { return dispatch->simd_width; }

extern "C" void* runtime_threadgroup_variable(unsigned long bytes)
{
    size_t offset = (current->threadgroup_bytes + 15) / 16 * 16;
    current->threadgroup_bytes = offset + bytes;
    if (current->threadgroup_bytes > most_threadgroup_bytes)
    {
        fail("more than %zu bytes of threadgroup memory", most_threadgroup_bytes);
        leave(finished);
    }
    return threadgroup_memory + offset;
}

extern "C" char* runtime_threadgroup_memory() { return threadgroup_memory; }

extern "C" const Thread* runtime_thread() { return &current->thread; }

extern "C" void runtime_index_error(long index, long count, int line)
{
    fail("line %d: index %ld of %ld, thread %u", line, index, count, current->thread.index);
    leave(finished);
    abort();
}

extern "C" void runtime_lane_error(unsigned lane, unsigned long lanes, int line)
{
    fail("line %d: thread %u asks lane %u, which is not among the lanes %#lx", line, current->thread.index, lane, lanes);
    leave(finished);
    abort();
}

// --- the scheduler ---

static unsigned simdgroup_count() { return (thread_count + dispatch->simd_width - 1) / dispatch->simd_width; }

static unsigned lanes_of(unsigned simdgroup)
{
    unsigned first = simdgroup * dispatch->simd_width;
    return thread_count - first < dispatch->simd_width ? thread_count - first : dispatch->simd_width;
}

// Those who wait are `count` threads from `first` on: all of them, and at the same place?
static bool have_met(State state, unsigned first, unsigned count, const char* what)
{
    unsigned there = 0, same = 0;
    const Fiber* one = nullptr;
    for (unsigned i = first; i < first + count; i++)
        if (fibers[i].state == state)
        {
            one = one ? one : &fibers[i];
            there++;
            same += fibers[i].path == one->path && fibers[i].line == one->line;
        }
    if (there == count && same == count)
        return true;
    fail("line %d: %s that %u of %u threads reach: in divergent control flow", one->line, what, same, count);
    return false;
}

// Ends the exchange that this lane waits in, if all whom it waits for are there.
static bool end_exchange(SimdGroup& group, Fiber* lanes, unsigned count, const Fiber& one)
{
    unsigned long there = 0;
    for (unsigned i = 0; i < count; i++)
    {
        const Fiber& lane = lanes[i];
        if (!(one.mask >> i & 1) || (lane.state == finished && one.operation))
            continue;
        if (lane.state != in_exchange || lane.mask != one.mask || lane.operation != one.operation)
            return false;
        there |= 1ul << i;
    }
    for (unsigned i = 0; i < count; i++)
        if (there >> i & 1)
        {
            if (!one.anywhere && (lanes[i].path != one.path || lanes[i].line != one.line))
                return false;
            memcpy(group.slots[i], lanes[i].value, slot_bytes);
            lanes[i].lanes = there;
        }
    for (unsigned i = 0; i < count; i++)
        if (there >> i & 1)
            lanes[i].state = ready;
    return true;
}

static void fail_exchange(const Fiber* lanes, unsigned count)
{
    const Fiber* one = lanes;
    while (one->state != in_exchange)
        one++;
    if (!one->operation)
    {
        have_met(in_exchange, unsigned(lanes - fibers), count, "a SIMD group's operation");
        return;
    }
    unsigned long there = 0;
    for (unsigned i = 0; i < count; i++)
        if (lanes[i].state == in_exchange && lanes[i].mask == one->mask && lanes[i].operation == one->operation &&
            lanes[i].path == one->path)
            there |= 1ul << i;
    fail("line %d: %s of the lanes %#lx that only %#lx reach: in divergent control flow", one->line, one->operation, one->mask,
        there);
}

// Runs the lanes that can run. Whether they wait for one another afterwards, which lets them run again.
static bool run_lanes(unsigned simdgroup)
{
    unsigned first = simdgroup * dispatch->simd_width, count = lanes_of(simdgroup), places[most_lanes];
    arrange(places, count);
    bool any_ready = false, any_exchange = false;
    for (unsigned i = 0; i < count && !failed; i++)
    {
        Fiber& fiber = fibers[first + places[i]];
        if (fiber.state == ready)
            resume(fiber);
        any_ready |= fiber.state == ready;
        any_exchange |= fiber.state == in_exchange;
    }
    if (failed || any_ready || !any_exchange)
        return any_ready;
    bool ended = false;
    for (unsigned i = first; i < first + count; i++)
        if (fibers[i].state == in_exchange)
            ended |= end_exchange(simdgroups[simdgroup], fibers + first, count, fibers[i]);
    if (!ended)
        fail_exchange(fibers + first, count);
    return ended;
}

static void run_threadgroup()
{
    unsigned places[most_threads];
    for (;;)
    {
        arrange(places, simdgroup_count());
        bool again = false;
        for (unsigned i = 0; i < simdgroup_count() && !failed; i++)
            // One SIMD group far ahead of the others, or all of them in turns.
            while (run_lanes(places[i]) && !failed)
                if (dispatch->order == shuffled)
                {
                    again = true;
                    break;
                }
        if (failed)
            return;
        if (again)
            continue;
        unsigned done = 0;
        for (unsigned i = 0; i < thread_count; i++)
            done += fibers[i].state == finished;
        if (done == thread_count)
            return;
        if (!have_met(at_barrier, 0, thread_count, "a barrier"))
            return;
        for (unsigned i = 0; i < thread_count; i++)
            fibers[i].state = ready;
    }
}

static void place(Fiber& fiber, unsigned index, const unsigned* group)
{
    Thread& thread = fiber.thread;
    thread.index = index;
    thread.lane = index % dispatch->simd_width;
    thread.simdgroup = index / dispatch->simd_width;
    unsigned rest = index;
    for (int axis = 0; axis < 3; axis++)
    {
        thread.group_size[axis] = dispatch->threads[axis];
        thread.groups[axis] = dispatch->groups[axis];
        thread.group[axis] = group[axis];
        thread.in_group[axis] = rest % dispatch->threads[axis];
        thread.in_grid[axis] = group[axis] * dispatch->threads[axis] + thread.in_group[axis];
        rest /= dispatch->threads[axis];
    }
}

static void run_grid()
{
    const unsigned* groups = dispatch->groups;
    unsigned count = groups[0] * groups[1] * groups[2];
    // Static, as an access to what is not there leaves without cleaning up.
    static unsigned* places;
    places = static_cast<unsigned*>(realloc(places, count * sizeof(unsigned)));
    arrange(places, count);
    for (unsigned i = 0; i < count && !failed; i++)
    {
        unsigned group[3] = {places[i] % groups[0], places[i] / groups[0] % groups[1], places[i] / groups[0] / groups[1]};
        memset(threadgroup_memory, poison, most_threadgroup_bytes);
        for (unsigned index = 0; index < thread_count; index++)
        {
            place(fibers[index], index, group);
            start(fibers[index]);
            threads_run++;
        }
        run_threadgroup();
    }
}

// --- accesses to what is not there ---

static struct sigaction python_segv, python_bus;

static void on_fault(int signal, siginfo_t* info, void*)
{
    char* address = static_cast<char*>(info->si_addr);
    const Buffer* found = nullptr;
    for (int i = 0; i < dispatch->buffer_count; i++)
    {
        const Buffer& buffer = dispatch->buffers[i];
        if (address >= buffer.memory - guard_before && address < buffer.memory + buffer.bytes + guard_behind)
            found = &buffer;
    }
    if (found)
    {
        long offset = address - found->memory;
        fail("thread %u of threadgroup (%u, %u, %u) accesses byte %ld of buffer %s, which has %zu", current->thread.index,
            current->thread.group[0], current->thread.group[1], current->thread.group[2], offset, found->name,
            found->bytes);
    }
    else if (address >= stacks && address < stack_of(most_threads))
        fail("thread %u needs more than %zu bytes of stack", current->thread.index, stack_bytes);
    else
    {
        // Not ours: again, for whoever was responsible before.
        sigaction(SIGSEGV, &python_segv, nullptr);
        sigaction(SIGBUS, &python_bus, nullptr);
        return;
    }
    (void)signal;
    siglongjmp(way_out, 1);
}

static bool make_stacks()
{
    if (stacks)
        return true;
    size_t page = whole_pages(1), bytes = most_threads * (stack_bytes + page) + page;
    void* region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED)
        return false;
    stacks = static_cast<char*>(region);
    for (unsigned i = 0; i < most_threads; i++)
        mprotect(stack_of(i) - page, page, PROT_NONE);
    threadgroup_memory = static_cast<char*>(guarded_allocate(most_threadgroup_bytes));
    return threadgroup_memory != nullptr;
}

// Run a kernel over a grid. Null, or what went wrong.
extern "C" const char* run(const Dispatch* what)
{
    static char signal_stack[64 << 10];
    dispatch = what;
    failed = false;
    random_state = what->seed * 2654435761u + 1;
    begin_counts();
    thread_count = what->threads[0] * what->threads[1] * what->threads[2];
    if (thread_count == 0 || thread_count > most_threads || what->simd_width > most_lanes || !make_stacks())
        return "a threadgroup that is too large, or no memory";

    stack_t alternative = {}, former = {};
    alternative.ss_sp = signal_stack;
    alternative.ss_size = sizeof signal_stack;
    sigaltstack(&alternative, &former);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &python_segv);
    sigaction(SIGBUS, &action, &python_bus);
    if (sigsetjmp(way_out, 1) == 0)
        run_grid();
    sigaction(SIGSEGV, &python_segv, nullptr);
    sigaction(SIGBUS, &python_bus, nullptr);
    sigaltstack(&former, nullptr);
    end_counts();

    for (int i = 0; i < what->buffer_count; i++)
        if (!is_intact_before(what->buffers[i].memory, what->buffers[i].bytes))
            fail("something is written in front of buffer %s", what->buffers[i].name);
    return failed ? message : nullptr;
}
