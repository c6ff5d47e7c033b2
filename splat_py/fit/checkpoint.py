"""Checkpoints: when they are written, and what is said of files that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from splat_py.errors import RankLostError, SplatError
from splat_py.files import reason
from splat_py.fit.interrupts import Interrupted, Interrupts


@contextmanager
def reading(path: Path, what: str, advice: str, *, absent: str) -> Iterator[None]:
    """Around `load_tensors` and what becomes of them.

    Args:
        what: the file should be.
        advice: if it is something else.
        absent: what it means that there is no file, or what to do.

    Raises:
        SplatError: the file is missing, damaged or something else.
    """
    if not path.is_file():
        raise SplatError(f"{path} does not exist; {absent}")
    try:
        yield
    except (SafetensorError, KeyError, TypeError, ValueError, OSError, MemoryError) as error:
        raise SplatError(f"{path} is not {what} or is damaged; {advice} ({reason(error)})") from error


@dataclass(frozen=True)
class KeptCheckpoint:
    """What a fit's loop asks for between its steps."""

    # Writes the checkpoint to the path, if there is one.
    save: Callable[[], None]
    # What notes signals.
    interrupts: Interrupts

    def act_on_interrupt(self) -> None:
        """Raise Interrupted if a signal has come."""
        self.interrupts.act()


@contextmanager
def kept_checkpoint(path: Path | None, save: Callable[[Path], None]) -> Iterator[KeptCheckpoint]:
    """Around a fit's loop: saves a checkpoint to `path`, if there is one, also when the fit is interrupted, or
    another process of it has ended."""

    def keep() -> None:
        if path is not None:
            save(path)

    with Interrupts() as interrupts:
        try:
            yield KeptCheckpoint(keep, interrupts)
        except KeyboardInterrupt as interrupt:
            # A second signal may have come in the middle of a step.
            if interrupts.number is None or isinstance(interrupt, Interrupted):
                keep()
            raise
        except RankLostError:
            keep()
            raise
