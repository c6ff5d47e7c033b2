"""A run's folder: one process at a time writes to it. run.json holds the options that the run was begun with; contradicting
options are refused. Files of tensors may come from a stranger, and are checked before they are used."""

import errno
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from splat_py.base.errors import SplatError
from splat_py.base.fields import dataclass_of
from splat_py.base.locks import lock as _lock
from splat_py.scene.data_options import DataOptions
from splat_py.scene.sources import OMITTED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from splat_py.base.files import Layout
    from splat_py.scene.dataset import Dataset

Config = TypeVar("Config")

# Errors that say that another process has locked the file.
_LOCKED = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock a run's folder, which is made if it does not exist.

    The system holds the lock on a file there only while this process lives, so a killed process never blocks the folder. New
    folders that stay empty are removed again. SplatError if another process holds the folder, or it cannot be written to; a
    warning if the disk has no file locks.
    """
    absent, lock = [path for path in (folder, *folder.parents) if not path.exists()], folder / ".lock"
    try:
        handle = _take(lock)
        try:
            yield
        finally:
            # Remove the file while it is locked, so that no other process's lock is removed; Windows removes no open file.
            if sys.platform != "win32":
                lock.unlink(missing_ok=True)
            os.close(handle)
            if sys.platform == "win32":
                with suppress(OSError):
                    lock.unlink()
    finally:
        # The innermost first. Other folders are not empty, or belong to another process by now.
        for path in absent:
            with suppress(OSError):
                path.rmdir()


def _take(lock: Path) -> int:
    """Make the file and its folder, open and lock it."""
    while True:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
        except OSError as error:
            raise SplatError(f"cannot write to {lock.parent}: {error.strerror}; choose another output folder") from error
        try:
            _lock(handle)
        except OSError as error:
            if error.errno in _LOCKED:
                os.close(handle)
                raise SplatError(f"{lock.parent} is in use by another run; wait for it or choose another --out") from error
            warnings.warn(f"{lock.parent} is on a disk without file locks; let no other run write there", stacklevel=4)
        # The previous holder may just have removed the file; the next process would then lock another one.
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), os.stat(lock)):
                return handle
        os.close(handle)


def refuse_contradictions(
    out: Path, recorded: Any, asked: Any, defaults: Any, given: Collection[str], free: Collection[str] = ()
) -> None:
    """Raise SplatError if a command that resumes the run in `out` was given an option that differs from the run's.

    Args:
        recorded, asked, defaults: three instances of one dataclass of options.
        given: names of options that count as given even if they have their default's value; others do if they have not.
        free: names of fields that may differ.
    """
    for name in (field.name for field in fields(recorded)):
        value, wanted = getattr(recorded, name), getattr(asked, name)
        was_given = name in given or wanted != getattr(defaults, name)
        if was_given and wanted != value and name not in free:
            raise contradiction(out, name, value, wanted, "resume it without this option, or choose another --out")


def extended(out: Path, name: str, given: Collection[str], recorded: Any, asked: Any, default: Any) -> Any:
    """Return the length of a resumed run, a number of steps or a sequence of stages: its own, or a longer one if `asked`;
    SplatError if `asked` is shorter or different."""
    if name not in given and asked == default:
        return recorded
    longer = asked >= recorded if isinstance(recorded, int) else asked[: len(recorded)] == recorded
    if not longer:
        raise contradiction(out, name, recorded, asked, "a run can be extended, not shortened: give more, or leave it out")
    return asked


def refuse_existing(out: Path, *results: str) -> None:
    """Raise SplatError if a new run would overwrite a checkpoint, or one of these files."""
    if (out / "checkpoint.safetensors").exists():
        raise SplatError(f"{out} already holds a run; continue it with --resume, or choose another --out")
    for name in results:
        if (out / name).exists():
            raise SplatError(f"{out / name} exists and would be overwritten; choose another --out")


def require_checkpoint(out: Path) -> None:
    """Raise SplatError if a run's folder has no checkpoint to resume from."""
    path = out / "checkpoint.safetensors"
    if not path.exists():
        raise SplatError(f"{path} does not exist; there is no checkpoint to resume from")


