"""Kernels of one statement each, which test a language's runner."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.emulation.compiler import Compiler
from tests.emulation.program import Buffer, Order, Program, Schedule

THREADS = 70  # two whole SIMD groups of 32 and a part of one
INDEX = np.arange(THREADS, dtype=np.uint32)
ORDERS = [Schedule(32, Order.FORWARD), Schedule(32, Order.REVERSE), *(Schedule(32, Order.SHUFFLED, seed) for seed in range(3))]


class Runner:
    """Runs one statement with `in` = 0, 1, 2 …, and returns `out`."""

    def __init__(
        self, compiler: Compiler, program: Callable[..., Program], source: Callable[[str], str], uniforms: dict[str, Any]
    ) -> None:
        self.compiler = compiler
        self._program = program
        self._source = source
        self._uniforms = uniforms

    def __call__(
        self,
        statement: str,
        schedule: Schedule = ORDERS[0],
        groups: int = 1,
        shapes: dict[str, int] | None = None,
        alias: bool = False,
    ) -> NDArray[np.uint32]:
        """Args: shapes: lengths other than THREADS, and other than 1 for `sum`. alias: bind `out` as `in` too."""
        program = self._program(self.compiler, self._source(statement), "test", (THREADS, 1, 1))
        sizes = {"in": THREADS, "out": THREADS, "sum": 1} | (shapes or {})
        buffers = {name: counting_buffer(self.compiler, name, count) for name, count in sizes.items()}
        bound = buffers | ({"in": buffers["out"]} if alias else {})
        try:
            program.run((groups, 1, 1), bound, self._uniforms, schedule)
            return view(buffers["out"]).copy()
        finally:
            for buffer in buffers.values():
                self.compiler.runtime.guarded_free(buffer.address, buffer.nbytes)


def counting_buffer(compiler: Compiler, name: str, count: int) -> Buffer:
    """A uint32 buffer with 0, 1, … count - 1; `out` is poisoned."""
    buffer = Buffer(name, compiler.runtime.guarded_allocate(4 * count), 4 * count)
    if name != "out" and count:
        view(buffer)[:] = np.arange(count)
    return buffer


def view(buffer: Buffer) -> NDArray[np.uint32]:
    return np.ctypeslib.as_array((ctypes.c_uint32 * (buffer.nbytes // 4)).from_address(buffer.address))
