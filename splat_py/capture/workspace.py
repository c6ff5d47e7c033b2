"""A capture's folder, from which an interrupted capture continues, and its report.

images/, masks/   the photographs upright, and what to ignore in them
database.db       COLMAP's features and matches
sparse/0/         the model: what `splat train` reads
capture.json      the phases that are done, with their inputs; the photographs; the report
"""

import hashlib
import json
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from splat_py.base.errors import SplatError
from splat_py.base.fields import dataclass_of
from splat_py.base.files import parse_json, reason, regular, write_json
from splat_py.capture.photographs import Photograph

_T = TypeVar("_T")

# Fewer features or matches are too few; COLMAP needs 30 matches with points of the scene.
_FEW_FEATURES, _FEW_MATCHES = 100, 45
PHASES = ("photographs", "features", "matching", "mapping")
_VERSION = 1
_STATE = "capture.json"


@dataclass(frozen=True)
class Unregistered:
    """A photograph that is not part of the scene: its name where it was found, why, and what helps."""

    name: str
    reason: str
    advice: str


@dataclass(frozen=True)
class CaptureReport:
    """The result of `capture`.

    Attributes:
        root: the folder, which `splat train` and `load_dataset` read.
        registered: names of the photographs whose pose is known, in `root`/images.
        unregistered: the others.
        points: number of points of the sparse scene.
        error: mean reprojection error of the points, in pixels.
        seconds: duration of each phase.
    """

    root: Path
    registered: list[str]
    unregistered: list[Unregistered]
    points: int
    error: float
    seconds: dict[str, float]


@dataclass(frozen=True)
class Found:
    """A model in capture.json: names of its photographs, its points, and their mean error in pixels."""

    registered: tuple[str, ...]
    points: int
    error: float


def unregistered_photographs(
    photographs: Sequence[Photograph],
    parts: Mapping[str, int],
    features: Mapping[str, int | None],
    matches: Mapping[tuple[str, str], int],
) -> list[Unregistered]:
    """Return the photographs that are not in the kept model, 0 of `parts`, and why: from the features of each photograph, and
    the matches of each compared pair."""
    sources = {photograph.name: photograph.source for photograph in photographs}
    typical = median(photograph.sharpness for photograph in photographs)
    sizes = Counter(parts.values())
    partners: dict[str, list[tuple[int, str]]] = {}
    for (a, b), count in matches.items():
        partners.setdefault(a, []).append((count, b))
        partners.setdefault(b, []).append((count, a))
    result = []
    for photograph in photographs:
        part = parts.get(photograph.name)
        if part == 0:
            continue
        count, other = max(partners.get(photograph.name, ()), default=(0, ""))
        found = features.get(photograph.name) or 0
        best = f"{count} matches at best, with {sources[other]}" if count else "no match with any other"
        blurred = photograph.sharpness < 0.35 * typical
        if photograph.contrast < 0.02:
            why = f"nearly one colour, too dark or too bright: {found} features"
            advice = "take it again in other light, or leave it out"
        elif blurred and (found < _FEW_FEATURES or count < _FEW_MATCHES):
            why = f"blurred: its sharpness is {photograph.sharpness:.2g}, and {typical:.2g} is the median; {best}"
            advice = "take it again with a steady hand or more light, or leave it out"
        elif found < _FEW_FEATURES:
            why = f"only {found} features: little of it has texture"
            advice = "take it again so that more of the scene's texture is in the picture"
        elif part is not None:
            why = f"one of {sizes[part]} photographs that fit together, but not with the others"
            advice = "take photographs on the way from these to the others, so that both are in the picture"
        elif count < _FEW_MATCHES:
            why = f"too little overlap: {best}"
            advice = "take photographs between it and the others, a step apart" if count else "check that it shows the scene"
        else:
            why = f"its pose is uncertain: {best}"
            advice = "take more photographs near it, from places to its left and right"
        result.append(Unregistered(photograph.source, why, advice))
    return result


