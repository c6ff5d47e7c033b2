"""A kernel as a function on the CPU: run over a grid of threads, on arrays in guarded memory.

Behaviour that a language leaves undefined or forbids, and that a GPU silently accepts, is an error: see `runtime/threads.cpp`.
"""

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tests.emulation.compiler import Compiler, KernelError


class Order(IntEnum):
    """The order in which threads and workgroups run; shuffled ones also take turns at every atomic operation."""

    FORWARD = 0
    REVERSE = 1
    SHUFFLED = 2


@dataclass(frozen=True)
class Buffer:
    name: str
    address: int
    nbytes: int


@dataclass(frozen=True)
class Schedule:
    """The width of SIMD groups, and the order of threads."""

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


class Program(ABC):
    def __init__(self, compiler: Compiler, source: str, entry: str, threads: tuple[int, int, int]) -> None:
        self.entry = entry
        self._runtime = compiler.runtime
        self._threads = threads
        # The library with its function `run_thread`.
        self._library = ctypes.CDLL(str(compiler.library(*self._as_cpp(source))))

    @abstractmethod
    def _as_cpp(self, source: str) -> tuple[str, str]:
        """The source with a function `run_thread` that calls the kernel for one thread; and its beginning, see
        `Compiler.library`."""

    @abstractmethod
    def _bound(self, buffers: dict[str, Buffer], uniforms: dict[str, Any]) -> list[Buffer]:
        """The buffers that are bound to the kernel, in its order: given ones, and others made by `_guarded`."""

    def run(
        self, groups: tuple[int, int, int], buffers: dict[str, Buffer], uniforms: dict[str, Any], schedule: Schedule
    ) -> None:
        """Run over `groups` workgroups. Buffers that the kernel does not use are ignored.

        Raises:
            KernelError: the kernel is wrong.
        """
        self._own: list[Buffer] = []
        try:
            self.run_bound(groups, self._bound(buffers, uniforms), schedule)
        finally:
            for buffer in self._own:
                self._runtime.guarded_free(buffer.address, buffer.nbytes)

    def run_bound(self, groups: tuple[int, int, int], bound: list[Buffer], schedule: Schedule) -> None:
        """Run with the bound buffers, in the kernel's order.

        Raises:
            KernelError: the kernel is wrong.
        """
        dispatch = _Dispatch(
            ctypes.cast(self._library.run_thread, ctypes.c_void_p),
            (_Buffer * len(bound))(*(_Buffer(b.name.encode(), b.address, b.nbytes) for b in bound)),
            len(bound),
            groups,
            self._threads,
            schedule.simd_width,
            schedule.order,
            schedule.seed,
        )
        error = self._runtime.run(ctypes.byref(dispatch))
        if error:
            raise KernelError(f"{self.entry}: {error.decode()}")

    def _guarded(self, name: str, contents: bytes) -> Buffer:
        """Memory that lives until the kernel has run."""
        self._own.append(guarded(self._runtime, name, contents))
        return self._own[-1]


def guarded(runtime: ctypes.CDLL, name: str, contents: bytes) -> Buffer:
    address = runtime.guarded_allocate(len(contents))
    if not address:
        raise MemoryError("no address space for another guarded buffer")
    ctypes.memmove(address, contents, len(contents))
    return Buffer(name, address, len(contents))
