"""Which photographs look alike, without a vocabulary from elsewhere: VLAD (Jégou et al. 2010) over words of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splat_py.capture.database import descriptors_of

# Words, descriptors of a photograph that are used, and of all photographs that words are made from.
_WORDS, _EACH, _SAMPLE = 64, 1000, 40_000


def look_alikes(database: Path, names: Sequence[str], count: int) -> list[tuple[int, int]]:
    """For each photograph the pairs (i, j), i < j, with the `count` that are most alike to it.

    Args:
        names: in the database, with features.
    """
    from scipy.cluster.vq import kmeans2

    generator = np.random.default_rng(0)
    each = [_some(_normalised(descriptors_of(database, name)), _EACH, generator) for name in names]
    sample = _some(np.concatenate(each), _SAMPLE, generator)
    if len(sample) < 2 * _WORDS:
        return []
    words, _ = kmeans2(sample, _WORDS, iter=10, minit="points", rng=generator)
    vectors = np.stack([_vlad(descriptors, words) for descriptors in each])
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, -np.inf)
    nearest = np.argsort(-alike, axis=1)[:, : min(count, len(names) - 1)]
    return sorted({(min(i, int(j)), max(i, int(j))) for i, row in enumerate(nearest) for j in row})


def _normalised(descriptors: NDArray[np.float32]) -> NDArray[np.float32]:
    return descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-6)


def _some(rows: NDArray[np.float32], most: int, generator: np.random.Generator) -> NDArray[np.float32]:
    return rows if len(rows) <= most else rows[generator.choice(len(rows), most, replace=False)]


def _vlad(descriptors: NDArray[np.float32], words: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums of what descriptors differ from their words by, each of length 1, all of length 1."""
    vector = np.zeros_like(words)
    if len(descriptors):
        nearest = np.argmax(descriptors @ words.T - 0.5 * (words**2).sum(1), axis=1)
        np.add.at(vector, nearest, descriptors - words[nearest])
    vector /= np.maximum(np.linalg.norm(vector, axis=1, keepdims=True), 1e-6)
    return (vector / max(float(np.linalg.norm(vector)), 1e-6)).ravel()
