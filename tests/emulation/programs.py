"""The source and the programs of all specialisations of a test session, each made once; `prepare` makes them ahead of need."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from tests.emulation.compiler import Compiler, Source
from tests.emulation.kernels import Specialisation
from tests.emulation.program import Program

T = TypeVar("T")


class Programs:
    """The programs of specialisations, in the compiler's language."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        # Specialisations that have run.
        self.executed: set[Specialisation] = set()
        self._workers = ThreadPoolExecutor(2)
        self._kernels = _Made(self._workers, self._emit)
        self._programs = _Made(self._workers, self._compile)

    def kernel(self, specialisation: Specialisation) -> Source:
        return self._kernels.get(specialisation)

    def run(self, specialisation: Specialisation, *dispatch: Any) -> None:
        """Run a specialisation as `Program.run` does."""
        self._programs.get(specialisation).run(*dispatch)
        self.executed.add(specialisation)

    def prepare(self, specialisations: Iterable[Specialisation]) -> None:
        """Begin to make these: one is emitted while the previous one is compiled."""
        for specialisation in specialisations:
            self._programs.begin(specialisation)

    def close(self) -> None:
        self._workers.shutdown(cancel_futures=True)

    def _emit(self, specialisation: Specialisation) -> Source:
        module, entry, constants = specialisation
        return self.compiler.language.emit(module, entry, dict(constants))

    def _compile(self, specialisation: Specialisation) -> Program:
        kernel = self.kernel(specialisation)
        return self.compiler.language.program(self.compiler, kernel.source, specialisation.entry, kernel.threads)


class _Made(Generic[T]):
    """Results that workers make, or a caller that needs one before its turn."""

    def __init__(self, workers: ThreadPoolExecutor, make: Callable[[Specialisation], T]) -> None:
        self._workers = workers
        self._make = make
        self._futures: dict[Specialisation, Future[T]] = {}
        self._lock = threading.Lock()

    def begin(self, specialisation: Specialisation) -> None:
        with self._lock:
            if specialisation not in self._futures:
                self._futures[specialisation] = self._workers.submit(self._make, specialisation)

    def get(self, specialisation: Specialisation) -> T:
        with self._lock:
            future = self._futures.get(specialisation)
            mine = future is None or future.cancel()
            if future is None or mine:
                future = self._futures[specialisation] = Future()
                # Nothing else may cancel this one.
                future.set_running_or_notify_cancel()
        if mine:
            try:
                future.set_result(self._make(specialisation))
            except Exception as error:
                future.set_exception(error)
        return future.result()
