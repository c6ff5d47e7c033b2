"""The oracle for hash grids: encoding and networks of Müller et al. 2022 in float64 NumPy. Shares no code with splat_py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference import sh_basis
from tests.volume import reference as ref
from tests.volume.reference import Array

HIDDEN = 16
PRIMES = np.array([1, 2654435761, 805459861], np.uint64)


def entries_of(cells: list[int], size: int) -> list[int]:
    """How many each level has."""
    return [min((n + 1) ** 3, size) for n in cells]


def weight_count(levels: int) -> int:
    return HIDDEN * (2 * levels + 2) + HIDDEN * (2 * levels + 9 + 4)


@dataclass(frozen=True)
class HashGrid:
    """table [entries, 2], weights as `weight_count` has them, levels' cells and most entries, density of a network's 0."""

    table: Array
    weights: Array
    cells: list[int]
    size: int
    unit_density: float

    def features(self, places: Array) -> Array:
        """[N, 2 · levels] at places [N, 3] of the unit cube."""
        found, first = [], 0
        for cells, entries in zip(self.cells, entries_of(self.cells, self.size), strict=True):
            base = np.clip(np.floor(places * cells), 0, cells - 1).astype(np.int64)
            fraction = places * cells - base
            level = np.zeros((len(places), 2))
            for corner in np.ndindex(2, 2, 2):
                vertex = base + corner
                if (cells + 1) ** 3 <= self.size:
                    index = vertex @ np.array([1, cells + 1, (cells + 1) ** 2])
                else:
                    x, y, z = (vertex.astype(np.uint64) * PRIMES & np.uint64(0xFFFFFFFF)).T
                    index = ((x ^ y ^ z) % np.uint64(self.size)).astype(np.int64)
                weight = np.where(np.array(corner) == 1, fraction, 1 - fraction).prod(1)
                level += weight[:, None] * self.table[first + index]
            found.append(level)
            first += entries
        return np.concatenate(found, axis=1)

    def query(self, places: Array, directions: Array) -> tuple[Array, Array]:
        """Densities [N] and colours [N, 3]."""
        x = self.features(places)
        n = x.shape[1]
        dense = self.weights[: HIDDEN * (n + 2)].reshape(HIDDEN, n + 2)
        color = self.weights[HIDDEN * (n + 2) :].reshape(HIDDEN, n + 13)
        logarithm = np.maximum(x @ dense[:, :n].T + dense[:, n], 0) @ dense[:, n + 1]
        seen = np.concatenate([x, sh_basis(directions, 2)], axis=1)
        rgb = np.maximum(seen @ color[:, : n + 9].T + color[:, n + 9], 0) @ color[:, n + 10 :]
        return np.exp(np.minimum(logarithm, 15)) * self.unit_density, 1 / (1 + np.exp(-rgb))


def march(
    grid: HashGrid, box: Array, background: Array, origins: Array, directions: Array, steps_per_unit: float, min_T: float = 1e-6
) -> Array:
    """Colour, transmittance and depth [R, 5] of rays with unit directions, samples in the middles of their steps."""
    results = []
    for origin, direction in zip(origins, directions, strict=True):
        near, far = ref.chord(origin, direction, box)
        if far <= near:
            results.append([*background, 1, 0])
            continue
        count = max(int(np.ceil((far - near) * steps_per_unit - 1e-3)), 1)
        step = (far - near) / count
        t = near + (np.arange(count) + 0.5) * step
        places = (origin + t[:, None] * direction - box[0]) / (box[1] - box[0]).max()
        density, color = grid.query(places, np.broadcast_to(direction, places.shape))
        through = np.exp(-density * step)
        T = np.concatenate([[1.0], np.cumprod(through)])
        last = int((T[:-1] > min_T).sum())
        w = (T[:-1] * (1 - through))[:last]
        results.append([*(w @ color[:last] + T[last] * background), T[last], w @ t[:last]])
    return np.array(results)