class Workspace:
    """A folder with photographs, their masks (same names and .png), COLMAP's database and model, and the record of phases."""

    def __init__(self, root: Path, source: Path) -> None:
        self.root = root
        self.images, self.masks = root / "images", root / "masks"
        self.database, self.model = root / "database.db", root / "sparse" / "0"
        self.source = str(source.resolve())
        self._state = self._read()
        recorded = self._state.get("source")
        if recorded is None and root.is_dir() and any(not path.name.startswith(".") for path in root.iterdir()):
            raise SplatError(f"{root} holds something other than a capture; choose another --out")
        if recorded not in (None, self.source):
            raise SplatError(f"{root} holds the capture of {recorded}, not of {self.source}; choose another --out")
        self._state |= {"version": _VERSION, "source": self.source}
        self._state.setdefault("phases", {})

    def records(self, name: str, kind: type[_T]) -> list[_T]:
        """Return the records that a phase has left, one dataclass each."""
        noted = self._state.get(name)
        try:
            return [dataclass_of(kind, record) for record in (noted if isinstance(noted, list) else [noted])]
        except (TypeError, SplatError) as error:
            raise self._damaged() from error

    def report(self) -> CaptureReport:
        """Return the report of a capture whose phases are all done."""
        found = self.records("found", Found)
        if len(found) != 1:
            raise self._damaged()
        unregistered = [item for name in ("unreadable", "left_out") for item in self.records(name, Unregistered)]
        seconds = {name: phase.get("seconds", 0.0) for name, phase in self._state["phases"].items()}
        return CaptureReport(self.root, list(found[0].registered), unregistered, found[0].points, found[0].error, seconds)

    def _damaged(self) -> SplatError:
        return SplatError(f"{self.root / _STATE} is damaged; remove the folder, or choose another --out")

    def is_done(self, phase: str, key: str) -> bool:
        """True if a phase is complete for inputs with this key."""
        record = self._state["phases"].get(phase, {})
        return record.get("key") == key and record.get("done") is True

    @contextmanager
    def phase(self, name: str, key: str) -> Iterator[dict[str, Any]]:
        """Run a phase within this context, from where it was interrupted; record what is put into the dictionary. SplatError if
        its database or photographs are damaged, or the disk is full.

        If the phase was begun with other inputs, its results and those of later phases are removed first. Photographs are
        always stored from the first one again, since one may be half written.
        """
        record, began = self._state["phases"].get(name, {}), time.monotonic()
        noted: dict[str, Any] = {}
        try:
            if record.get("key") != key or name == PHASES[0]:
                self._remove_from(name)
                record = {"key": key}
            record["done"] = False
            self._state["phases"][name] = record
            self._save()
            yield noted
            self._state |= noted
            record["done"] = True
        except SplatError:
            if name == PHASES[0]:
                # There is no result: free the folder for another source.
                self._remove_from(name)
                (self.root / _STATE).unlink()
            raise
        except (sqlite3.Error, RuntimeError, ValueError) as error:  # pycolmap raises the last two
            if name == PHASES[0]:
                raise
            says = f"the capture in {self.root} cannot be continued with its {name} ({reason(error)})"
            raise SplatError(f"{says}; remove the folder, or choose another --out") from error
        finally:
            if (self.root / _STATE).exists():
                record["seconds"] = round(record.get("seconds", 0.0) + time.monotonic() - began, 3)
                self._save()

    def _remove_from(self, phase: str) -> None:
        first = PHASES.index(phase)
        for name in PHASES[first:]:
            self._state["phases"].pop(name, None)
        self._save()
        shutil.rmtree(self.root / "sparse", ignore_errors=True)
        if first < PHASES.index("matching"):
            for path in self.root.glob("database.db*"):
                path.unlink()
        elif first == PHASES.index("matching") and self.database.exists():
            with closing(sqlite3.connect(self.database)) as database, database:
                for table in ("matches", "two_view_geometries"):
                    database.execute(f"DELETE FROM {table}")
        if first == 0:
            shutil.rmtree(self.images, ignore_errors=True)
            shutil.rmtree(self.masks, ignore_errors=True)

    def _save(self) -> None:
        write_json(self.root / _STATE, self._state)

    def _read(self) -> dict[str, Any]:
        try:
            state = parse_json(regular(self.root / _STATE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._damaged() from error
        phases = state.get("phases") if isinstance(state, dict) and state.get("version") == _VERSION else None
        if not isinstance(phases, dict):
            raise self._damaged()
        if not all(isinstance(phase, dict) and isinstance(phase.get("seconds", 0.0), float) for phase in phases.values()):
            raise self._damaged()
        return state


def key_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()[:32]
