"""Signals that end a fit are acted on between its steps, never within one; those that end a command end it as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

# Those that a system knows, of what Ctrl-C, `kill` and a terminal that closes send.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupted(KeyboardInterrupt):
    """A signal has ended a fit between two steps, or a command."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


@contextmanager
def signals_as_interrupts(afterwards: signal.Handlers = signal.SIG_DFL) -> Iterator[None]:
    """Within this context SIGTERM and SIGHUP raise what Ctrl-C does, where nobody handles or ignores them."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    unhandled = [number for number, handler in handlers.items() if handler is signal.SIG_DFL]
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
    """Within this context the first signal is only noted, for `act`; a second one does at once what it does elsewhere.

    Only the main thread can handle signals; in others this does nothing. Handlers other than Python's own stay: a signal that
    is ignored, as by nohup, is ignored.
    """

    def __init__(self) -> None:
        # The signal that has come.
        self.number: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, _interrupt):
                    self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    def act(self) -> None:
        """Raise Interrupted if a signal has come. To be called between steps."""
        if self.number is not None:
            raise Interrupted(self.number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()

    def _restore(self) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            signal.signal(number, handler)
