"""Memory accesses of kernels, counted while the emulator runs them: loads, stores and atomic operations of every bound buffer.

clang reports every load and store (`-fsanitize-coverage`), and `runtime/counts.h` counts those that lie in a buffer or in the
workgroup's memory. It does not model caches, nor that a GPU merges neighbouring accesses of a wave's lanes into one.
"""

import ctypes
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tests.emulation.compiler import Compiler, Language
from tests.emulation.kernels import Specialisation
from tests.emulation.programs import Programs

_FLAGS = ("-fsanitize-coverage=func,trace-pc-guard,trace-loads,trace-stores", "-DCOUNT_EXPONENTIALS")


@dataclass
class Traffic:
    loads: int = 0
    loaded_bytes: int = 0
    stores: int = 0
    stored_bytes: int = 0
    atomics: int = 0

    def __iadd__(self, other: Self) -> Self:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


@dataclass
class Counts:
    """Counts of one kernel over all its dispatches; a thread counts once in each of the last four."""

    buffers: dict[str, Traffic] = field(default_factory=lambda: defaultdict(Traffic))
    workgroup: Traffic = field(default_factory=Traffic)
    dispatches: int = 0
    exponentials: int = 0
    wave_operations: int = 0
    barriers: int = 0
    threads: int = 0

    @property
    def memory(self) -> Traffic:
        """Traffic of all buffers but the uniform block."""
        total = Traffic()
        for name, traffic in self.buffers.items():
            if name not in ("params", "globalParams"):
                total += traffic
        return total

    def add(self, text: str) -> None:
        """Add the runtime's report of a dispatch."""
        self.dispatches += 1
        for line in text.splitlines():
            name, *numbers = line.rsplit(" ", 5)
            values = list(map(int, numbers))
            if name == "rest":
                exponentials, wave_operations, barriers, threads, _ = values
                self.exponentials += exponentials
                self.wave_operations += wave_operations
                self.barriers += barriers
                self.threads += threads
            elif name == "workgroup":
                self.workgroup += Traffic(*values)
            else:
                self.buffers[name] += Traffic(*values)


def counting(language: Language) -> Language:
    return replace(language, flags=(*language.flags, *_FLAGS))


def last_counts(compiler: Compiler) -> str:
    """The runtime's report of the last dispatch, for `Counts.add`."""
    counts = compiler.runtime.counts
    counts.restype = ctypes.c_char_p
    return counts().decode()


class CountingPrograms(Programs):
    """Programs of a compiler of `counting(language)`, and their counts."""

    def __init__(self, compiler: Compiler) -> None:
        super().__init__(compiler)
        self.counts: dict[Specialisation, Counts] = defaultdict(Counts)

    def run(self, specialisation: Specialisation, *dispatch: Any) -> None:
        super().run(specialisation, *dispatch)
        self.counts[specialisation].add(last_counts(self.compiler))
