"""What formats have in common: numbers in few bits, quaternions of three numbers, orders that compress well, files in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.scene.ply import Float32Array, GaussianArrays

# Y_0: rgb = 0.5 + Y_0 · sh[0].
SH_C0 = 0.28209479177387814
# Opacities of exactly 0 and 1 have no finite logarithm.
_LEAST_OPACITY = 1e-6
_SQRT2 = 2**0.5
# Of the three numbers that are stored when the first, second … of a quaternion is left out.
_OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])


def opacities_of(logits: Float32Array) -> NDArray[np.float64]:
    """Opacities from 0 to 1."""
    return 1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -700, 700)))


def logits_of(opacities: NDArray[Any]) -> Float32Array:
    """The logarithms of o / (1 - o), finite for 0 and 1 too."""
    safe = np.clip(opacities.astype(np.float64), _LEAST_OPACITY, 1 - _LEAST_OPACITY)
    return np.log(safe / (1 - safe)).astype(np.float32)


def to_levels(values: NDArray[Any], levels: int) -> NDArray[np.uint32]:
    """Numbers from 0 to 1 as whole numbers from 0 to `levels`, the nearest ones."""
    return np.rint(np.clip(values, 0, 1) * levels).astype(np.uint32)


def colors_of(sh: Float32Array) -> NDArray[np.float64]:
    """What the harmonic of degree 0 makes of coefficients [N, K, 3]: rgb [N, 3], between 0 and 1 unless it is beyond."""
    return sh[:, 0].astype(np.float64) * SH_C0 + 0.5


def base_of(colors: NDArray[Any]) -> NDArray[np.float64]:
    """The inverse of `colors_of`, [N, 3]."""
    return (colors.astype(np.float64) - 0.5) / SH_C0


def normalized(quats: NDArray[Any]) -> NDArray[np.float64]:
    """Of length 1; no rotation in the place of those that are zero."""
    quats = quats.astype(np.float64)
    lengths = np.linalg.norm(quats, axis=1, keepdims=True)
    return np.where(lengths > 0, quats / np.where(lengths > 0, lengths, 1), [1.0, 0, 0, 0])


def drop_largest(quats: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Which component [N] is the largest, and the other three [N, 3] over √½, -1 to 1, with the sign that makes it positive."""
    quats = normalized(quats)
    largest = np.abs(quats).argmax(1)
    rows = np.arange(len(quats))
    signed = quats * np.where(quats[rows, largest] < 0, -_SQRT2, _SQRT2)[:, None]
    return largest, np.take_along_axis(signed, _OTHERS[largest], 1)


def restore_largest(largest: NDArray[Any], others: NDArray[Any]) -> Float32Array:
    """The inverse of `drop_largest`, [N, 4]."""
    others = others.astype(np.float64) / _SQRT2
    quats = np.empty((len(others), 4))
    np.put_along_axis(quats, _OTHERS[largest], others, 1)
    quats[np.arange(len(quats)), largest] = np.sqrt(np.maximum(0, 1 - (others**2).sum(1)))
    return normalized(quats).astype(np.float32)


def joined(parts: Sequence[GaussianArrays]) -> GaussianArrays:
    """The Gaussians of all of a file's parts, which are at least one; coefficients that a part lacks are zero."""
    most = max(part.sh.shape[1] for part in parts)
    sh = [np.pad(part.sh, ((0, 0), (0, most - part.sh.shape[1]), (0, 0))) for part in parts]
    means, quats, log_scales, logits = (np.concatenate(columns) for columns in zip(*(part[:4] for part in parts), strict=True))
    return GaussianArrays(means, quats, log_scales, logits, np.concatenate(sh))


def morton_order(means: Float32Array) -> NDArray[np.intp]:
    """An order [N] along a Z-curve through means [N, 3], in which neighbours are similar."""
    if not len(means):
        return np.zeros(0, np.intp)
    lowest = means.min(0).astype(np.float64)
    extent = np.maximum(means.max(0) - lowest, 1e-30)
    cells = ((means - lowest) / extent * 1023).astype(np.uint64)
    key = np.zeros(len(means), np.uint64)
    for bit in range(10):
        for axis in range(3):
            key |= ((cells[:, axis] >> np.uint64(bit)) & np.uint64(1)) << np.uint64(3 * bit + axis)
    return np.argsort(key, kind="stable")
