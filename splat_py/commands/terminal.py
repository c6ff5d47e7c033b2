"""What commands write to the terminal: the console, progress bars, warnings and errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_T = TypeVar("_T")

console = Console(highlight=False)
_errors = Console(stderr=True, highlight=False)


def print_error(message: object) -> None:
    """One line on the error stream."""
    _errors.print(f"splat: {message}", soft_wrap=True, markup=False)


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line on the error stream, in the place of `warnings.showwarning`."""
    print_error(message)


def track(items: Iterable[_T], what: str) -> Iterator[_T]:
    """Iterate with a progress bar."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield from progress.track(list(items))


class FitBar:
    """The progress of a fit: its steps, steps per second, PSNR, the fit's own details, and the time that remains.

    Used as a context; the bar appears with `begin`.
    """

    def __init__(self) -> None:
        self._progress = Progress(
            # Narrow: in a terminal of 80 columns, everything is to stand on one line.
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("PSNR {task.fields[psnr]:.2f} dB"),
            TextColumn("{task.fields[details]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = TaskID(0)

    def __enter__(self) -> FitBar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def begin(self, steps: int, done: int = 0) -> None:
        """Show a fit of so many steps, of which some are done already."""
        self._task = self._progress.add_task("fit", total=steps, completed=done, speed="", psnr=0.0, details="")

    def update(self, done: int, psnr: float, details: str = "") -> None:
        """After `done` steps of the fit."""
        speed = self._progress.tasks[0].speed
        text = f"{speed:.1f} steps/s" if speed else ""
        self._progress.update(self._task, completed=done, speed=text, psnr=psnr, details=details)
