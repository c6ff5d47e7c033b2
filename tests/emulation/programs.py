"""The source and the programs of all specialisations of a test session, each made once."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from splat_py.gpu import slang_compiler
from tests.emulation.compiler import Compiler, Source
from tests.emulation.kernels import Specialisation
from tests.emulation.program import Program


@contextmanager
def without_warnings() -> Iterator[None]:
    """Fail if the compiler warns of a variable that may have no value. SlangPy would print that to users."""
    read = slang_compiler.messages_of

    def checked(blob: ctypes.c_void_p) -> str:
        messages = read(blob)
        assert "41016" not in messages, messages
        return messages

    with patch.object(slang_compiler, "messages_of", checked):
        yield


class Programs:
    """The programs of specialisations, in the compiler's language."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        # Specialisations that have run.
        self.executed: set[Specialisation] = set()
        self._kernels: dict[Specialisation, Source] = {}
        self._programs: dict[Specialisation, Program] = {}

    def kernel(self, specialisation: Specialisation) -> Source:
        if specialisation not in self._kernels:
            module, entry, constants = specialisation
            with without_warnings():
                self._kernels[specialisation] = self.compiler.language.emit(module, entry, dict(constants))
        return self._kernels[specialisation]

    def run(self, specialisation: Specialisation, *dispatch: Any) -> None:
        """Run a specialisation as `Program.run` does."""
        if specialisation not in self._programs:
            kernel = self.kernel(specialisation)
            program = self.compiler.language.program(self.compiler, kernel.source, specialisation.entry, kernel.threads)
            self._programs[specialisation] = program
        self._programs[specialisation].run(*dispatch)
        self.executed.add(specialisation)
