"""What a run was begun with holds when it is resumed: options that contradict it are refused by name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from splat_py.errors import SplatError


def refuse_contradictions(
    out: Path, recorded: Any, asked: Any, defaults: Any, given: Collection[str], free: Collection[str] = ()
) -> None:
    """Compare the options of a command that resumes a run with those of the run.

    Args:
        out: the run's folder, for the message.
        recorded, asked, defaults: three instances of one dataclass of options.
        given: names of options that were given even if they have their default's value; others were if they have not.
        free: names of fields that may differ.

    Raises:
        SplatError: an option was given that differs from the run's.
    """
    for name in (field.name for field in fields(recorded)):
        value, wanted = getattr(recorded, name), getattr(asked, name)
        was_given = name in given or wanted != getattr(defaults, name)
        if was_given and wanted != value and name not in free:
            raise contradiction(out, name, value, wanted, "resume it without this option, or choose another --out")


def extended(out: Path, name: str, given: Collection[str], recorded: Any, asked: Any, default: Any) -> Any:
    """The length of a run that is resumed, a number of steps or a sequence of stages: its own, or a greater one if asked for.

    Raises:
        SplatError: a shorter or another one is asked for.
    """
    if name not in given and asked == default:
        return recorded
    longer = asked >= recorded if isinstance(recorded, int) else asked[: len(recorded)] == recorded
    if not longer:
        raise contradiction(out, name, recorded, asked, "a run can be extended, not shortened: give more, or leave it out")
    return asked


def refuse_existing(out: Path, *results: str) -> None:
    """Raise SplatError if a run that begins would overwrite a checkpoint, or one of these files."""
    if (out / "checkpoint.safetensors").exists():
        raise SplatError(f"{out} already holds a run; continue it with --resume, or choose another --out")
    for name in results:
        if (out / name).exists():
            raise SplatError(f"{out / name} exists and would be overwritten; choose another --out")


def require_checkpoint(out: Path) -> None:
    """Raise SplatError if there is nothing to resume in a run's folder."""
    path = out / "checkpoint.safetensors"
    if not path.exists():
        raise SplatError(f"{path} does not exist; there is no checkpoint to resume from")


def contradiction(out: Path, name: str, value: Any, wanted: Any, advice: str) -> SplatError:
    """That an option differs from what a run was begun with."""
    flag = "DATA" if name == "data" else "--" + name.replace("_", "-")
    return SplatError(f"{flag} is {_words(wanted)}, but the run in {out} was begun with {_words(value)}; {advice}")


def finished(out: Path, how: str) -> str:
    """What is said of a run that is done and is to be resumed."""
    return f"the run in {out} is finished and was left as it is; {how}"


def _words(value: Any) -> str:
    """A value as it is typed."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
