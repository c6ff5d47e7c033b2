"""Options of a picture's fit: how pixels find their blobs, and learning rates."""

from dataclasses import dataclass, replace
from typing import Literal, Self

from splat_py.base.fields import check_fields

# Described in `splat_py.image.rasterizers`.
Method = Literal["auto", "tiles", "group", "autodiff"]


@dataclass(frozen=True)
class Rates:
    """Learning rates of the four kinds of raw floats; all fall exponentially to the share `final`."""

    center: float = 0.012
    shape: float = 0.12
    color: float = 0.15
    opacity: float = 0.15
    final: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self, {**dict.fromkeys(("center", "shape", "color", "opacity"), (0.0, 100.0)), "final": (1e-9, 1.0)})

    def times(self, factor: float) -> Self:
        """Return these rates, all but `final` multiplied by `factor`."""
        rates = {name: getattr(self, name) * factor for name in ("center", "shape", "color", "opacity")}
        return replace(self, **rates)
