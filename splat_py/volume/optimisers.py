"""What a fit of each kind of field has of its own: first values, stages, Adam's settings, and what a checkpoint holds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.fit.adam import Adam
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.volume.box import Box
from splat_py.volume.config import VolumeConfig
from splat_py.volume.field import RadianceField
from splat_py.volume.flat_volume import FlatVolume
from splat_py.volume.hash_field import CELLS_PER_STEP, HashRadianceField
from splat_py.volume.hash_volume import FEATURES, HIDDEN, HashShape, HashVolume
from splat_py.volume.marching import (
    FIT_ARRAYS,
    March,
    Marched,
    Volume,
    check_stages,
    from_voxel_order,
    replicas_on,
    row_floats,
    to_voxel_order,
)
from splat_py.volume.own_field import OwnRadianceField
from splat_py.volume.rendering import voxels_per_unit

State = dict[str, NDArray]
AnyField = RadianceField | HashRadianceField | OwnRadianceField


class FieldOptimiser(ABC):
    """A field that is being fitted, with Adam's moments and its gradient, on the device."""

    volume: Marched
    # Voxels along x, y, z, of the present stage.
    size: tuple[int, ...]
    # From `Marched.empty_gradients`, 0 between steps.
    gradients: Array
    m: Array
    v: Array

    def __init__(self, device: Device, config: VolumeConfig, box: Box) -> None:
        self.device, self.config, self.box = device, config, box

    @property
    def steps_per_unit(self) -> float:
        """Samples a world unit, of the present stage."""
        return self.config.steps_per_voxel * voxels_per_unit(self.box, self.size, self.config.contract)

    def size_at(self, stage: int) -> tuple[int, ...]:
        """Voxels along x, y, z: cubes, as nearly as whole numbers allow."""
        sides = self.box.sides / self.box.sides.max()
        return tuple(max(round(float(side) * self.config.resolutions[stage]), 1) for side in sides)

    @abstractmethod
    def begin_stage(self, stage: int) -> None:
        """Before the first step of each stage but the first."""

    def record_occupancy(self, recorder: Recorder, march: March, step: int) -> None:
        """Note which parts hold anything, before a step."""
        self.volume.record_occupancy(recorder, march)

    @abstractmethod
    def record(self, recorder: Recorder, step: int) -> None:
        """Adam, with what else adds to the gradient."""

    @abstractmethod
    def field(self, background: NDArray[np.float32]) -> AnyField:
        """A copy of the field as it is now."""

    @abstractmethod
    def state(self) -> State:
        """What a later fit needs to continue."""

    @abstractmethod
    def parts(self, state: State) -> Mapping[str, NDArray]:
        """Of a state, what has to be finite, by what messages call it."""

    def _put(self, values: NDArray[np.float32], m: NDArray | None = None, v: NDArray | None = None) -> Array:
        """Parameters to the device, with Adam's moments: those of a checkpoint, or none."""
        array = self.device.memory.array
        self.m, self.v = (array(np.zeros_like(values) if moment is None else moment) for moment in (m, v))
        return array(values)

    def _clear_gradients(self) -> None:
        self.gradients = self.volume.empty_gradients()
        recorder = self.device.record()
        recorder.clear(self.gradients)
        recorder.submit()