def contradiction(out: Path, name: str, value: Any, wanted: Any, advice: str) -> SplatError:
    flag = "DATA" if name == "data" else "--" + name.replace("_", "-")
    return SplatError(f"{flag} is {_words(wanted)}, but the run in {out} was begun with {_words(value)}; {advice}")


def finished(out: Path, how: str) -> str:
    """Return the sentence for a run that is not resumed; remove what a killed process left in its folder."""
    from splat_py.base.files import remove_abandoned

    remove_abandoned(out)
    return f"the run in {out} is finished and was left as it is; {how}"


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@contextmanager
def removed_without(checkpoint: Path, record: Path) -> Iterator[None]:
    """Remove the record if a run fails before it has a checkpoint; wrap the run from the moment it writes its record."""
    try:
        yield
    except BaseException:
        if not checkpoint.exists():
            record.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class RunRecord(Generic[Config]):
    """The record of a run, written when the run begins, and again only if it is extended or its capture was moved."""

    data: DataOptions
    config: Config
    # The dataset's fingerprint; None in the records of older versions.
    dataset: str | None = None
    # The digests of its files (`contents_of`).
    files: tuple[str, str] | None = None

    def save(self, path: Path, **extra: Any) -> None:
        """Write to a file, atomically, with this version of splat_py and `extra` entries of a command."""
        from splat_py import __version__
        from splat_py.base.files import write_json

        # Absolute paths: commands may run from anywhere.
        cut_out = self.data.cut_out and str(self.data.cut_out.resolve())
        data = {**asdict(self.data), "data": str(self.data.data.resolve()), "cut_out": cut_out}
        config = asdict(self.config)  # type: ignore[call-overload]
        content = {"version": __version__, "data": data, "config": config, "dataset": self.dataset, "files": self.files}
        write_json(path, content | extra)

    def changes(self, before: "RunRecord[Config]") -> bool:
        """True if a resumed run is longer than its record says, or its capture was moved."""
        return (self.config, self.data.data) != (before.config, before.data.data)

    @classmethod
    def load(cls, path: Path, config: Callable[[Any], Config]) -> "RunRecord[Config]":
        """Read what `save` wrote, in any version; `config` turns the file's dictionary into a configuration. SplatError if the
        file is missing or damaged."""
        from splat_py.base.files import parse_json, reason, regular

        try:
            content = parse_json(regular(path).read_text(encoding="utf-8"))
            dataset, files = content.get("dataset"), content.get("files")
            digests = [dataset, *(files or (None, None))]
            if len(digests) != 3 or not all(isinstance(digest, str | None) for digest in digests):
                raise TypeError("its dataset is not a fingerprint")
            known = tuple(files) if files else None
            # Runs of older versions do not record their split.
            data = dataclass_of(DataOptions, {"test_split": "first", **content["data"]})
            data.validate()
            return cls(data, config(content["config"]), dataset, known)
        except FileNotFoundError as error:
            raise SplatError(f"{path.parent} is not the folder of a training run: it has no {path.name}") from error
        # Invalid text and JSON raise ValueErrors, and SplatError is one.
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise SplatError(f"{path} is damaged; train again, or name a .ply and its --data ({reason(error)})") from error

    def resumed(
        self, out: Path, asked: "RunRecord[Config]", defaults: Config, given: Collection[str], length: str
    ) -> "RunRecord[Config]":
        """Return the record of this run when it is resumed; SplatError if an option contradicts the run's. The field `length`
        of the configuration may be extended, and the folder in `asked` is where the capture is now, unless it is omitted."""
        folder = self.data.data if asked.data.data == OMITTED else asked.data.data
        refuse_contradictions(out, self.data, asked.data, DataOptions(folder), given, free=("data", "cut_out", "max_memory"))
        refuse_contradictions(out, self.config, asked.config, defaults, given, free=(length,))
        lengths = (getattr(config, length) for config in (self.config, asked.config, defaults))
        config: Config = replace(self.config, **{length: extended(out, length, given, *lengths)})  # type: ignore[type-var]
        if self.dataset is None and folder.resolve() != self.data.data:
            raise contradiction(out, "data", self.data.data, folder, "name the capture that it was begun with")
        cut_out = asked.data.cut_out or self.data.cut_out
        data = replace(self.data, data=folder.resolve(), cut_out=cut_out, max_memory=asked.data.max_memory)
        return replace(self, data=data, config=config)

    def load_dataset(self, out: Path, memory_limit_bytes: int | None = None) -> "tuple[RunRecord[Config], Dataset]":
        """Load the dataset as `DataOptions.load` does; return it with the record and its fingerprint. SplatError if the run was
        begun with another dataset."""
        from splat_py.scene.dataset import contents_of, fingerprint

        dataset = self.data.load(memory_limit_bytes)
        actual = fingerprint(dataset)
        if self.dataset not in (None, actual):
            raise SplatError(
                f"{dataset.root} is not what the run in {out} was begun with: names, sizes, cameras or their split differ; "
                "resume it with the same capture, or choose another --out"
            )
        files = contents_of(dataset, self.files)
        if self.files is not None and self.files[1] != files[1]:
            raise SplatError(
                f"photographs, masks or depths of {dataset.root} have changed since the run in {out} was begun; "
                "restore them, or choose another --out"
            )
        return replace(self, dataset=actual, files=files), dataset


