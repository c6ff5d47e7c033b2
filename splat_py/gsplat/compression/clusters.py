"""k-means of rows, in torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

# Rows times centroids whose distances are computed at once.
_MOST_DISTANCES = 1 << 24
# Lloyd's iteration ends when a smaller share of rows changes its centroid, or after so many rounds.
_SETTLED, _MOST_ROUNDS = 0.001, 10


def k_means(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Centroids [K, D] and each row's nearest one [N], int64; K is `count` or N if that is less. The same for the same rows.

    Args:
        rows: [N, D] float32, N at least 1.
    """
    if len(rows) <= count:
        return rows, torch.arange(len(rows), device=rows.device)
    generator = torch.Generator().manual_seed(0)
    centroids = rows[torch.randperm(len(rows), generator=generator)[:count].to(rows.device)].clone()
    labels = _nearest(rows, centroids)
    for _ in range(_MOST_ROUNDS):
        sums = torch.zeros_like(centroids).index_add_(0, labels, rows)
        sizes = labels.bincount(minlength=count)
        # Centroids that nothing is near stay where they are.
        centroids = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], centroids)
        before, labels = labels, _nearest(rows, centroids)
        if (labels != before).float().mean() < _SETTLED:
            break
    return centroids, labels


def _nearest(rows: Tensor, centroids: Tensor) -> Tensor:
    # |r - c|² without |r|², which is the same for all centroids.
    squares = centroids.square().sum(1)
    parts = rows.split(max(_MOST_DISTANCES // len(centroids), 1))
    return torch.cat([torch.addmm(squares, part, centroids.T, alpha=-2).argmin(1) for part in parts])
