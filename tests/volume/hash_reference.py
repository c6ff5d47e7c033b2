"""The oracle for hash grids: encoding, networks (Müller et al. 2022) and march in float64 torch, with autograd's gradients.

Shares no code with splat_py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tests.volume.reference import uniform

HIDDEN = 16


def f64(array: object) -> Tensor:
    return torch.as_tensor(np.asarray(array, np.float64))


def entries_of(cells: list[int], size: int) -> list[int]:
    """How many each level has."""
    return [min((n + 1) ** 3, size) for n in cells]


def weight_count(levels: int) -> int:
    return HIDDEN * (2 * levels + 2) + HIDDEN * (2 * levels + 9 + 4)


def harmonics(d: Tensor) -> Tensor:
    """[N, 9] of directions [N, 3], degree 2, with the signs of Kerbl et al. 2023."""
    x, y, z = d.unbind(1)
    one = torch.full_like(x, 0.28209479177387814)
    a, b, c, e = 0.4886025119029199, 1.0925484305920792, 0.31539156525252005, 0.5462742152960396
    second = [b * x * y, -b * y * z, c * (2 * z * z - x * x - y * y), -b * x * z, e * (x * x - y * y)]
    return torch.stack([one, -a * y, a * z, -a * x, *second], 1)


@dataclass(frozen=True)
class HashGrid:
    """table [entries, 2], weights as `weight_count` has them, levels' cells and most entries, density of a network's 0."""

    table: Tensor
    weights: Tensor
    cells: list[int]
    size: int
    unit_density: float

    def features(self, places: Tensor) -> Tensor:
        """[N, 2 · levels] at places [N, 3] of the unit cube."""
        found, first = [], 0
        for cells, entries in zip(self.cells, entries_of(self.cells, self.size), strict=True):
            base = torch.clip(torch.floor(places.detach() * cells), 0, cells - 1)
            fraction = places * cells - base
            level = torch.zeros(len(places), 2, dtype=torch.float64)
            for corner in np.ndindex(2, 2, 2):
                x, y, z = (base.long() + torch.tensor(corner)).unbind(1)
                if (cells + 1) ** 3 <= self.size:
                    index = x + (cells + 1) * (y + (cells + 1) * z)
                else:
                    # Below 2⁶³, and the lowest bits are those of 32.
                    index = (x ^ (y * 2654435761) ^ (z * 805459861)) % self.size
                weight = torch.where(torch.tensor(corner) == 1, fraction, 1 - fraction).prod(1)
                level = level + weight[:, None] * self.table[first + index]
            found.append(level)
            first += entries
        return torch.cat(found, 1)

    def query(self, places: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Densities [N] and colours [N, 3]."""
        x = self.features(places)
        n = x.shape[1]
        dense = self.weights[: HIDDEN * (n + 2)].reshape(HIDDEN, n + 2)
        color = self.weights[HIDDEN * (n + 2) :].reshape(HIDDEN, n + 13)
        logarithm = torch.relu(x @ dense[:, :n].T + dense[:, n]) @ dense[:, n + 1]
        seen = torch.cat([x, harmonics(directions)], 1)
        rgb = torch.relu(seen @ color[:, : n + 9].T + color[:, n + 9]) @ color[:, n + 10 :]
        return torch.exp(torch.clip(logarithm, max=15)) * self.unit_density, torch.sigmoid(rgb)


class Queried(Protocol):
    """What is marched through."""

    def query(self, places: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Densities [N] and colours [N, 3]."""


def march(
    grid: Queried,
    box: Tensor,
    background: Tensor,
    rays: tuple[Tensor, Tensor],
    steps_per_unit: float,
    seed: int | None = None,
    min_T: float = 1e-6,
) -> Tensor:
    """Colour, transmittance and depth [R, 5] of rays with directions of any length; jittered if there is a seed."""
    results = []
    origins, directions = rays
    for ray, (origin, direction) in enumerate(zip(origins, directions / directions.norm(dim=1, keepdim=True), strict=True)):
        ends = (box - origin) / direction
        near = torch.clip(ends.amin(0).max(), min=0)
        length = ends.amax(0).min() - near
        if length <= 0:
            results.append(torch.cat([background, f64([1, 0])]))
            continue
        count = max(int(np.ceil(float(length.detach()) * steps_per_unit - 1e-3)), 1)
        step = length / count
        offsets = f64(np.full(count, 0.5) if seed is None else uniform(ray, count, seed))
        t = near + (torch.arange(count) + offsets) * step
        places = (origin + t[:, None] * direction - box[0]) / (box[1] - box[0]).max()
        density, color = grid.query(places, direction.expand(places.shape))
        through = torch.exp(-density * step)
        T = torch.cat([torch.ones(1, dtype=torch.float64), torch.cumprod(through, 0)])
        last = int((T[:-1] > min_T).sum())
        w = (T[:-1] * (1 - through))[:last]
        results.append(torch.cat([w @ color[:last] + T[last] * background, T[last : last + 1], (w @ t[:last])[None]]))
    return torch.stack(results)
