"""Metal source as a function on the CPU: compiled by clang against the folder `runtime`."""

import re
from pathlib import Path
from typing import Any

from splat_py.gpu.compile_cache import EmissionCache
from splat_py.gpu.metal_parameters import MetalParameters, Parameter
from tests.emulation import program
from tests.emulation.compiler import Compiler, KernelError, Language
from tests.emulation.program import Buffer

_THREAD_VALUES = {
    "thread_position_in_grid": "in_grid",
    "thread_position_in_threadgroup": "in_group",
    "threadgroup_position_in_grid": "group",
    "threads_per_threadgroup": "group_size",
    "threadgroups_per_grid": "groups",
    "thread_index_in_threadgroup": "index",
    "thread_index_in_simdgroup": "lane",
    "simdgroup_index_in_threadgroup": "simdgroup",
}
_VECTOR_LENGTHS = {"uint": 1, "uint2": 2, "uint3": 3}


class Program(program.Program):
    def __init__(self, compiler: Compiler, source: str, entry: str, threads: tuple[int, int, int]) -> None:
        self.parameters = MetalParameters.of(source, entry)
        super().__init__(compiler, source, entry, threads)

    def _bound(self, buffers: dict[str, Buffer], uniforms: dict[str, Any]) -> list[Buffer]:
        numbers = self.parameters.buffers
        bound = [Buffer("nothing", 0, 0)] * (1 + max(numbers.values(), default=-1))
        for name, index in numbers.items():
            if name in self.parameters.blocks:
                block = self.parameters.blocks[name]
                addresses = {pointer: buffers[pointer].address if pointer in buffers else 0 for pointer in block.pointers}
                # Missing values are arbitrary, not zero.
                bound[index] = self._guarded(name, block.pack(uniforms | addresses, unset=0xFF))
            else:
                # A missing buffer matters to Metal only if the kernel reads it: its memory is empty.
                bound[index] = buffers.get(name) or self._guarded(f"{name} (not bound)", b"")
        return bound

    def _as_cpp(self, source: str) -> tuple[str, str]:
        """Put threadgroup variables into the runtime's memory, and pass a thread its arguments."""
        body = re.sub(
            r"^(\s*)threadgroup (.+?)\s+(\w+);", r"\1\2& \3 = metal::threadgroup_variable<\2>();", source, flags=re.MULTILINE
        )
        arguments = ", ".join(_argument(parameter) for parameter in self.parameters.parameters)
        cpp = (
            body.replace("[[kernel]]", "static")
            + f"""
#pragma clang attribute pop
extern "C" void run_thread(const runtime::Thread* t, void* const* buffers)
{{
    {self.entry}({arguments});
}}
"""
        )
        return cpp, ""


# Numbers without a suffix are floats.
METAL = Language(
    Path(__file__).parent / "runtime", ("-Xclang", "-cl-single-precision-constant"), EmissionCache("metal").get, Program
)


def _argument(parameter: Parameter) -> str:
    kind, attribute = parameter.type, parameter.attribute
    if attribute == "buffer":
        return f"({kind})buffers[{parameter.number}]"
    if attribute == "threads_per_simdgroup":
        return "runtime_simd_width()"
    if attribute not in _THREAD_VALUES:
        raise KernelError(f"a kernel's parameter with the attribute {attribute}, which is not known here")
    value = f"t->{_THREAD_VALUES[attribute]}"
    if attribute.startswith("thread_index") or attribute.startswith("simdgroup_index"):
        return value
    return f"{kind}({', '.join(f'{value}[{i}]' for i in range(_VECTOR_LENGTHS[kind]))})"