class GridOptimiser(FieldOptimiser):
    """Voxels, which are split in eight by each stage. Densities may fall below 0, where they count as 0."""

    # A larger epsilon than for Gaussians holds coefficients still that no photograph constrains.
    ADAM = Adam(epsilon=1e-8)
    # Densities learn faster than constant colours, view dependence slower; all rates fall during each stage.
    DENSITY_RATE, REST_RATE = 5.0, 0.25
    LAST_RATE = 0.3
    # A fit starts as a thin grey fog, of this optical depth along the longest side: where nothing is, no gradient is either.
    FIRST_DENSITY = 1.0

    volume: Volume

    def __init__(self, device: Device, config: VolumeConfig, box: Box, resumed: State | None) -> None:
        super().__init__(device, config, box)
        self._coefficients = (config.sh_degree + 1) ** 2
        check_stages(device, map(self.size_at, range(len(config.resolutions))), self._coefficients)
        if resumed:
            self._upload(resumed["grid"], resumed["m"], resumed["v"])
        else:
            grid = np.zeros((*self.size_at(0), row_floats(self._coefficients)), np.float32)
            grid[..., 0] = self.FIRST_DENSITY / box.sides.max()
            self._upload(grid)

    def begin_stage(self, stage: int) -> None:
        """Split voxels; Adam begins anew."""
        self._upload(_resized(_natural(self.volume.grid), self.size_at(stage)))

    def record(self, recorder: Recorder, step: int) -> None:
        """Total variation, if asked for, and Adam."""
        config, age = self.config, step % self.config.steps_per_resolution
        rate = config.rate * self.LAST_RATE ** (age / max(config.steps_per_resolution - 1, 1))
        side = float(self.box.sides.max())
        settings = {
            "densityRate": rate * self.DENSITY_RATE / side,
            "rate": rate,
            "restRate": rate * self.REST_RATE,
            **self.ADAM.uniforms(age),
            "densityScale": side,
            "variation": config.total_variation / math.prod(self.size),
        }
        if config.total_variation > 0:
            self.volume.record_total_variation(recorder, settings, self.gradients)
        self.volume.record_adam(recorder, settings, self.gradients, self.m, self.v)

    def field(self, background: NDArray[np.float32]) -> RadianceField:
        """See `FieldOptimiser`."""
        grid = from_voxel_order(self.volume.grid.tensor().cpu())
        k = self._coefficients
        sh = grid[..., 1 : 1 + 3 * k].reshape(*grid.shape[:3], k, 3).contiguous()
        return RadianceField(grid[..., 0].contiguous(), sh, self.box.numpy(), background, self.config.contract)

    def state(self) -> State:
        """grid, m, v: [X, Y, Z, row]."""
        arrays = {"grid": self.volume.grid, "m": self.m, "v": self.v}
        return {name: _natural(array) for name, array in arrays.items()}

    def parts(self, state: State) -> Mapping[str, NDArray]:
        """See `FieldOptimiser`."""
        grid = state["grid"]
        return {"the density": grid[..., :1], "the colour": grid[..., 1:], "m": state["m"], "v": state["v"]}

    def _upload(self, grid: NDArray[np.float32], m: NDArray | None = None, v: NDArray | None = None) -> None:
        ordered = [None if a is None else to_voxel_order(torch.from_numpy(a)).numpy() for a in (grid, m, v)]
        assert ordered[0] is not None
        self.volume = Volume(self.device, self._put(ordered[0], *ordered[1:]), self._coefficients)
        self.size = grid.shape[:3]
        self._clear_gradients()


class FlatOptimiser(FieldOptimiser):
    """Numbers that all learn alike, with all their detail from the first step; stages only sample rays more densely."""

    # Müller et al. 2022: a tiny epsilon, as entries that few samples reach have tiny gradients.
    ADAM = Adam(epsilon=1e-15, beta1=0.9, beta2=0.99)
    # Of the rate of a grid's colours: 0.03, thrice the paper's, whose fits have ten times the steps. It falls during the fit.
    RATE, LAST_RATE = 0.15, 0.1

    volume: FlatVolume

    def begin_stage(self, stage: int) -> None:
        """See `FieldOptimiser`."""
        self.size = self.size_at(stage)

    def record(self, recorder: Recorder, step: int) -> None:
        """Adam."""
        rate = self.config.rate * self.RATE * self.LAST_RATE ** (step / max(self.config.steps - 1, 1))
        rates = dict.fromkeys(("densityRate", "rate", "restRate"), rate)
        settings = {**rates, **self.ADAM.uniforms(step), "densityScale": 0.0, "variation": 0.0}
        self.volume.record_adam(recorder, settings, self.gradients, self.m, self.v)

    def _check_memory(self, floats: int, what: str) -> None:
        memory = self.device.memory
        needed = floats * 4 * (FIT_ARRAYS + replicas_on(self.device))
        if needed > memory.free_bytes:
            raise SplatError(
                f"{what} takes {needed / 2**30:.1f} GiB with its gradients and moments, and "
                f"{memory.free_bytes / 2**30:.1f} GiB are free"
            )


