"""Morton codes, computed bit by bit."""

import numpy as np
import numpy.typing as npt


def morton_codes(means: npt.NDArray[np.floating], bounds: npt.NDArray[np.float64]) -> list[int]:
    """Codes of the cells of the means: 1024 a side, in a cube that begins at bounds[0] and has the box's largest side."""
    low, side = bounds[0].astype(np.float32), np.float32(np.max(bounds[1] - bounds[0]))
    cells = (np.clip((means.astype(np.float32) - low) / side, 0, 1) * np.float32(1023)).astype(np.uint32)
    return [int("".join(z + y + x for x, y, z in zip(*(f"{v:010b}" for v in cell), strict=True)), 2) for cell in cells]
