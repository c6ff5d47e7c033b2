"""The folder that a capture is made in: what each phase has left there, so that an interrupted capture goes on.

images/, masks/   the photographs upright, and what to ignore in them
database.db       COLMAP's features and matches
sparse/0/         the model: what `splat train` reads
capture.json      which phases are done, with what; the photographs; the report
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from splat_py.errors import SplatError
from splat_py.files import parse_json, write_json

PHASES = ("photographs", "features", "matching", "mapping")
_VERSION = 1
_STATE = "capture.json"


class Workspace:
    """A folder, and what is recorded of it.

    Raises:
        SplatError: it holds something else, or the capture of another source.
    """

    def __init__(self, root: Path, source: Path) -> None:
        self.root = root
        self.source = str(source.resolve())
        self._state = self._read()
        recorded = self._state.get("source")
        if recorded is None and root.is_dir() and any(not path.name.startswith(".") for path in root.iterdir()):
            raise SplatError(f"{root} holds something other than a capture; choose another --out")
        if recorded not in (None, self.source):
            raise SplatError(f"{root} holds the capture of {recorded}, not of {self.source}; choose another --out")
        self._state |= {"version": _VERSION, "source": self.source}
        self._state.setdefault("phases", {})

    @property
    def images(self) -> Path:
        """The photographs, upright."""
        return self.root / "images"

    @property
    def masks(self) -> Path:
        """Masks, called as their photographs and .png."""
        return self.root / "masks"

    @property
    def database(self) -> Path:
        """COLMAP's."""
        return self.root / "database.db"

    @property
    def model(self) -> Path:
        """The model."""
        return self.root / "sparse" / "0"

    def get(self, name: str, kind: type) -> Any:
        """What a phase that is done has noted under a name.

        Raises:
            SplatError: it is not there.
        """
        value = self._state.get(name)
        if not isinstance(value, kind):
            raise self.damaged()
        return value

    def damaged(self) -> SplatError:
        """That what is recorded cannot be used."""
        return SplatError(f"{self.root / _STATE} is damaged; remove the folder, or choose another --out")

    def seconds(self) -> dict[str, float]:
        """What each phase has taken, all its attempts together."""
        return {name: phase.get("seconds", 0.0) for name, phase in self._state["phases"].items()}

    def is_done(self, phase: str, key: str) -> bool:
        """Whether a phase is complete, with what has this key."""
        record = self._state["phases"].get(phase, {})
        return record.get("key") == key and record.get("done") is True

    @contextmanager
    def phase(self, name: str, key: str) -> Iterator[dict[str, Any]]:
        """Within this context a phase is made, from where the same was interrupted; what is put into the dictionary is noted.

        If it was begun with something else, that and what follows from it is removed first; photographs are stored from the
        first again, since one may be half written.
        """
        record = self._state["phases"].get(name, {})
        if record.get("key") != key or name == PHASES[0]:
            self._remove_from(name)
            record = {"key": key}
        record["done"] = False
        self._state["phases"][name] = record
        self._save()
        began, spent = time.monotonic(), record.get("seconds", 0.0)
        noted: dict[str, Any] = {}
        try:
            yield noted
            self._state |= noted
            record["done"] = True
        except SplatError:
            if name == PHASES[0]:
                # Nothing has come of it: the folder is free for another source.
                self._remove_from(name)
                (self.root / _STATE).unlink()
            raise
        finally:
            if (self.root / _STATE).exists():
                record["seconds"] = round(spent + time.monotonic() - began, 3)
                self._save()

    def _remove_from(self, phase: str) -> None:
        """Remove what a phase and those after it have left."""
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
            state = parse_json((self.root / _STATE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self.damaged() from error
        phases = state.get("phases") if isinstance(state, dict) and state.get("version") == _VERSION else None
        if not isinstance(phases, dict) or not all(isinstance(phase, dict) for phase in phases.values()):
            raise self.damaged()
        if not all(isinstance(phase.get("seconds", 0.0), float) for phase in phases.values()):
            raise self.damaged()
        return state


def key_of(*parts: Any) -> str:
    """A name for what a phase is made from."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()[:32]
