// What NVRTC gives to Slang's CUDA source without being asked, for clang as C++: vectors, mathematics, a thread's place, a warp's
// operations and atomics. Slang's own prelude follows this header.
//
// A warp's and a block's operations are in threads.cpp; this file says what they mean to one thread. Needs no other header, not
// even the C library's.
#pragma once
#include "threads.h"

#define __CUDACC_RTC__ 1
// Integers' sums over a warp are one instruction from sm_80 on.
#define __CUDA_ARCH__ 900
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __inline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define CUDART_INF_F __builtin_inff()

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;

// --- vectors: as aligned as NVIDIA's ---

#define VECTOR_TYPES(T, name, align2, align4) \
    struct name##1 \
    { \
        T x; \
    }; \
    struct __align__(align2) name##2 \
    { \
        T x, y; \
    }; \
    struct name##3 \
    { \
        T x, y, z; \
    }; \
    struct __align__(align4) name##4 \
    { \
        T x, y, z, w; \
    };
VECTOR_TYPES(signed char, char, 2, 4)
VECTOR_TYPES(unsigned char, uchar, 2, 4)
VECTOR_TYPES(short, short, 4, 8)
VECTOR_TYPES(unsigned short, ushort, 4, 8)
VECTOR_TYPES(int, int, 8, 16)
VECTOR_TYPES(unsigned int, uint, 8, 16)
VECTOR_TYPES(float, float, 8, 16)
VECTOR_TYPES(double, double, 16, 16)
VECTOR_TYPES(long long, longlong, 16, 16)
VECTOR_TYPES(unsigned long long, ulonglong, 16, 16)

struct dim3
{
    unsigned int x, y, z;
};

// Textures and surfaces, of which the prelude speaks and no kernel, some of them in assembly.
void runtime_no_assembly();
#define asm(...) runtime_no_assembly()
typedef unsigned long long cudaTextureObject_t, cudaSurfaceObject_t;
enum cudaSurfaceBoundaryMode
{
    cudaBoundaryModeZero,
    cudaBoundaryModeClamp,
    cudaBoundaryModeTrap,
};

// Read-only memory: that it is read-only is checked where buffers are bound.
template <class T>
__forceinline__ T __ldg(const T* p)
{
    return *p;
}

// --- mathematics ---

