"""How poses are found: the options of `splat capture`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from splat_py.fields import Range, check_fields

_RANGES: dict[str, Range] = {"frames": (0, 100_000), "size": (64, 20_000), "features": (64, 100_000)}


@dataclass(frozen=True)
class CaptureOptions:
    """How poses are found."""

    # Photographs were taken one after the other, in the order of their names: each is matched with its neighbours and those
    # that look alike, instead of with all. A video's frames always are.
    ordered: bool = False
    # How many frames of a video to take, the sharpest of as many equal intervals; 0 takes two a second, from 24 to 150.
    frames: int = 0
    # How cameras and points are found from matches: one photograph after the other, or all at once. By default one after the
    # other, and where that leaves photographs out, all at once too; what has more photographs is kept.
    mapper: Literal["auto", "incremental", "global"] = "auto"
    # Features are sought in photographs whose longer side is at most this.
    size: int = 1600
    # Most features of a photograph.
    features: int = 4096

    def validate(self) -> None:
        """Raise SplatError if an option has a wrong type or is out of its range."""
        check_fields(self, _RANGES)
