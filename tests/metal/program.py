"""Metal source as a function on the CPU: compiled by clang against the folder `runtime`."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

from splat_py.gpu.emission import emit_metal_kernel
from tests.emulation import program
from tests.emulation.compiler import Compiler, KernelError, Language
from tests.emulation.program import FORMATS, Buffer, stem

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
_PARAMETER = re.compile(r"(?P<type>.*?)\s*(?P<name>\w+)\s*\[\[(?P<attribute>\w+)(?:\((?P<index>\d+)\))?\]\]")
_FIELD = re.compile(r"^\s*(?:\w+ )?(\w+\*?) (\w+);", re.MULTILINE)


class Program(program.Program):
    """One entry point of Metal source, ready to run."""

    def __init__(self, compiler: Compiler, source: str, entry: str, threads: tuple[int, int, int]) -> None:
        self._parameters = [parsed for parsed in map(_PARAMETER.fullmatch, _parameters(source, entry)) if parsed]
        # Places by names as in the Slang source.
        self._buffers = {stem(p["name"]): int(p["index"]) for p in self._parameters if p["attribute"] == "buffer"}
        self._uniforms = _block(source, self._parameters, "params")
        self._pointers = _block(source, self._parameters, "globalParams")
        super().__init__(compiler, source, entry, threads)

    def _bound(self, buffers: dict[str, Buffer], uniforms: dict[str, Any]) -> list[Buffer]:
        bound = [Buffer("nothing", 0, 0)] * (1 + max(self._buffers.values(), default=-1))
        for name, index in self._buffers.items():
            if name == "params":
                bound[index] = self._guarded(name, self._packed(self._uniforms, uniforms))
            elif name == "globalParams":
                pointers = [buffers[pointer].address if pointer in buffers else 0 for pointer, _ in self._pointers]
                bound[index] = self._guarded(name, struct.pack(f"{len(pointers)}Q", *pointers))
            else:
                # Metal minds one that is missing only if the kernel looks at it: nothing is there.
                bound[index] = buffers.get(name) or self._guarded(f"{name} (not bound)", b"")
        return bound

    def _as_cpp(self, source: str) -> tuple[str, str]:
        """With its threadgroup variables in the runtime's memory, and the arguments that a thread is given."""
        body = re.sub(
            r"^(\s*)threadgroup (.+?)\s+(\w+);", r"\1\2& \3 = metal::threadgroup_variable<\2>();", source, flags=re.MULTILINE
        )
        arguments = ", ".join(_argument(parameter) for parameter in self._parameters)
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
    Path(__file__).parent / "runtime", ("-Xclang", "-cl-single-precision-constant"), emit_metal_kernel, Program
)


def _parameters(source: str, entry: str) -> list[str]:
    """The parameters of a kernel, each as it is written."""
    start = source.index(f"[[kernel]] void {entry}(") + len(f"[[kernel]] void {entry}(")
    parameters, depth, current = [], 0, ""
    for character in source[start:]:
        depth += (character in "([<{") - (character in ")]>}")
        if depth < 0 or (character == "," and depth == 0):
            parameters.append(current.strip())
            current = ""
            if depth < 0:
                break
        else:
            current += character
    return [parameter for parameter in parameters if parameter]


def _block(source: str, parameters: list[re.Match[str]], block: str) -> list[tuple[str, str]]:
    """Names and types of the fields of the structure behind the buffer `params`, or of `globalParams`, which are pointers."""
    for parameter in parameters:
        if stem(parameter["name"]) == block:
            kind = parameter["type"].split()[0]
            body = re.search(rf"^struct {kind}\s*\{{(.*?)^\}};", source, re.MULTILINE | re.DOTALL)
            assert body, f"no structure {kind}"
            fields = [(stem(name), field) for field, name in _FIELD.findall(body[1])]
            known = {"device*"} if block == "globalParams" else FORMATS.keys()
            assert all(field in known for _, field in fields), f"an unexpected field in {kind}"
            return fields
    return []


def _argument(parameter: re.Match[str]) -> str:
    kind, attribute = parameter["type"], parameter["attribute"]
    if attribute == "buffer":
        return f"({kind})buffers[{parameter['index']}]"
    if attribute == "threads_per_simdgroup":
        return "runtime_simd_width()"
    if attribute not in _THREAD_VALUES:
        raise KernelError(f"a kernel's parameter with the attribute {attribute}, which is not known here")
    value = f"t->{_THREAD_VALUES[attribute]}"
    if attribute.startswith("thread_index") or attribute.startswith("simdgroup_index"):
        return value
    return f"{kind}({', '.join(f'{value}[{i}]' for i in range(_VECTOR_LENGTHS[kind]))})"
