"""The files of a fit: one safetensors file each, whose header carries the rest as JSON, and a checkpoint kept up to date."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray
from safetensors import SafetensorError

from splat_py.errors import SplatError
from splat_py.files import load_tensors

_T = TypeVar("_T")


def load_file(
    path: Path, kind: str, parse: Callable[[dict[str, Any], dict[str, NDArray]], _T], *, absent: str, damaged: str
) -> _T:
    """What `parse` makes of header and tensors that `save_tensors` wrote.

    Args:
        absent: how the sentence "… does not exist; " goes on.
        damaged: and the sentence "… is not ".

    Raises:
        SplatError: the file is missing, damaged or something else.
    """
    if not path.is_file():
        raise SplatError(f"{path} does not exist; {absent}")
    try:
        return parse(*load_tensors(path, kind))
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise SplatError(f"{path} is not {damaged}") from error


class Checkpoint(Protocol):
    """Everything that a fit needs to go on as if it had not stopped."""

    def save(self, path: Path) -> None:
        """Write to a file, atomically."""


class CheckpointFile:
    """Where a fit keeps its checkpoint, if anywhere. As a context it also saves when the user interrupts.

    Args:
        every: so many steps.
        take: makes the checkpoint.
    """

    def __init__(self, path: Path | None, every: int, take: Callable[[], Checkpoint]) -> None:
        self._path, self._every, self._take = path, every, take

    def due(self, step: int) -> bool:
        """Whether to save after so many steps."""
        return self._path is not None and step % self._every == 0

    def save(self) -> None:
        """Write the checkpoint."""
        if self._path is not None:
            self._take().save(self._path)

    def __enter__(self) -> CheckpointFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.save()
