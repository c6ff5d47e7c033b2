"""A progress bar for what takes longer than a moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_T = TypeVar("_T")


def track(items: Iterable[_T], what: str) -> Iterator[_T]:
    """Iterate with a progress bar."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(highlight=False)) as progress:
        yield from progress.track(list(items))