#define FUNCTION_1(name) \
    __forceinline__ float name##f(float x) { return __builtin_##name##f(x); } \
    __forceinline__ double name(double x) { return __builtin_##name(x); } \
    __forceinline__ float name(float x) { return __builtin_##name##f(x); }
#define FUNCTION_2(name) \
    __forceinline__ float name##f(float x, float y) { return __builtin_##name##f(x, y); } \
    __forceinline__ double name(double x, double y) { return __builtin_##name(x, y); } \
    __forceinline__ float name(float x, float y) { return __builtin_##name##f(x, y); }
FUNCTION_1(ceil)
FUNCTION_1(floor)
FUNCTION_1(round)
FUNCTION_1(rint)
FUNCTION_1(sin)
FUNCTION_1(cos)
FUNCTION_1(tan)
FUNCTION_1(asin)
FUNCTION_1(acos)
FUNCTION_1(atan)
FUNCTION_1(sinh)
FUNCTION_1(cosh)
FUNCTION_1(tanh)
FUNCTION_1(asinh)
FUNCTION_1(acosh)
FUNCTION_1(atanh)
FUNCTION_1(log)
FUNCTION_1(log2)
FUNCTION_1(log10)
FUNCTION_1(exp)
FUNCTION_1(exp2)
FUNCTION_1(fabs)
FUNCTION_1(trunc)
FUNCTION_1(sqrt)
FUNCTION_2(fmin)
FUNCTION_2(fmax)
FUNCTION_2(pow)
FUNCTION_2(fmod)
FUNCTION_2(remainder)
FUNCTION_2(atan2)
#undef FUNCTION_1
#undef FUNCTION_2
__forceinline__ float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
__forceinline__ double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
__forceinline__ float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
__forceinline__ double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
__forceinline__ float frexpf(float x, int* e) { return __builtin_frexpf(x, e); }
__forceinline__ double frexp(double x, int* e) { return __builtin_frexp(x, e); }
__forceinline__ float modff(float x, float* i) { return __builtin_modff(x, i); }
__forceinline__ double modf(double x, double* i) { return __builtin_modf(x, i); }
__forceinline__ void sincosf(float x, float* s, float* c) { *s = __builtin_sinf(x), *c = __builtin_cosf(x); }
__forceinline__ void sincos(double x, double* s, double* c) { *s = __builtin_sin(x), *c = __builtin_cos(x); }
template <class T>
__forceinline__ bool isnan(T x)
{
    return __builtin_isnan(x);
}
template <class T>
__forceinline__ bool isinf(T x)
{
    return __builtin_isinf(x);
}
template <class T>
__forceinline__ bool isfinite(T x)
{
    return __builtin_isfinite(x);
}
__forceinline__ int abs(int x) { return x < 0 ? -x : x; }

__forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__forceinline__ int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__forceinline__ int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
__forceinline__ int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
__forceinline__ int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
__forceinline__ int __ffsll(unsigned long long x) { return __builtin_ffsll(x); }
__forceinline__ unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
__forceinline__ unsigned long long __brevll(unsigned long long x) { return __builtin_bitreverse64(x); }
__forceinline__ unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
__forceinline__ int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
__forceinline__ float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
__forceinline__ float __int_as_float(int x) { return __builtin_bit_cast(float, x); }

// --- places ---

__forceinline__ uint3 three_of(const unsigned* values) { return {values[0], values[1], values[2]}; }
#define threadIdx (three_of(runtime_thread()->in_group))
#define blockIdx (three_of(runtime_thread()->group))
#define blockDim (three_of(runtime_thread()->group_size))
#define gridDim (three_of(runtime_thread()->groups))
#define warpSize 32

// An index that is out of range ends the run.
template <class Index>
__forceinline__ void check_index(Index index, size_t count)
{
    if (__builtin_expect(size_t(index) >= count, 0))
        runtime_index_error(long(index), long(count), 0);
}
#define SLANG_BOUND_CHECK_FIXED_ARRAY(index, count) check_index(index, count)

// --- between a block's threads ---

__forceinline__ void __syncthreads(int line = __builtin_LINE()) { runtime_barrier(line); }
__forceinline__ void __threadfence() {}
__forceinline__ void __threadfence_block() {}
__forceinline__ void __threadfence_system() {}

// --- between a warp's lanes ---

template <class T>
struct Lanes
{
    runtime::Exchange exchange;
    __forceinline__ Lanes(T value, unsigned mask, const char* operation, bool anywhere, int line)
        : exchange(runtime_exchange_among(&value, sizeof(T), mask, operation, anywhere, line))
    {
        static_assert(sizeof(T) <= runtime::slot_bytes);
    }
    __forceinline__ T operator[](unsigned lane) const
    {
        T value;
        __builtin_memcpy(&value, exchange.slots[lane], sizeof(T));
        return value;
    }
    // What a lane that takes no part holds is undefined.
    __forceinline__ T at(unsigned lane, int line) const
    {
        if (!(exchange.lanes >> lane & 1))
            runtime_lane_error(lane, exchange.lanes, line);
        return (*this)[lane];
    }
};

inline constexpr char ballot_name[] = "a ballot", any_name[] = "a question to any", all_name[] = "a question to all";
inline constexpr char shuffle_name[] = "a shuffle", reduction_name[] = "a reduction", sync_name[] = "__syncwarp";

__forceinline__ unsigned votes(unsigned mask, int vote, const char* name, bool anywhere, int line)
{
    Lanes<int> lanes(vote != 0, mask, name, anywhere, line);
    unsigned found = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (lanes.exchange.lanes >> lane & 1 && lanes[lane])
            found |= 1u << lane;
    return found;
}
// By ballots Slang finds out who is there, in both branches of a condition at once: from Volta on that is allowed.
__forceinline__ unsigned __ballot_sync(unsigned mask, int vote, int line = __builtin_LINE())
{
    return votes(mask, vote, ballot_name, true, line);
}
__forceinline__ int __any_sync(unsigned mask, int vote, int line = __builtin_LINE())
{
    return votes(mask, vote, any_name, false, line) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int vote, int line = __builtin_LINE())
{
    return votes(mask, !vote, all_name, false, line) == 0;
}
__forceinline__ void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) { votes(mask, 1, sync_name, true, line); }

// In parts of `width` lanes. Who would read beyond its part has what it had.
template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32, int line = __builtin_LINE())
{
    Lanes<T> lanes(value, mask, shuffle_name, false, line);
    return lanes.at((lanes.exchange.lane & ~unsigned(width - 1)) | (unsigned(lane) & unsigned(width - 1)), line);
}
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, int line = __builtin_LINE())
{
    Lanes<T> lanes(value, mask, shuffle_name, false, line);
    unsigned lane = lanes.exchange.lane ^ unsigned(bits), last = lanes.exchange.lane | unsigned(width - 1);
    return lane > last ? value : lanes.at(lane, line);
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE())
{
    Lanes<T> lanes(value, mask, shuffle_name, false, line);
    unsigned lane = lanes.exchange.lane;
    return (lane & unsigned(width - 1)) < delta ? value : lanes.at(lane - delta, line);
}
template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE())
{
    Lanes<T> lanes(value, mask, shuffle_name, false, line);
    unsigned lane = lanes.exchange.lane;
    return (lane & unsigned(width - 1)) + delta >= unsigned(width) ? value : lanes.at(lane + delta, line);
}

