"""run.json: what a fit to a capture was begun with. It decides when the run is resumed, rendered or evaluated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from splat_py.errors import SplatError
from splat_py.files import parse_json, reason, write_json
from splat_py.fit.resuming import contradiction, extended, refuse_contradictions
from splat_py.scene.dataset import Dataset
from splat_py.scene.options import DataOptions, fingerprint

Config = TypeVar("Config")


@contextmanager
def removed_without(checkpoint: Path, record: Path) -> Iterator[None]:
    """Around a run from the moment it writes its record: one that fails before it has a checkpoint has done nothing."""
    try:
        yield
    except BaseException:
        if not checkpoint.exists():
            record.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class RunRecord(Generic[Config]):
    """The record of a run. It is written when the run begins, and again only where it is extended or its capture was moved."""

    data: DataOptions
    config: Config
    # The fingerprint of the dataset; None in runs that are older than it.
    dataset: str | None = None

    def save(self, path: Path, **extra: Any) -> None:
        """Write to a file, atomically, with what else a command wants to be in it."""
        write_json(path, {"data": self.data.to_json(), "config": asdict(self.config), "dataset": self.dataset, **extra})  # type: ignore[call-overload]

    def changes(self, before: RunRecord[Config]) -> bool:
        """Whether a run that goes on is longer than its record says, or its capture elsewhere."""
        return (self.config, self.data.data) != (before.config, before.data.data)

    @classmethod
    def load(cls, path: Path, config: Callable[[Any], Config]) -> RunRecord[Config]:
        """Read what `save` wrote, in any version.

        Args:
            config: makes a configuration of what the file holds.

        Raises:
            SplatError: the file is missing or damaged.
        """
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
            dataset = content.get("dataset")
            if not isinstance(dataset, str | None):
                raise TypeError("its dataset is no fingerprint")
            return cls(DataOptions.from_json(content["data"]), config(content["config"]), dataset)
        except FileNotFoundError as error:
            raise SplatError(f"{path.parent} is not the folder of a training run: it has no {path.name}") from error
        # Text or JSON that is none are ValueErrors, as is a SplatError.
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise SplatError(f"{path} is damaged; train again, or name a .ply and its --data ({reason(error)})") from error

    def resumed(
        self, out: Path, asked: RunRecord[Config], defaults: Config, given: Collection[str], length: str
    ) -> RunRecord[Config]:
        """The record of this run when it goes on.

        Args:
            asked: of the command that resumes it. Its folder is where the capture is now.
            defaults: of the command.
            given: as for `refuse_contradictions`.
            length: the field of the configuration that may be extended.

        Raises:
            SplatError: an option contradicts the run's.
        """
        folder = asked.data.data
        refuse_contradictions(out, self.data, asked.data, DataOptions(folder), given, free=("data", "max_memory"))
        refuse_contradictions(out, self.config, asked.config, defaults, given, free=(length,))
        lengths = (getattr(config, length) for config in (self.config, asked.config, defaults))
        config: Config = replace(self.config, **{length: extended(out, length, given, *lengths)})  # type: ignore[type-var]
        if self.dataset is None and folder.resolve() != self.data.data:
            raise contradiction(out, "data", self.data.data, folder, "name the capture that it was begun with")
        data = replace(self.data, data=folder.resolve(), max_memory=asked.data.max_memory)
        return replace(self, data=data, config=config)

    def load_dataset(self, out: Path, memory_limit_bytes: int | None = None) -> tuple[RunRecord[Config], Dataset]:
        """The dataset, as `DataOptions.load` has it, and the record with its fingerprint.

        Raises:
            SplatError: it is not the one that the run was begun with.
        """
        dataset = self.data.load(memory_limit_bytes)
        actual = fingerprint(dataset)
        if self.dataset not in (None, actual):
            raise SplatError(
                f"{dataset.root} is not what the run in {out} was begun with: names, sizes, cameras or their split differ; "
                "resume it with the same capture, or choose another --out"
            )
        return replace(self, dataset=actual), dataset
