"""Random numbers by counter: a hash of the counter and a key."""

import numpy as np
import numpy.typing as npt

from tests.reference.arrays import Array
from tests.volume.reference import pcg4d


def words(counters: npt.ArrayLike, key: tuple[int, int]) -> npt.NDArray[np.uint32]:
    """Random words [N, 4] of counters [N]."""
    first = np.asarray(counters)
    return pcg4d(np.stack([first, np.zeros_like(first), *(np.full_like(first, word) for word in key)], axis=1))


def uniforms(words: npt.NDArray[np.uint32]) -> Array:
    """Numbers in [0, 1) with 24 bits."""
    return (words >> np.uint32(8)) / 2.0**24


def normals_of(words: npt.NDArray[np.uint32]) -> Array:
    """Normal numbers [N, 3] from words [N, 4] (Box & Muller 1958)."""
    u = uniforms(words)
    (r, s), (a, b) = np.sqrt(-2 * np.log1p(-u[:, ::2])).T, 2 * np.pi * u[:, 1::2].T
    return np.stack([r * np.cos(a), r * np.sin(a), s * np.cos(b)], axis=1)


def normals(counters: npt.ArrayLike, key: tuple[int, int]) -> Array:
    """Numbers [N, 3] from N(0, 1), of counters [N]."""
    return normals_of(words(counters, key))
