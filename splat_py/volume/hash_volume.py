"""Hash grids on the device: how large they are, and what is bound to the kernels of slang/kernels/hash_*.slang."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.volume.box import Box
from splat_py.volume.flat_volume import FlatVolume
from splat_py.volume.half_storage import features_of, halves_of
from splat_py.volume.marching import March

FEATURES = constant("splat/hash_grid", "FEATURES")
HIDDEN = constant("splat/hash_field", "HIDDEN")
_HARMONICS = constant("splat/hash_field", "HARMONICS")
OCCUPANCY = constant("kernels/hash_place", "OCCUPANCY")
LEVELS = 8
MOST_LEVELS = 16
MOST_CELLS = 1023
LEAST_SIZE, MOST_SIZE = 1 << 4, 1 << 24
# A cell is empty where a step through it takes away less light than this.
_LEAST_ALPHA = 1e-3
# Entries to which CPU drivers add what is 0, and floats behind the weights that they read with them.
_SPARE_ENTRIES, _SPARE_FLOATS = 8, 8


@dataclass(frozen=True)
class HashShape:
    """The sizes of a hash grid and its networks.

    Attributes:
        cells: of each level, along the side of the box's longest side.
        size: the most entries of a level, a power of two.

    Raises:
        SplatError: too many levels or cells, or a size that is no power of two.
    """

    cells: tuple[int, ...]
    size: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.cells) <= MOST_LEVELS or not all(1 <= n <= MOST_CELLS for n in self.cells):
            raise SplatError(
                f"cells is {list(self.cells)[: MOST_LEVELS + 1]}; give from 1 to {MOST_LEVELS} levels of 1 to {MOST_CELLS}"
            )
        if not LEAST_SIZE <= self.size <= MOST_SIZE or self.size & (self.size - 1):
            raise SplatError(f"size is {self.size}; it must be a power of two from {LEAST_SIZE} to {MOST_SIZE}")

    @classmethod
    def of_memory(cls, nbytes: int, finest: int) -> HashShape:
        """Levels up to `finest` cells, with the largest tables whose floats fit into so many bytes."""
        finest = min(finest, MOST_CELLS)
        coarsest = max(finest // 16, 2)
        growth = (finest / coarsest) ** (1 / (LEVELS - 1))
        cells = tuple(round(coarsest * growth**level) for level in range(LEVELS))
        sizes = [1 << bits for bits in range(LEAST_SIZE.bit_length() - 1, MOST_SIZE.bit_length())]
        fitting = [size for size in sizes if cls(cells, size).nbytes <= nbytes]
        return cls(cells, fitting[-1] if fitting else sizes[0])

    @property
    def entries(self) -> int:
        """Of all levels."""
        return sum(min((n + 1) ** 3, self.size) for n in self.cells)

    @property
    def weights(self) -> int:
        """Of both networks, a row a hidden unit: inputs, a bias, outputs."""
        features = FEATURES * len(self.cells)
        return HIDDEN * (features + 1 + 1) + HIDDEN * (features + _HARMONICS + 1 + 3)

    @property
    def nbytes(self) -> int:
        """Of table and weights."""
        return 4 * (FEATURES * self.entries + self.weights)

    # As they lie on the device, with what nobody asks for.

    @property
    def padded_entries(self) -> int:
        """With the spare ones, an even number."""
        return (self.entries + _SPARE_ENTRIES + 1) // 2 * 2

    @property
    def floats(self) -> int:
        """Of the one array that holds table and weights."""
        return (FEATURES * self.padded_entries + self.weights + _SPARE_FLOATS + 3) // 4 * 4

    @property
    def parts(self) -> tuple[int, int]:
        """Of these, table and weights, both padded."""
        table = FEATURES * self.padded_entries
        return table, self.floats - table

    def join(self, table: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """[floats] of table [entries, FEATURES] and weights [weights]."""
        joined = np.zeros(self.floats, np.float32)
        joined[: table.size] = table.ravel()
        joined[FEATURES * self.padded_entries :][: self.weights] = weights
        return joined

    def split(self, floats: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Copies of table and weights."""
        table = floats[: FEATURES * self.entries].reshape(-1, FEATURES)
        return table.copy(), floats[FEATURES * self.padded_entries :][: self.weights].copy()


def unit_density(box: Box) -> float:
    """Density where the network says 0: a thin fog, of optical depth 1 along the longest side."""
    return 1.0 / float(box.sides.max())


class HashVolume(FlatVolume):
    """A hash grid on the device, [floats] as `HashShape` has them, with its occupancy.

    Args:
        weights: where `parameters` is only the table, of halves that are `stored` as words: what lies behind it else. Such a
            grid can only be marched through.
    """

    def __init__(self, device: Device, parameters: Array, shape: HashShape, weights: Array | None = None) -> None:
        super().__init__(device, parameters)
        self.shape, self._weights = shape, weights or parameters
        self._cells = device.memory.array(np.array(shape.cells, np.uint32))
        self.occupied = device.memory.empty(OCCUPANCY**3, np.uint32)

    @property
    def floats(self) -> int:
        """Of a gradient."""
        return self.shape.floats

    def parts(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """See `Marched`."""
        return (gradient,) if self._weights is self.parameters else gradient.split(self.shape.parts)

    def record_occupancy(self, recorder: Recorder, march: March) -> None:
        """See `Marched`: a cell is empty where steps through the densities at 4³ places in it take next to no light away."""
        recorder.stage("occupancy")
        # Densities are above 0: below -1 there are none.
        least = -math.log1p(-_LEAST_ALPHA) * march.steps_per_unit if march.skip_empty else -1.0
        recorder.dispatch(
            self._module("hash_occupancy"),
            "markHashOccupied",
            linear_groups(OCCUPANCY**3),
            {**march.box.uniforms, **self._field_uniforms(march), "leastDensity": least},
            {**self._table(None), "occupied": self.occupied},
            FEATURE_COUNT=FEATURES * len(self.shape.cells),
            **halves_of(self.parameters),
        )

    def _field_constants(self, march: March) -> dict[str, Any]:
        return {"Field": "HashedField", "FEATURE_COUNT": FEATURES * len(self.shape.cells), **halves_of(self.parameters)}

    def _field_uniforms(self, march: March) -> dict[str, int | float]:
        shape = self.shape
        return {
            **dict.fromkeys(("sizeX", "sizeY", "sizeZ"), 1),
            "tableSize": shape.size,
            "tableEntries": shape.padded_entries,
            "tableFloats": shape.floats,
            "unitDensity": unit_density(march.box),
        }

    def _field_buffers(self, gradients: Array | None) -> dict[str, Array | None]:
        return {**self._no_grid(), **self._table(gradients), "occupiedCells": self.occupied}

    def _table(self, gradients: Array | None) -> dict[str, Array | None]:
        bound = {**features_of("table", self.parameters), "weights": self._weights, "levelCells": self._cells}
        return {**bound, **self._sums("vTable", gradients), **({"vWeights": gradients} if self.groups else {})}