@contextmanager
def reading(
    path: Path,
    kind: str,
    check: Callable[[dict[str, Any], "Layout"], None],
    what: str,
    advice: str,
    *,
    absent: str,
    squares: Collection[str] = ("v",),
) -> "Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]]]]":
    """Yield the header and the tensors of a file (`load_tensors`). SplatError if it is missing, with the clause `absent`; or if
    it is not `what` it should be, a number is not finite, or one is negative in a tensor whose name ends with one of `squares`,
    with `advice`."""
    import numpy as np
    from safetensors import SafetensorError

    from splat_py.base.files import load_tensors, reason

    if not path.is_file():
        raise SplatError(f"{path} does not exist; {absent}")
    try:
        header, tensors = load_tensors(path, kind, check)
        for name, values in tensors.items():
            if not np.isfinite(values).all() or (name.rpartition(".")[2] in squares and (values < 0).any()):
                raise ValueError(f"{name} holds NaN, infinity, or a negative mean of squares")
        yield header, tensors
    except (SafetensorError, KeyError, TypeError, ValueError, OSError, MemoryError) as error:
        raise SplatError(f"{path} is not {what} or is damaged; {advice} ({reason(error)})") from error


def recorded_metrics(path: Path) -> dict[str, Any]:
    """Read metrics.json: the `steps`, the `curve`, and perhaps the `held_out` scores. Empty if the file is missing, and with a
    warning if it is damaged."""
    from splat_py.base.files import parse_json, reason, regular

    def require(right: bool, what: str) -> None:
        if not right:
            raise ValueError(f"its {what} is damaged")

    def whole(value: object) -> bool:
        # A float holds it exactly.
        return type(value) is int and abs(value) <= 1 << 53

    try:
        content = parse_json(regular(path).read_text(encoding="utf-8"))
        require(isinstance(content, dict) and whole(content["steps"]), "number of steps")
        points = content["curve"]
        require(isinstance(points, list) and all(whole(point["step"]) for point in points), "curve")
        require(all(whole(point["seconds"]) or type(point["seconds"]) is float for point in points), "curve")
        for view in content.get("held_out", {"views": []})["views"]:
            numbers = [value for name, value in view.items() if name != "name"]
            require(isinstance(view["name"], str), "scores")
            require(all(whole(number) or type(number) in (float, bool) for number in numbers), "scores")
        return content
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        warnings.warn(f"{path} is damaged ({reason(error)}); its curve and scores begin anew", stacklevel=2)
        return {}


def whole_number(header: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """Return a field of a header; ValueError if it is missing, or not an integer from `low` to `high`."""
    value = header.get(name)
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {str(value)[:40]!r}; it must be a whole number from {low} to {high}")
    return value


def require_layout(layout: "Layout", shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str] | None = None) -> None:
    """Raise ValueError unless a file has exactly these tensors, of these shapes, float32 except for those in `dtypes`."""
    if layout.keys() != shapes.keys():
        name = min(layout.keys() ^ shapes.keys())
        raise ValueError(f"there is {'a' if name in layout else 'no'} tensor {name!r}")
    for name, shape in shapes.items():
        expected = ((dtypes or {}).get(name, "F32"), shape)
        if layout[name] != expected:
            raise ValueError(f"{name} is {layout[name]}; it must be {expected}")
