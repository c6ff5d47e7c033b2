"""CUDA source as a function on the CPU: compiled by clang against the folder `runtime`, with Slang's own prelude."""

import re
import struct
from pathlib import Path
from typing import Any

from splat_py.gpu.compile_cache import EmissionCache
from splat_py.gpu.metal_parameters import stem
from tests.emulation import program
from tests.emulation.compiler import Compiler, KernelError, Language
from tests.emulation.program import Buffer

_RUNTIME = Path(__file__).parent / "runtime"
# The last line of the prelude that all sources begin with.
PRELUDE_END = re.compile(r"^struct \w+_\d+$", re.MULTILINE)
_STRUCTURE = r"^struct {}\s*\{{(.*?)^\}};"
_FIELD = re.compile(r"^\s*(\S.*?)\s*(\**)\s*(\w+);", re.MULTILINE)
_BUFFER = re.compile(r"(RW)?StructuredBuffer<(\w+)\s*>")
_FORMATS = {"uint": "I", "int": "i", "float": "f", "bool": "?", "uint2": "Q"}
_COMPONENTS = re.compile(r"(?:uint|int|float)([234]?)")
_SHARED = re.compile(r"^__device__ __shared__ (.+?)\s+(\w+);", re.MULTILINE)
_GLOBALS = """extern "C" __constant__ GlobalParams_0 SLANG_globalParams;
#define globalParams_0 (&SLANG_globalParams)
"""
MOST_SHARED_BYTES = 32 << 10


class Program(program.Program):
    def __init__(self, compiler: Compiler, source: str, entry: str, threads: tuple[int, int, int]) -> None:
        beginning = PRELUDE_END.search(source)
        assert beginning, f"{entry} has no parameters"
        self._prelude, kernel = source[: beginning.start()], source[beginning.start() :]
        self._kernel = kernel
        super().__init__(compiler, kernel, entry, threads)

    def _bound(self, buffers: dict[str, Buffer], uniforms: dict[str, Any]) -> list[Buffer]:
        bound: list[tuple[str, Buffer]] = []
        block, _ = self._block("GlobalParams_0", "", buffers, uniforms, bound)
        self._check_read_only(bound)
        return [self._guarded("globalParams", block), *(buffer for _, buffer in bound)]

    def _block(
        self, structure: str, prefix: str, buffers: dict[str, Buffer], uniforms: dict[str, Any], bound: list[tuple[str, Buffer]]
    ) -> tuple[bytes, int]:
        """A structure in C's layout, and its alignment. Buffers in it that the kernel uses are added to `bound`."""
        block, alignment = b"", 1
        for kind, stars, name in _fields(self._kernel, structure):
            place = r"(\.|->)" if prefix else "globalParams_0->"
            used = re.search(rf"{place}{name}\b", self._kernel)
            name = prefix + stem(name)
            element = _BUFFER.fullmatch(kind)
            if kind in _FORMATS and not stars:
                value = uniforms.get(name)
                # Missing values are arbitrary, not zero.
                size = struct.calcsize(_FORMATS[kind])
                number = value.x | value.y << 32 if kind == "uint2" and value is not None else value
                part, align = b"\xff" * size if value is None else struct.pack(_FORMATS[kind], number), size
            elif element or stars:
                if name == "params":
                    buffer = self._guarded(name, self._block(kind, "", buffers, uniforms, bound)[0])
                else:
                    # A missing buffer matters only if the kernel reads it: its memory is empty.
                    buffer = buffers.get(name) or self._guarded(f"{name} (not bound)", b"")
                if used:
                    bound.append((kind + stars, buffer))
                part, align = struct.pack("Q", buffer.address), 8
                if element:
                    part += struct.pack("Q", buffer.nbytes // _size_of(element[2]))
            else:
                part, align = self._block(kind, f"{name}_", buffers, uniforms, bound)
            block += bytes(-len(block) % align) + part
            alignment = max(alignment, align)
        return block + bytes(-len(block) % alignment), alignment

    def _check_read_only(self, bound: list[tuple[str, Buffer]]) -> None:
        """Check that the kernel does not write buffers that it reads through a cache which does not see writes."""
        for kind, buffer in bound:
            for other, written in bound:
                overlap = buffer.address < written.address + written.nbytes and written.address < buffer.address + buffer.nbytes
                if kind.startswith("Structured") and not other.startswith(("Structured", "Params")) and overlap:
                    raise KernelError(f"{self.entry}: {buffer.name} is read only, and {written.name} is the same memory")

    def _as_cpp(self, source: str) -> tuple[str, str]:
        ends = ["0"]

        def placed(variable: re.Match[str]) -> str:
            kind, name = variable.groups()
            at = f"({ends[-1]} + 15) / 16 * 16"
            ends.append(f"{name}_end")
            return (
                f"typedef {kind} {name}_type; enum : size_t {{ {name}_at = {at}, {name}_end = {name}_at + sizeof({kind}) }};\n"
                f"#define {name} (*({name}_type*)(runtime_threadgroup_memory() + {name}_at))"
            )

        assert _GLOBALS in source
        first_line = self._prelude.count("\n") + 1
        body = _SHARED.sub(placed, source.replace(_GLOBALS, "static GlobalParams_0* globalParams_0;\n"))
        cpp = f"""
#pragma clang attribute push(__attribute__((nomerge)), apply_to = function)
#line {first_line}
{body}
#pragma clang attribute pop
static_assert({ends[-1]} <= {MOST_SHARED_BYTES}, "too much shared memory");
extern "C" void run_thread(const runtime::Thread*, void* const* buffers)
{{
    globalParams_0 = (GlobalParams_0*)buffers[0];
    {self.entry}();
}}
"""
        beginning = (_RUNTIME / "cuda.h").read_text(encoding="utf-8") + self._prelude + "\n#pragma clang attribute pop\n"
        return cpp, beginning


CUDA = Language(_RUNTIME, (), EmissionCache("cuda").get, Program)


def _fields(source: str, structure: str) -> list[tuple[str, str, str]]:
    body = re.search(_STRUCTURE.format(structure), source, re.MULTILINE | re.DOTALL)
    return _FIELD.findall(body[1]) if body else []


def _size_of(kind: str) -> int:
    vector = _COMPONENTS.fullmatch(kind)
    assert vector, f"a buffer of {kind}"
    return 4 * int(vector[1] or 1)
