"""Buffers of words, for tests of the runners."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.emulation.compiler import Compiler
from tests.emulation.program import Buffer


def counting_buffer(compiler: Compiler, name: str, count: int) -> Buffer:
    """0, 1, … count - 1, uint32; of `out` poison."""
    buffer = Buffer(name, compiler.runtime.guarded_allocate(4 * count), 4 * count)
    if name != "out" and count:
        view(buffer)[:] = np.arange(count)
    return buffer


def view(buffer: Buffer) -> NDArray[np.uint32]:
    """Its memory."""
    interface = {"version": 3, "shape": (buffer.nbytes // 4,), "typestr": "<u4", "data": (buffer.address, False)}
    return np.asarray(type("View", (), {"__array_interface__": interface})())
