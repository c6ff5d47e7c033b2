"""The process of a fit. Signals take effect between its steps, never within one, and leave a checkpoint. Signals that end a
command end it as Ctrl-C does. Torchrun's environment numbers the processes of a launch, and one of them reports why all end."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from splat_py.base.errors import RankLostError, SplatError

# Signals of Ctrl-C, `kill` and a closing terminal, if the system has them.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_ADVICE = "start several processes with torchrun --nproc-per-node N -m splat_py train ..., or unset WORLD_SIZE to train in one"


class Interrupted(KeyboardInterrupt):
    """A signal has ended a fit between two steps, or a command."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


@contextmanager
def signals_as_interrupts(afterwards: signal.Handlers = signal.SIG_DFL) -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise what Ctrl-C does within this context, unless they are handled or ignored already."""
    unhandled = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        unhandled = []
    for number in unhandled:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in unhandled:
            signal.signal(number, afterwards)


class Interrupts:
    """Within this context the first signal is only noted, for `act`; a second one acts at once, as outside the context.

    Only the main thread can handle signals; in other threads this does nothing. Handlers other than Python's own stay: an
    ignored signal, as with nohup, stays ignored.
    """

    def __init__(self) -> None:
        # The signal that was received.
        self.number: int | None = None
        # True once `act` has raised. Every other interrupt may come in the middle of a step.
        self.acted = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, _interrupt):
                    self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def act(self, told: int = 0) -> None:
        """Raise Interrupted if a signal has come, or if another process `told` the number of its own. Call it between steps."""
        number = told or self.number
        if number:
            self.acted = True
            raise Interrupted(number)

    def ignore(self) -> None:
        """Ignore signals of a command from now on: torchrun sends one to all processes as soon as one is lost, which must not
        interrupt the last message."""
        for number in _SIGNALS:
            if _interrupt in (self._handlers.get(number), signal.getsignal(number)):
                self._handlers.pop(number, None)
                signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()

    def _restore(self) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            signal.signal(number, handler)


@contextmanager
def kept_checkpoint(path: Path | None, save: Callable[[Path], None]) -> Iterator[tuple[Interrupts, Callable[[], None]]]:
    """Wrap a fit's loop. Yields the signals to act on between steps, and a function that saves a checkpoint to `path` if there
    is one. It is also called when a signal ends the fit between steps, or another of its processes has ended."""

    def keep() -> None:
        if path is not None:
            save(path)

    with Interrupts() as interrupts:
        try:
            yield interrupts, keep
        except KeyboardInterrupt:
            # An interrupt from elsewhere may have left half a step: then the checkpoint before it stays.
            if interrupts.acted:
                keep()
            raise
        except RankLostError:
            interrupts.ignore()
            keep()
            raise


@dataclass(frozen=True)
class Launch:
    """Process `rank` of `size`, the `local_rank`-th of its machine, and where all of them meet."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    address: str = ""
    port: int = 0
    # True if the store at that address is torchrun's own, which outlives the processes.
    outlives: bool = False
    # Number of processes on its machine.
    local_size: int = 1

    @property
    def alone(self) -> bool:
        return self.size == 1

    def store(self, seconds: float) -> Any:
        """Open torch's Store in which the processes leave each other notes; RuntimeError if none answers within `seconds`."""
        from torch._C._distributed_c10d import TCPStore

        serves, timeout = self.rank == 0 and not self.outlives, timedelta(seconds=seconds)
        # Do not wait for workers: notes may be left before all processes are there.
        return TCPStore(self.address, self.port, None, serves, timeout, wait_for_workers=False, multi_tenant=True)

    def speaks(self) -> bool:
        """True if this process is the first to end and therefore reports why; the reasons of the others follow from it, or are
        the same."""
        if self.alone:
            return True
        try:
            return self.store(seconds=3).add("splat_py/told", 1) == 1
        except (ImportError, RuntimeError):
            # The store is gone with the first process, or never existed.
            return self.rank == 0 or not self.outlives


def launch_of(environment: Mapping[str, str] = os.environ) -> Launch:
    """Return the launch that torchrun's environment describes, or a single process without one. SplatError if the variables
    contradict each other, or some are missing."""
    size = _number(environment, "WORLD_SIZE", 1, 1 << 16, 1)
    if size == 1:
        return Launch()
    rank = _number(environment, "RANK", 0, size - 1)
    local_rank = _number(environment, "LOCAL_RANK", 0, size - 1, rank)
    port = _number(environment, "MASTER_PORT", 1, 65535)
    address = environment.get("MASTER_ADDR", "")
    if not address:
        raise SplatError(f"WORLD_SIZE is {size}, but MASTER_ADDR is not set; {_ADVICE}")
    outlives = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    local_size = _number(environment, "LOCAL_WORLD_SIZE", 1, size, 1)
    return Launch(rank, size, local_rank, address, port, outlives, local_size)


def _number(environment: Mapping[str, str], name: str, low: int, high: int, default: int | None = None) -> int:
    text = environment.get(name, "")
    if not text and default is not None:
        return default
    if not text:
        raise SplatError(f"WORLD_SIZE is {environment['WORLD_SIZE']}, but {name} is not set; {_ADVICE}")
    if not (text.isascii() and text.isdigit() and low <= int(text[:9]) <= high):
        raise SplatError(f"{name} is {text[:40]!r}; it must be a whole number from {low} to {high}; {_ADVICE}")
    return int(text)