#define WARP_REDUCTION(name, ...) \
    template <class T> \
    __forceinline__ T name(unsigned mask, T value, int line = __builtin_LINE()) \
    { \
        Lanes<T> lanes(value, mask, reduction_name, false, line); \
        unsigned first = __builtin_ctzl(lanes.exchange.lanes); \
        T x = lanes[first]; \
        for (unsigned lane = first + 1; lane < 32; lane++) \
            if (lanes.exchange.lanes >> lane & 1) \
            { \
                T y = lanes[lane]; \
                x = __VA_ARGS__; \
            } \
        return x; \
    }
WARP_REDUCTION(__reduce_add_sync, x + y)
WARP_REDUCTION(__reduce_min_sync, y < x ? y : x)
WARP_REDUCTION(__reduce_max_sync, x < y ? y : x)
WARP_REDUCTION(__reduce_and_sync, x& y)
WARP_REDUCTION(__reduce_or_sync, x | y)
WARP_REDUCTION(__reduce_xor_sync, x ^ y)

// Not known here, as who is active is the hardware's affair: what uses them does not link.
unsigned __activemask();
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* equal);
template <class T>
unsigned __match_any_sync(unsigned mask, T value);

// --- atomics: threads of the runtime take turns, so that plain reads and writes do ---

#define ATOMIC_OPERATION(name, T, ...) \
    __forceinline__ T name(T* address, T y) \
    { \
        runtime_atomic(); \
        T x = *address; \
        *address = __VA_ARGS__; \
        return x; \
    }
#define ATOMIC_INTEGER(T) \
    ATOMIC_OPERATION(atomicAdd, T, x + y) \
    ATOMIC_OPERATION(atomicExch, T, y) \
    ATOMIC_OPERATION(atomicMin, T, y < x ? y : x) \
    ATOMIC_OPERATION(atomicMax, T, x < y ? y : x) \
    ATOMIC_OPERATION(atomicAnd, T, x& y) \
    ATOMIC_OPERATION(atomicOr, T, x | y) \
    ATOMIC_OPERATION(atomicXor, T, x ^ y) \
    __forceinline__ T atomicCAS(T* address, T expected, T desired) \
    { \
        runtime_atomic(); \
        T present = *address; \
        if (present == expected) \
            *address = desired; \
        return present; \
    }
ATOMIC_INTEGER(int)
ATOMIC_INTEGER(unsigned int)
ATOMIC_INTEGER(unsigned long long)
ATOMIC_OPERATION(atomicSub, int, x - y)
ATOMIC_OPERATION(atomicSub, unsigned int, x - y)
ATOMIC_OPERATION(atomicAdd, float, x + y)
ATOMIC_OPERATION(atomicAdd, double, x + y)
ATOMIC_OPERATION(atomicExch, float, y)

// Two calls of a function stay two, as where threads call it from tells whether they meet in it. The source's end pops this.
#pragma clang attribute push(__attribute__((nomerge)), apply_to = function)
