"""Hash grids with small networks as radiance fields: their sizes, the user's field, the device's field, and its optimiser."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.base.files import Layout
from splat_py.fit.run_folder import require_layout
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.volume.config import VolumeConfig
from splat_py.volume.device_field import Box, DeviceField, GridSize, March, TableSize, features_of, is_halves
from splat_py.volume.field import Field, check_finite_tensors
from splat_py.volume.optimiser import FieldOptimiser, State, check_memory

FEATURES = constant("splat/hash_field", "FEATURES")
HIDDEN = constant("splat/hash_field", "HIDDEN")
_HARMONICS = constant("splat/hash_field", "HARMONICS")
OCCUPANCY = constant("splat/hash_field", "OCCUPANCY")
LEVELS = 8
MOST_LEVELS = 16
MOST_CELLS = 1023
LEAST_SIZE, MOST_SIZE = 1 << 4, 1 << 24
# Cells of the finest level between samples.
CELLS_PER_STEP = 4
# A cell is empty if a step through it absorbs less light than this.
_LEAST_ALPHA = 1e-3
# Spare entries to which CPU drivers add zeros, and spare floats after the weights.
_SPARE_ENTRIES, _SPARE_FLOATS = 8, 8


@dataclass(frozen=True)
class HashShape:
    """The sizes of a hash grid and its networks; SplatError if there are too many levels or cells, or the size is not a power
    of two."""

    # Cells of each level along the box's longest side.
    cells: tuple[int, ...]
    # The most entries of a level, a power of two.
    size: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.cells) <= MOST_LEVELS or not all(1 <= n <= MOST_CELLS for n in self.cells):
            raise SplatError(
                f"cells is {list(self.cells)[: MOST_LEVELS + 1]}; give from 1 to {MOST_LEVELS} levels of 1 to {MOST_CELLS}"
            )
        if not LEAST_SIZE <= self.size <= MOST_SIZE or self.size & (self.size - 1):
            raise SplatError(f"size is {self.size}; it must be a power of two from {LEAST_SIZE} to {MOST_SIZE}")

    @classmethod
    def of_memory(cls, nbytes: int, finest: int) -> Self:
        """Choose levels up to `finest` cells, with the largest tables that fit into so many bytes."""
        finest = min(finest, MOST_CELLS)
        coarsest = max(finest // 16, 2)
        growth = (finest / coarsest) ** (1 / (LEVELS - 1))
        cells = tuple(round(coarsest * growth**level) for level in range(LEVELS))
        sizes = [1 << bits for bits in range(LEAST_SIZE.bit_length() - 1, MOST_SIZE.bit_length())]
        return cls(cells, max((size for size in sizes if cls(cells, size).nbytes <= nbytes), default=LEAST_SIZE))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Make a shape from `arrays`."""
        return cls(tuple(map(int, arrays["cells"])), int(arrays["size"][0]))

    def arrays(self) -> dict[str, NDArray[np.int32]]:
        """Return cells [levels] and size [1], for files."""
        return {"cells": np.array(self.cells, np.int32), "size": np.array([self.size], np.int32)}

    @property
    def entries(self) -> int:
        return sum(min((n + 1) ** 3, self.size) for n in self.cells)

    @property
    def weights(self) -> int:
        """Number of weights of both networks, with one row per hidden unit: inputs, a bias, outputs."""
        features = FEATURES * len(self.cells)
        return HIDDEN * (features + 1 + 1) + HIDDEN * (features + _HARMONICS + 1 + 3)

    @property
    def nbytes(self) -> int:
        """Bytes of table and weights."""
        return 4 * (FEATURES * self.entries + self.weights)

    # Layout on the device, with padding.

    @property
    def padded_entries(self) -> int:
        """Entries with the spare ones, rounded up to an even number."""
        return (self.entries + _SPARE_ENTRIES + 1) // 2 * 2

    @property
    def floats(self) -> int:
        """Length of the one array that holds table and weights."""
        return (FEATURES * self.padded_entries + self.weights + _SPARE_FLOATS + 3) // 4 * 4

    @property
    def parts(self) -> tuple[int, int]:
        """Lengths of table and weights in that array, both padded."""
        table = FEATURES * self.padded_entries
        return table, self.floats - table

    def padded(self, table: Tensor, weights: Tensor) -> list[Tensor]:
        """Return table [entries, FEATURES] and weights [weights] flat, with the padding that makes them [floats] together."""
        parts = zip((table.flatten(), weights), self.parts, strict=True)
        return [torch.nn.functional.pad(part, (0, floats - len(part))) for part, floats in parts]

    def split(self, floats: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return copies of table and weights."""
        table = floats[: FEATURES * self.entries].reshape(-1, FEATURES)
        return table.copy(), floats[FEATURES * self.padded_entries :][: self.weights].copy()


class HashVolume(DeviceField):
    """A hash grid on the device, [floats] in the layout of `HashShape`, with its occupancy. If `parameters` is only a table of
    halves, `weights` has the rest."""

    kind = "HashedField"

    def __init__(self, device: Device, shape: HashShape, parameters: Array, weights: Array | None = None) -> None:
        super().__init__(device, parameters, (shape.floats,), GridSize(parameters.size // 4, 1, 1))
        self.shape, self._weights = shape, weights or parameters
        self.table_size = TableSize(shape.size, shape.padded_entries, shape.floats)
        self._cells = device.memory.array(np.array(shape.cells, np.uint32))
        self.occupied = device.memory.empty(OCCUPANCY**3, np.uint32)

    def parts(self, gradient: Tensor) -> tuple[Tensor, ...]:
        return (gradient,) if self._weights is self.parameters else gradient.split(self.shape.parts)

    def record_occupancy(self, recorder: Recorder, march: March) -> None:
        """Record which cells are empty: steps through the densities at 4³ places in the cell absorb almost no light."""
        recorder.stage("occupancy")
        # Densities are above 0, so that -1 marks every cell.
        least = -math.log1p(-_LEAST_ALPHA) * march.steps_per_unit if march.skip_empty else -1.0
        groups = linear_groups(OCCUPANCY**3)
        self._dispatch(recorder, "markHashOccupied", groups, march, occupied=self.occupied, least_density=least)

    def _constants(self, march: March) -> dict[str, Any]:
        return {"FEATURE_COUNT": FEATURES * len(self.shape.cells), "HALVES": is_halves(self.parameters)}

    def _memory(self) -> dict[str, Array | None]:
        table = features_of("table", self.parameters)
        return {**table, "numbers": self._weights, "level_cells": self._cells, "occupied_cells": self.occupied}


@dataclass(frozen=True, eq=False)
class HashRadianceField(Field):
    """A multiresolution hash grid and two small networks (Müller et al. 2022, Instant Neural Graphics Primitives).

    Features lie at the vertices of finer and finer grids, in tables whose entries vertices share if there are too many, and are
    interpolated trilinearly. A network with one hidden layer of 16 ReLU turns them into a density, exp(y) / the box's longest
    side. Another network, which also gets spherical harmonics of the direction, returns a colour, 1 / (1 + exp(-y)).

    Attributes:
        table: [entries, 2] float32 or float16, level after level; kernels compute halves in float32 (`volume.render`).
        weights: float32, one row per hidden unit of both networks: its inputs, a bias and its outputs.
        shape: the levels' sizes.
        box: [2, 3] lower and upper corner in the world.
        background: [3] rgb behind the box.

    Raises:
        SplatError: arrays do not fit together, numbers are not finite, or the box has no volume.
    """

    _kind, _names, _features = "hash grid", ("table", "weights"), ("table",)

    table: Tensor
    weights: Tensor
    shape: HashShape
    box: NDArray[np.float64]
    background: NDArray[np.float32]

    def __post_init__(self) -> None:
        shapes = {"table": (self.shape.entries, FEATURES), "weights": (self.shape.weights,)}
        for name, tensor in self._tensors().items():
            half = tensor.dtype == torch.float16 and name in self._features
            if tuple(tensor.shape) != shapes[name] or not (half or tensor.dtype == torch.float32):
                given = f"{tensor.dtype} {list(tensor.shape)}"
                raise SplatError(f"{name} is {given}; it must be torch.float32 {list(shapes[name])}")
        check_finite_tensors(self._tensors())
        super().__post_init__()

    @property
    def steps_per_unit(self) -> float:
        """Default number of samples per world unit: one every four cells of the finest level."""
        return max(self.shape.cells) / CELLS_PER_STEP / float(Box.of(self.box).sides.max())

    def _parameters(self) -> list[Tensor]:
        """Return table and weights, padded, and joined unless the table is of halves."""
        parts = self.shape.padded(self.table, self.weights)
        return parts if self.table.dtype == torch.float16 else [torch.cat(parts)]

    def _on_device(self, device: Device, *parameters: Array) -> HashVolume:
        return HashVolume(device, self.shape, *parameters)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return dict(self.shape.arrays())

    @classmethod
    def _of_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        table, weights = (torch.from_numpy(arrays[name]) for name in ("table", "weights"))
        return cls(table, weights, HashShape.of_arrays(arrays), arrays["box"], arrays["background"])

    @staticmethod
    def _check_layout(header: dict[str, Any], layout: Layout) -> None:
        (levels,), (entries, _) = layout["cells"][1], layout["table"][1]
        if not 1 <= levels <= MOST_LEVELS or not 1 <= entries <= levels * MOST_SIZE:
            raise ValueError(f"it has {levels} levels with {entries} entries")
        weights = HashShape((1,) * levels, MOST_SIZE).weights
        shapes = {"table": (entries, FEATURES), "weights": (weights,), "cells": (levels,), "size": (1,), "box": (2, 3)}
        kinds = {"cells": "I32", "size": "I32", "box": "F64", "table": "F16" if layout["table"][0] == "F16" else "F32"}
        require_layout(layout, {**shapes, "background": (3,)}, kinds)


def first_table(shape: HashShape, seed: int) -> NDArray[np.float32]:
    """Return the initial parameters: features near 0, as in Müller et al. 2022, and weights as in He et al. 2015."""
    rng = np.random.default_rng(seed)
    table = rng.uniform(-1e-4, 1e-4, (shape.entries, FEATURES))
    features = FEATURES * len(shape.cells)
    rows = []
    for inputs, outputs in ((features, 1), ((shape.weights // HIDDEN) - features - 2 - 4, 3)):
        row = np.zeros((HIDDEN, inputs + 1 + outputs))
        row[:, :inputs] = rng.normal(0, math.sqrt(2 / inputs), (HIDDEN, inputs))
        row[:, inputs + 1 :] = rng.normal(0, math.sqrt(1 / HIDDEN), (HIDDEN, outputs))
        rows.append(row.ravel())
    both = (torch.from_numpy(part.astype(np.float32)) for part in (table, np.concatenate(rows)))
    return torch.cat(shape.padded(*both)).numpy()


class HashOptimiser(FieldOptimiser):
    """A hash grid in a fit."""

    name = "the hash grid"
    # A search for empty cells takes as long as some thousand rays.
    OCCUPANCY_EVERY = 16

    def _begin(self, resumed: State | None, kind: Any) -> None:
        config = self.config
        nbytes, finest = int(config.table_mib * 2**20), CELLS_PER_STEP * max(config.resolutions)
        self.shape = HashShape.of_arrays(resumed) if resumed else HashShape.of_memory(nbytes, finest)
        check_memory(self.device, self.shape.floats, f"a hash grid of {self.shape.nbytes / 2**20:.0f} MiB (--table-mib)")
        arrays = [resumed[name] for name in ("parameters", "m", "v")] if resumed else [first_table(self.shape, config.seed)]
        self._upload(lambda device, parameters: HashVolume(device, self.shape, parameters), *arrays)
        if resumed:
            self.volume.occupied.write(resumed["occupied"].astype(np.uint32))

    @staticmethod
    def layout(config: VolumeConfig, step: int, layout: Layout) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        (floats,), (levels,) = layout["parameters"][1], layout["cells"][1]
        if not 1 <= levels <= MOST_LEVELS or not 1 <= floats <= 4 * levels * MOST_SIZE:
            raise ValueError(f"it has {levels} levels with {floats} numbers")
        shapes = {**dict.fromkeys(("parameters", "m", "v"), (floats,)), "cells": (levels,), "size": (1,)}
        return {**shapes, "occupied": (OCCUPANCY**3,)}, {"cells": "I32", "size": "I32", "occupied": "U8"}

    def field(self, background: NDArray[np.float32]) -> HashRadianceField:
        table, weights = map(torch.from_numpy, self.shape.split(self.volume.parameters.numpy()))
        return HashRadianceField(table, weights, self.shape, self.box.numpy(), background)

    def state(self) -> State:
        """Return also cells [levels] and size [1] of the shape, and which cells are occupied."""
        occupied = np.array(self.volume.occupied.numpy(), np.uint8)
        return {**super().state(), **self.shape.arrays(), "occupied": occupied}
