"""What a radiance field fills."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError


@dataclass(frozen=True)
class Box:
    """An axis-aligned box in the world."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]

    @classmethod
    def of(cls, box: ArrayLike) -> Box:
        """From [2, 3], lower and upper corner.

        Raises:
            SplatError: another shape, not finite, or no volume.
        """
        corners = np.asarray(box, np.float64)
        if corners.shape != (2, 3):
            raise SplatError(f"box has shape {list(corners.shape)}; give its lower and upper corner, [2, 3]")
        if not np.isfinite(corners).all():
            raise SplatError("box holds a number that is not finite; give its lower and upper corner")
        if not (corners[0] < corners[1]).all():
            raise SplatError(
                f"box is degenerate, from {corners[0].tolist()} to {corners[1].tolist()}; "
                "its upper corner must exceed the lower one in x, y and z"
            )
        low, high = ((float(c[0]), float(c[1]), float(c[2])) for c in corners)
        return cls(low, high)

    @property
    def sides(self) -> NDArray[np.float64]:
        """Lengths along x, y, z."""
        return np.subtract(self.high, self.low)

    @property
    def uniforms(self) -> dict[str, int | float]:
        """As kernels take it."""
        corners = zip(("low", "high"), (self.low, self.high), strict=True)
        return {f"{end}{axis}": x for end, corner in corners for axis, x in zip("XYZ", corner, strict=True)}

    def numpy(self) -> NDArray[np.float64]:
        """[2, 3]."""
        return np.array([self.low, self.high])
