"""The terminal of commands: explicit options, the console, progress bars, warnings and errors."""

import logging
import math
import os
import sys
import time
import webbrowser
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from splat_py.base.errors import SplatError, printable

if TYPE_CHECKING:
    from splat_py.gpu.device import Device
    from splat_py.scene.dataset import Dataset

_T = TypeVar("_T")

# Seconds after which the remaining time is reliable, remaining seconds that deserve a warning, and seconds between lines if no
# terminal shows a bar.
_SURE_AFTER_SECONDS, _LONG_SECONDS, _LINE_SECONDS = 2.0, 3600.0, 30.0
# Columns of a terminal that a bar needs to show details, and also the speed.
_WITH_DETAILS, _WITH_SPEED = 76, 92


class _PlainConsole(Console):
    """A console for text with names of files: it shows brackets and control characters instead of acting on them, and breaks no
    line of text, so that paths can be copied."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        lines = ("\n".join(map(printable, part.split("\n"))) if isinstance(part, str) else part for part in objects)
        texts = all(isinstance(part, str) for part in objects)
        super().print(*lines, **{"soft_wrap": texts} | options)


console = _PlainConsole()
_errors = _PlainConsole(stderr=True)


@dataclass(kw_only=True)
class OnDevice:
    """A command that runs on a device."""

    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None


def print_losses(out: Path, losses: Iterable[str]) -> None:
    """Print the parts of a scene that a file does not hold."""
    for loss in losses:
        print_error(f"{out} does not hold {loss}")


def prepare_streams() -> None:
    """Let the standard streams accept any text: characters that the terminal lacks become "?", a closed stream drops all."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Occupy the lowest free descriptor; otherwise a later file would become a child process's standard output.
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


@contextmanager
def silence() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


class Messages(logging.Handler):
    """Prints what the library logs, if a terminal shows it."""

    def emit(self, record: logging.LogRecord) -> None:
        if console.is_terminal:
            console.print(record.getMessage())


def print_error(message: object) -> None:
    _errors.print(printable(f"splat: {message}"))


def show_warning(message: Warning | str, category: type[Warning] = UserWarning, filename: str = "", *_: Any, **__: Any) -> None:
    """Print a warning as one line on stderr; replaces `warnings.showwarning`."""
    # Pillow warns of damage and sizes that splat_py checks itself.
    if not console.quiet and "PIL" not in Path(filename).parts:
        print_error(message)


def open_browser(address: str) -> None:
    """Open a page for somebody at a terminal of a machine with a display, and not through ssh."""
    has_display = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if console.is_terminal and has_display and "SSH_CONNECTION" not in os.environ:
        webbrowser.open(address)


def require_folder(out: Path) -> None:
    """Raise SplatError if pictures cannot be written into `out`."""
    if out.exists() and not out.is_dir():
        raise SplatError(f"--out {out} is a file; name a folder")


def explicit_options() -> frozenset[str]:
    """The names of the fields that the command line sets. The parsed command does not tell an option with its default value
    from an omitted one."""
    flags = (word.partition("=")[0] for word in sys.argv[1:] if word.startswith("--"))
    names = (flag.removeprefix("--").replace("-", "_") for flag in flags)
    return frozenset(name.removeprefix("no_") for name in names)


def left_out(dataset: "Dataset") -> str:
    """A clause on the pixels that undistortion leaves empty at the edges of the first photograph, or an empty string."""
    first = dataset.train[0]
    view = dataset.views[first]
    whole = view.lens.is_pinhole or view.camera.distortion is not None
    share = 0.0 if whole else float((dataset.image(first)[..., 3] == 0).mean())
    return f" (undistorted: {100 * share:.1f} % at the edges are empty and do not count)" if share else ""


def track(items: Iterable[_T], what: str) -> Iterable[_T]:
    return rich.progress.track(list(items), what, console=console)


class Lines:
    """Prints progress where no terminal shows a bar: a line every 30 seconds."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def tell(self, line: str) -> None:
        now = time.monotonic()
        if not console.is_terminal and now - self._told >= _LINE_SECONDS:
            self._told = now
            console.print(line)


class FitBar:
    """A context that shows the progress of a fit: steps, steps per second, PSNR, details of the fit, and the remaining time.
    If a software device would take hours, it prints a warning that suggests the options `shortened_by`."""

    def __init__(self, device: "Device", shortened_by: str) -> None:
        self._progress = Progress(
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            *[TextColumn("{task.fields[speed]}")] * (console.width >= _WITH_SPEED),
            TextColumn("PSNR {task.fields[psnr]}"),
            *[TextColumn("{task.fields[details]}", markup=False)] * (console.width >= _WITH_DETAILS),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            get_time=time.monotonic,
        )
        self._lines = Lines()
        self._device, self._shortened_by = device, shortened_by
        self._task: TaskID | None = None
        # Time of the first report, after compilation.
        self._first: float | None = None
        self._compiled, self._compiling_since = 0, math.inf
        self._told = self._warned = False

    def __enter__(self) -> "FitBar":
        self._progress.start()
        self._device.kernels.observers.append(self._compiles)
        return self

    def __exit__(self, *error: object) -> None:
        self._device.kernels.observers.remove(self._compiles)
        self._progress.stop()

    def begin(self, steps: int, done: int = 0) -> None:
        """Show a fit of `steps` steps; `done` of them are already finished."""
        self._task = self._progress.add_task("fit", total=steps, completed=done, speed="", psnr="-- dB", details="")

    def update(self, done: int, psnr: float, details: str = "") -> None:
        assert self._task is not None, "the bar has not begun"
        self._compiling_since, now = math.inf, time.monotonic()
        self._first = now if self._first is None else self._first
        self._progress.update(self._task, completed=done, psnr=f"{psnr:.2f} dB", details=details)
        task = self._progress.tasks[self._task]
        if task.speed:
            self._progress.update(self._task, speed=f"{task.speed:.1f} steps/s")
        left = "" if task.time_remaining is None else f", {timedelta(seconds=round(task.time_remaining))} left"
        self._lines.tell(f"{done:,} of {task.total:,.0f} steps, PSNR {psnr:.2f} dB{left}")
        remaining, is_sure = task.time_remaining or 0.0, now - self._first > _SURE_AFTER_SECONDS
        if is_sure and remaining > _LONG_SECONDS and self._device.software and not self._warned:
            name, hours = self._device.adapter.name, remaining / 3600
            print_error(f"about {hours:.0f} hours remain, since {name} is not a GPU; {self._shortened_by} would shorten that")
            self._warned = True

    def _compiles(self, _: str) -> None:
        """Report the compilation of kernels if it takes longer than loading cached ones."""
        now = time.monotonic()
        self._compiled += 1
        self._compiling_since = min(self._compiling_since, now)
        if now - self._compiling_since < 0.5:
            return
        if self._task is not None and console.is_terminal and console.width >= _WITH_DETAILS:
            self._progress.update(self._task, details=f"compiling kernels (once)... {self._compiled}")
        elif not self._told:
            console.print("compiling kernels (once)...")
            self._told = True
