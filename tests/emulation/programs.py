"""The source and the programs of all specialisations of a test session, each made once."""

from typing import Any

from tests.emulation.compiler import Compiler, Source
from tests.emulation.kernels import Specialisation
from tests.emulation.program import Program


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