class HashOptimiser(FlatOptimiser):
    """A hash grid."""

    # To find what is empty takes as long as some thousand rays: once in so many steps.
    OCCUPANCY_EVERY = 16

    volume: HashVolume

    def __init__(self, device: Device, config: VolumeConfig, box: Box, resumed: State | None, step: int) -> None:
        super().__init__(device, config, box)
        self.size = self.size_at(max(step - 1, 0) // config.steps_per_resolution)
        if resumed:
            self.shape = HashShape(tuple(map(int, resumed["cells"])), int(resumed["size"][0]))
            first, m, v = (resumed[name] for name in ("parameters", "m", "v"))
        else:
            self.shape = HashShape.of_memory(int(config.table_mib * 2**20), CELLS_PER_STEP * max(config.resolutions))
            first, m, v = _first_values(self.shape, config.seed), None, None
        self._check_memory(self.shape.floats, f"a hash grid of {self.shape.nbytes / 2**20:.0f} MiB (--table-mib)")
        self.volume = HashVolume(device, self._put(first, m, v), self.shape)
        if resumed:
            self.volume.occupied.write(resumed["occupied"].astype(np.uint32))
        self._clear_gradients()

    def record_occupancy(self, recorder: Recorder, march: March, step: int) -> None:
        """Now and then."""
        if step % self.OCCUPANCY_EVERY == 0:
            self.volume.record_occupancy(recorder, march)

    def field(self, background: NDArray[np.float32]) -> HashRadianceField:
        """See `FieldOptimiser`."""
        table, weights = map(torch.from_numpy, self.shape.split(self.volume.parameters.numpy()))
        return HashRadianceField(table, weights, self.shape, self.box.numpy(), background)

    def state(self) -> State:
        """parameters, m, v: [floats]; cells [levels] and size [1] of the shape; occupied [cells that are empty or not]."""
        arrays = {"parameters": self.volume.parameters, "m": self.m, "v": self.v}
        shape = {"cells": np.array(self.shape.cells, np.int32), "size": np.array([self.shape.size], np.int32)}
        occupied = np.array(self.volume.occupied.numpy(), np.uint8)
        return {**{name: np.array(array.numpy()) for name, array in arrays.items()}, **shape, "occupied": occupied}

    def parts(self, state: State) -> Mapping[str, NDArray]:
        """See `FieldOptimiser`."""
        return {"the hash grid": state["parameters"], "m": state["m"], "v": state["v"]}


def _first_values(shape: HashShape, seed: int) -> NDArray[np.float32]:
    """Features next to 0, as Müller et al. have them, and He's initial weights (2015)."""
    rng = np.random.default_rng(seed)
    table = rng.uniform(-1e-4, 1e-4, (shape.entries, FEATURES))
    features = FEATURES * len(shape.cells)
    rows = []
    for inputs, outputs in ((features, 1), ((shape.weights // HIDDEN) - features - 2 - 4, 3)):
        row = np.zeros((HIDDEN, inputs + 1 + outputs))
        row[:, :inputs] = rng.normal(0, math.sqrt(2 / inputs), (HIDDEN, inputs))
        row[:, inputs + 1 :] = rng.normal(0, math.sqrt(1 / HIDDEN), (HIDDEN, outputs))
        rows.append(row.ravel())
    return shape.join(table.astype(np.float32), np.concatenate(rows).astype(np.float32))


def _natural(array: Array) -> NDArray[np.float32]:
    """A copy of a grid on the device, [X, Y, Z, row] as it says."""
    return np.array(from_voxel_order(array.tensor().cpu()).numpy())


def _resized(grid: NDArray[np.float32], size: tuple[int, ...]) -> NDArray[np.float32]:
    """The same field on another number of voxels, sampled at their centres."""
    channels_first = torch.from_numpy(grid).movedim(-1, 0)[None]
    resized = torch.nn.functional.interpolate(channels_first, size, mode="trilinear", align_corners=False)
    return np.ascontiguousarray(resized[0].movedim(0, -1).numpy())
