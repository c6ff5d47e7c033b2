"""Metal source as a function on the CPU: compiled by clang against the folder `runtime`, called on arrays in guarded memory.

What Metal leaves undefined or forbids, and a GPU answers with silence, is an error here: see `runtime/threads.cpp`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from splat_py.errors import BindingError
from splat_py.gpu.metal_parameters import MetalParameters, Parameter

_RUNTIME = Path(__file__).parent / "runtime"
_COMMON_FLAGS = ["-x", "c++", "-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-omit-frame-pointer", "-w"]
_RUNTIME_FLAGS = [*_COMMON_FLAGS, "-O2"]
_KERNEL_FLAGS = [
    *(*_COMMON_FLAGS, "-O1", "-ffp-contract=off", "-I", str(_RUNTIME)),
    # Numbers without a suffix are floats, and variables without a value hold not-a-number.
    *("-Xclang", "-cl-single-precision-constant", "-ftrivial-auto-var-init=pattern"),
    # Where threads meet is told by the calls that lead there: none may be left out, merged with another or made two of.
    *("-fno-optimize-sibling-calls", "-Xclang", "-fconvergent-functions"),
    *("-mllvm", "-enable-tail-merge=0", "-mllvm", "-tail-dup-placement=0", "-mllvm", "-disable-tail-duplicate"),
]
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


class MetalError(Exception):
    """A kernel did what Metal does not define or does not allow."""


class Order(IntEnum):
    """In which order threads and threadgroups run; shuffled, they also take turns at every atomic operation."""

    FORWARD = 0
    REVERSE = 1
    SHUFFLED = 2


@dataclass(frozen=True)
class Buffer:
    """Guarded memory bound to a kernel's buffer."""

    name: str
    address: int
    nbytes: int

    def as_c(self) -> _Buffer:
        """As the runtime takes it."""
        return _Buffer(self.name.encode(), self.address, self.nbytes)


@dataclass(frozen=True)
class Schedule:
    """How wide SIMD groups are, and who runs when."""

    simd_width: int = 32
    order: Order = Order.FORWARD
    seed: int = 0


