"""Codebooks for SOG: 256 numbers that stand for many, and a palette of vectors, both by k-means."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ROUNDS, _VECTOR_ROUNDS = 12, 6
# Rows whose distances to all centres are in memory at once.
_ROWS = 1 << 13


def codebook(values: NDArray[Any], size: int = 256) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """At most 256 numbers in ascending order, padded to `size`, and which of them each of `values` [...] is nearest to.

    Lloyd's iterations begin at quantiles mixed with even steps: alone, the ones would leave rare values far from any number,
    the others would spend numbers where there are no values.
    """
    flat = np.sort(values.reshape(-1).astype(np.float64))
    if not len(flat):
        return np.zeros(size, np.float32), values.astype(np.uint8)
    sums = np.concatenate([[0.0], np.cumsum(flat)])
    half = size // 2
    centers = np.concatenate([np.quantile(flat, np.linspace(0, 1, half)), np.linspace(flat[0], flat[-1], size - half)])
    centers.sort()
    for _ in range(_ROUNDS):
        edges = np.searchsorted(flat, (centers[1:] + centers[:-1]) / 2)
        starts, ends = np.concatenate([[0], edges]), np.concatenate([edges, [len(flat)]])
        counts = ends - starts
        centers = np.where(counts > 0, (sums[ends] - sums[starts]) / np.maximum(counts, 1), centers)
        centers.sort()
    centers = centers.astype(np.float32)
    labels = np.searchsorted((centers[1:] + centers[:-1]) / 2, values.reshape(-1))
    return centers, labels.reshape(values.shape).astype(np.uint8)


def palette(vectors: NDArray[np.float32], size: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """At most `size` vectors [P, D] for those in [N, D], and which of them stands for each, [N].

    First √size groups, then in each as many vectors as its share: all N against all of 65,536 would take hours without a GPU.
    """
    if len(vectors) <= size:
        return vectors.copy(), np.arange(len(vectors))
    data = torch.from_numpy(np.ascontiguousarray(vectors))
    generator = torch.Generator().manual_seed(0)
    groups = max(1, round(size**0.5))
    _, group = _k_means(data, groups, generator)
    order = torch.argsort(group, stable=True)
    counts = torch.bincount(group, minlength=groups)
    # At least one each, and together no more than there may be.
    shares = 1 + ((counts - 1).clamp(min=0) * ((size - groups) / max(1, len(vectors) - groups))).long()
    centers, labels, at, start = [], torch.empty(len(vectors), dtype=torch.long), 0, 0
    for count, share in zip(counts.tolist(), shares.tolist(), strict=True):
        rows = order[start : start + count]
        start += count
        if count:
            own, label = _k_means(data[rows], min(share, count), generator)
            centers.append(own)
            labels[rows] = label + at
            at += len(own)
    return torch.cat(centers).numpy(), labels.numpy()


def _k_means(data: torch.Tensor, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Centres [size, D] and the nearest one of each row, [N]."""
    centers = data[torch.randperm(len(data), generator=generator)[:size]].clone()
    for _ in range(_VECTOR_ROUNDS):
        labels = _nearest(data, centers)
        counts = torch.bincount(labels, minlength=size)
        sums = torch.zeros_like(centers).index_add_(0, labels, data)
        centers = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), centers)
    return centers, _nearest(data, centers)


def _nearest(data: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
    squares = (centers**2).sum(1)
    parts = [(squares - 2 * part @ centers.T).argmin(1) for part in data.split(_ROWS)]
    return torch.cat(parts)
