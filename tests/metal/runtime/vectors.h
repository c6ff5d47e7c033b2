// What both of this folder's <metal_stdlib> say of numbers and vectors; packed_vec's and make_vec's bodies are their own.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long uint64_t;
typedef __SIZE_TYPE__ size_t;

namespace metal
{
template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));

template <class T>
struct components
{
    using scalar = T;
    static constexpr int count = 1;
};
#define VECTOR_COMPONENTS(T, N) \
    template <> \
    struct components<vec<T, N>> \
    { \
        using scalar = T; \
        static constexpr int count = N; \
    };
#define SCALAR_TYPE(T) VECTOR_COMPONENTS(T, 2) VECTOR_COMPONENTS(T, 3) VECTOR_COMPONENTS(T, 4)
SCALAR_TYPE(float)
SCALAR_TYPE(int)
SCALAR_TYPE(uint)
SCALAR_TYPE(ulong)

template <class T, int N>
struct packed_vec;
template <class T, int N>
struct components<packed_vec<T, N>>
{
    using scalar = T;
    static constexpr int count = N;
};
template <class T, int N, class... Parts>
vec<T, N> make_vec(Parts... parts);
} // namespace metal

#define VECTOR_NAMES(T) \
    typedef metal::vec<T, 2> T##2; \
    typedef metal::vec<T, 3> T##3; \
    typedef metal::vec<T, 4> T##4; \
    typedef metal::packed_vec<T, 2> packed_##T##2; \
    typedef metal::packed_vec<T, 3> packed_##T##3; \
    typedef metal::packed_vec<T, 4> packed_##T##4;
VECTOR_NAMES(float)
VECTOR_NAMES(int)
VECTOR_NAMES(uint)
VECTOR_NAMES(ulong)
// Comparing vectors yields vectors of int here, and of bool in Metal.
#define bool2 int2
#define bool3 int3
#define bool4 int4

// A type's name before a parenthesis constructs; anywhere else it is the type.
#define float2(...) metal::make_vec<float, 2>(__VA_ARGS__)
#define float3(...) metal::make_vec<float, 3>(__VA_ARGS__)
#define float4(...) metal::make_vec<float, 4>(__VA_ARGS__)
#define int2(...) metal::make_vec<int, 2>(__VA_ARGS__)
#define int3(...) metal::make_vec<int, 3>(__VA_ARGS__)
#define int4(...) metal::make_vec<int, 4>(__VA_ARGS__)
#define uint2(...) metal::make_vec<uint, 2>(__VA_ARGS__)
#define uint3(...) metal::make_vec<uint, 3>(__VA_ARGS__)
#define uint4(...) metal::make_vec<uint, 4>(__VA_ARGS__)
#define ulong2(...) metal::make_vec<ulong, 2>(__VA_ARGS__)