class _Buffer(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("memory", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class _Dispatch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffer_count", ctypes.c_int),
        ("groups", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("simd_width", ctypes.c_uint),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_uint),
    ]


class Compiler:
    """clang, and a folder that keeps what it made: libraries named by a hash of all that went into them."""

    def __init__(self, clang: str, folder: Path) -> None:
        self._clang = clang
        self._folder = folder
        version = subprocess.run([clang, "--version"], capture_output=True, text=True, check=True).stdout
        self._headers = version + "".join(path.read_text(encoding="utf-8") for path in sorted(_RUNTIME.iterdir()))

    @cached_property
    def runtime(self) -> ctypes.CDLL:
        """The library that runs kernels; theirs find its functions."""
        source = (_RUNTIME / "threads.cpp").read_text(encoding="utf-8")
        path = self._build(source, [*_RUNTIME_FLAGS, "-I", str(_RUNTIME)])
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        library.guarded_allocate.restype = ctypes.c_void_p
        library.guarded_allocate.argtypes = [ctypes.c_size_t]
        library.guarded_free.restype = None
        library.guarded_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.run.restype = ctypes.c_char_p
        library.run.argtypes = [ctypes.POINTER(_Dispatch)]
        return library

    def library(self, source: str) -> Path:
        """A kernel's C++ source, compiled."""
        return self._build(source, _KERNEL_FLAGS)

    def _build(self, source: str, flags: list[str]) -> Path:
        key = hashlib.sha256("\0".join([self._headers, *flags, source]).encode()).hexdigest()[:32]
        path = self._folder / f"{key}.so"
        if not path.exists():
            descriptor, temporary = tempfile.mkstemp(suffix=".so", dir=self._folder)
            os.close(descriptor)
            command = [self._clang, *flags, "-shared", *_LINKER_FLAGS, "-o", temporary, "-"]
            result = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
            if result.returncode:
                Path(temporary).unlink()
                raise MetalError(f"clang rejects the source of a kernel:\n{result.stderr[:4000]}")
            Path(temporary).replace(path)
        return path


_LINKER_FLAGS = ["-undefined", "dynamic_lookup"] if os.uname().sysname == "Darwin" else ["-lm"]


class Program:
    """One entry point of Metal source, ready to run."""

    def __init__(self, compiler: Compiler, source: str, entry: str, threads: tuple[int, int, int]) -> None:
        self.entry = entry
        self._runtime = compiler.runtime
        self._threads = threads
        self.parameters = MetalParameters.of(source, entry)
        library = ctypes.CDLL(str(compiler.library(_as_cpp(source, self.parameters))))
        self._function = ctypes.cast(library.run_thread, ctypes.c_void_p)

    def run(
        self, groups: tuple[int, int, int], buffers: dict[str, Buffer], uniforms: dict[str, Any], schedule: Schedule
    ) -> None:
        """Run over `groups` threadgroups. Buffers that the kernel does not use may be there, too.

        Raises:
            MetalError: a uniform is not known, or the kernel is wrong.
        """
        bound = [_Buffer() for _ in range(1 + max(self.parameters.buffers.values(), default=-1))]
        own: list[Buffer] = []
        try:
            for name, index in self.parameters.buffers.items():
                if name == "params":
                    own.append(self._guarded(name, self._pack(uniforms)))
                elif name == "globalParams":
                    pointers = [buffers[name].address if name in buffers else 0 for name in self.parameters.pointers]
                    own.append(self._guarded(name, struct.pack(f"{len(pointers)}Q", *pointers)))
                elif name not in buffers:
                    # Metal minds only if the kernel looks at it: nothing is there.
                    own.append(self._guarded(f"{name} (not bound)", b""))
                buffer = buffers[name] if name in buffers else own[-1]
                bound[index] = buffer.as_c()
            self.run_bound(groups, bound, schedule)
        finally:
            for buffer in own:
                self._runtime.guarded_free(buffer.address, buffer.nbytes)

    def run_bound(self, groups: tuple[int, int, int], bound: list[_Buffer], schedule: Schedule) -> None:
        """Run with buffers by Metal's numbers.

        Raises:
            MetalError: the kernel is wrong.
        """
        dispatch = _Dispatch(
            self._function,
            (_Buffer * len(bound))(*bound),
            len(bound),
            groups,
            self._threads,
            schedule.simd_width,
            schedule.order,
            schedule.seed,
        )
        error = self._runtime.run(ctypes.byref(dispatch))
        if error:
            raise MetalError(f"{self.entry}: {error.decode()}")

    def _pack(self, uniforms: dict[str, Any]) -> bytes:
        try:
            # What is not given is not zero, but whatever was there.
            return self.parameters.pack(uniforms, unset=0xFF)
        except BindingError as error:
            raise MetalError(str(error)) from error

    def _guarded(self, name: str, contents: bytes) -> Buffer:
        address = self._runtime.guarded_allocate(len(contents))
        if not address:
            raise MemoryError("no address space for another guarded buffer")
        ctypes.memmove(address, contents, len(contents))
        return Buffer(name, address, len(contents))


def _as_cpp(source: str, parameters: MetalParameters) -> str:
    """The source with its threadgroup variables in the runtime's memory, and a function that gives a thread its arguments."""
    body = re.sub(
        r"^(\s*)threadgroup (.+?)\s+(\w+);", r"\1\2& \3 = metal::threadgroup_variable<\2>();", source, flags=re.MULTILINE
    )
    arguments = ", ".join(_argument(parameter) for parameter in parameters.parameters)
    return (
        body.replace("[[kernel]]", "static", 1).replace("[[kernel]]", "static")
        + f"""
#pragma clang attribute pop
extern "C" void run_thread(const runtime::Thread* t, void* const* buffers)
{{
    {parameters.entry}({arguments});
}}
"""
    )


def _argument(parameter: Parameter) -> str:
    kind, attribute = parameter.type, parameter.attribute
    if attribute == "buffer":
        return f"({kind})buffers[{parameter.number}]"
    if attribute == "threads_per_simdgroup":
        return "runtime_simd_width()"
    if attribute not in _THREAD_VALUES:
        raise MetalError(f"a kernel's parameter with the attribute {attribute}, which is not known here")
    value = f"t->{_THREAD_VALUES[attribute]}"
    if attribute.startswith("thread_index") or attribute.startswith("simdgroup_index"):
        return value
    return f"{kind}({', '.join(f'{value}[{i}]' for i in range(_VECTOR_LENGTHS[kind]))})"
