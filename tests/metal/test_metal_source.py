"""Every kernel, specialised as in tests/emulation/kernels.py, as Metal source that clang accepts, address spaces included; in
`make full` with each shipped value of its constants, and each pair of values that ship together.

This does not check how SlangPy binds arguments on a Mac, Apple's own compiler, or speed.
"""

import re

import pytest

from splat_py import SplatError, shaders
from splat_py.gpu.device import _GPU_TUNING, _SOFTWARE_TUNING, _VULKAN_TUNING, Tuning
from splat_py.gpu.emission import emit
from splat_py.gpu.metal_parameters import MetalParameters
from splat_py.gpu.sources import mentioned
from tests.emulation.kernels import Specialisation, by_kernel, declared, with_every_value
from tests.emulation.programs import Programs
from tests.metal.checker import threadgroup_bytes, type_check

MOST_THREADGROUP_BYTES = 32 * 1024
# Buffers that a Metal function accepts, the uniform block among them.
MOST_BUFFERS = 31

BY_KERNEL = by_kernel()
VALUES = {kernel: with_every_value(found) for kernel, found in BY_KERNEL.items()}
PAIRS = {kernel: [s for s in found if s not in VALUES[kernel]] for kernel, found in BY_KERNEL.items()}


def test_every_entry_point_ships() -> None:
    assert set(declared()) == set(BY_KERNEL)


@pytest.mark.parametrize(("module", "entry"), VALUES, ids=lambda name: name)
def test_kernel(module: str, entry: str, clang: str, programs: Programs) -> None:
    check(VALUES[module, entry][:1], clang, programs)


@pytest.mark.parametrize(("module", "entry"), [kernel for kernel, few in VALUES.items() if few[1:]], ids=lambda name: name)
def test_every_value(module: str, entry: str, clang: str, programs: Programs) -> None:
    check(VALUES[module, entry][1:], clang, programs)


@pytest.mark.parametrize(("module", "entry"), [kernel for kernel, found in PAIRS.items() if found], ids=lambda name: name)
def test_every_pair_of_values(module: str, entry: str, clang: str, programs: Programs) -> None:
    check(PAIRS[module, entry], clang, programs)


def check(specialisations: list[Specialisation], clang: str, programs: Programs) -> None:
    for specialisation in specialisations:
        module, entry, constants = specialisation
        source = programs.kernel(specialisation).source
        assert f"[[kernel]] void {entry}(" in source
        assert threadgroup_bytes(source) <= MOST_THREADGROUP_BYTES, specialisation
        buffers = [int(index) for index in re.findall(r"\[\[buffer\((\d+)\)\]\]", source)]
        assert max(buffers) < MOST_BUFFERS, specialisation
        # A dispatch has to name what the compiler leaves in.
        parameters = MetalParameters.of(source, entry)
        pointers = {pointer for block in parameters.blocks.values() for pointer in block.pointers}
        names = {*parameters.buffers, *(name for name in pointers if re.search(rf"->{name}_\d+\b", source))}
        types = tuple(value for _, value in constants if isinstance(value, str))
        needed = {name.replace(".", "_") for name in mentioned(f"kernels/{module}", entry, types).buffers}
        assert names - {"params", "globalParams"} <= needed, specialisation
        messages = type_check(clang, source)
        assert not messages, f"{specialisation}:\n{messages}"


# --- the checks themselves: what they must not let pass ---

KERNEL = """
#include <metal_stdlib>
using namespace metal;
struct Pair {{ float a; float b; }};
float first(Pair thread* pair) {{ return pair->a; }}
[[kernel]] void test(uint3 thread_id [[thread_position_in_grid]], Pair device* pairs [[buffer(0)]],
    atomic<float> device* sums [[buffer(1)]], packed_float4 device* rows [[buffer(2)]])
{{
    threadgroup array<float, int(8)> shared;
    threadgroup atomic<float> total;
    thread Pair pair;
    {statement}
}}
"""


@pytest.mark.parametrize(
    "statement",
    [
        "shared[1] = first(&pair) + float4(*rows).x;",
        "atomic_fetch_add_explicit(sums + 1, pair.a, memory_order_relaxed);",
        "pairs[thread_id.x].b = simd_shuffle(pair.a, ushort(3)) + max(pair.a, pair.b);",
    ],
)
def test_right_source_passes(statement: str, clang: str) -> None:
    assert type_check(clang, KERNEL.format(statement=statement)) == ""


@pytest.mark.parametrize(
    "statement",
    [
        "first(pairs);",  # a pointer into another address space
        "Pair thread* p = pairs;",
        "float device* p = &shared[0];",
        "atomic_fetch_add_explicit(&total, 1.0, memory_order_relaxed);",  # no float atomics there
        "pair.a = *rows;",  # a vector for a number
        "float2 v = float2(*rows, pair.a);",
        "pair.a = undeclared(pair.b);",
        "uint n = min(1u, pair.a, 2);",
    ],
)
def test_wrong_source_does_not(statement: str, clang: str) -> None:
    assert "error" in type_check(clang, KERNEL.format(statement=statement))


def test_threadgroup_memory_is_counted() -> None:
    source = """
struct Two_0
{
    float a_0;
    array<uint, int(3)> b_0;
};
    threadgroup array<array<float2, int(4)>, int(8)> x_0;
    threadgroup atomic<uint> y_0;
    threadgroup array<Two_0, int(10)> z_0;
"""
    assert threadgroup_bytes(source) == 8 * 4 * 8 + 4 + 10 * 16
    with pytest.raises(AssertionError, match="Unknown_0"):
        threadgroup_bytes("    threadgroup Unknown_0 a;\n")


@pytest.mark.parametrize(
    ("module", "entry", "constants", "message"),
    [
        ("prefix_sum", "nowhere", {}, "no function .* 'nowhere'"),
        ("nowhere", "prefixSum", {}, "no nowhere.slang"),
        ("blobs", "differentiateByAutodiff", {"BLOB": 8}, "no constant BLOB .* BLOBS"),
    ],
)
def test_what_cannot_be_emitted_is_an_error(module: str, entry: str, constants: dict[str, int], message: str) -> None:
    with pytest.raises(SplatError, match=message):
        shaders.emit("metal", module, entry, constants)


def test_constants_arrive() -> None:
    for threads, items, bits in ((32, 4, 4), (64, 7, 4), (32, 7, 2)):
        source = emit("metal", "radix_sort", "scatter", {"TILE_BITS": bits, "THREADS": threads, "ITEMS": items}).source
        assert threadgroup_bytes(source) == 4 * (256 + (1 << bits) * threads + 2 * threads * items)


@pytest.mark.parametrize(("tuning", "most"), [(_GPU_TUNING, 32), (_VULKAN_TUNING, 16), (_SOFTWARE_TUNING, 32)])
def test_sorts_fit_group_shared_memory(tuning: Tuning, most: int) -> None:
    constants = {"TILE_BITS": tuning.sort_tile_bits, "THREADS": tuning.sort_threads, "ITEMS": tuning.sort_items}
    for entry in ("countDigits", "scatter", "sortAlone"):
        assert threadgroup_bytes(emit("metal", "radix_sort", entry, constants).source) <= most << 10
