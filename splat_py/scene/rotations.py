"""Rotations as quaternions and as matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rotation_matrices(quats: NDArray[np.float64]) -> NDArray[np.float64]:
    """[..., 3, 3] of unit quaternions w, x, y, z [..., 4]."""
    w, x, y, z = np.moveaxis(quats, -1, 0)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(row, -1) for row in rows], -2)
