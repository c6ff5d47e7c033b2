"""Radiance fields that are being fitted, with Adam's moments, on the device: voxels, hash grids, functions in Slang."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.base.files import Layout
from splat_py.errors import SplatError
from splat_py.fit.steps import Adam
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.shaders.loading import MOST_PARAMS, first_values, params_of
from splat_py.volume.config import VolumeConfig
from splat_py.volume.device_field import Box, March, groups_on, voxels_per_unit
from splat_py.volume.grid import RadianceField, Volume, from_voxel_order, row_floats, to_voxel_order
from splat_py.volume.hash_grid import (
    CELLS_PER_STEP,
    MOST_LEVELS,
    MOST_SIZE,
    OCCUPANCY,
    HashRadianceField,
    HashShape,
    HashVolume,
    first_table,
)
from splat_py.volume.slang_field import SlangField, SlangVolume, padded

State = dict[str, NDArray]

# Arrays of a field's size that a fit has besides its gradients: the field and two moments; the same on the host while they are
# uploaded; and what resampling leaves.
_FIT_ARRAYS = 8


def check_memory(device: Device, floats: int, what: str, advice: str = "") -> None:
    """Raise SplatError unless there is room for a fit of so many numbers."""
    needed = floats * 4 * (_FIT_ARRAYS + max(groups_on(device), 1))
    if needed > device.memory.free_bytes:
        raise SplatError(
            f"{what} takes {needed / 2**30:.1f} GiB with its gradients and moments, and "
            f"{device.memory.free_bytes / 2**30:.1f} GiB are free{advice}"
        )


def adam_settings(adam: Adam, step: int, density_rate: float, rate: float, rest_rate: float) -> dict[str, Any]:
    """Arguments of `adamVoxelQuad` in `step`: rates of densities, of colours' constant coefficients, and of others."""
    return {"adam": adam.settings(step, rate), "density_rate": density_rate, "rest_rate": rest_rate}


class FieldOptimiser(ABC):
    """A field that is being fitted, with Adam's moments and its gradient, on the device.

    Here its numbers all learn alike, with all their detail from the first step; stages only sample rays more densely.

    Args:
        resumed: a checkpoint's state, after so many steps.
        kind: the type of a field in Slang.
    """

    # Müller et al. 2022: a tiny epsilon, as entries that few samples reach have tiny gradients.
    ADAM = Adam(epsilon=1e-15, beta1=0.9, beta2=0.99)
    # Share of a grid's rate of colours: 0.03, thrice the paper's, whose fits have ten times the steps. It falls during the fit.
    RATE, LAST_RATE = 0.15, 0.1

    # Its name in messages.
    name: str
    m: Array
    v: Array
    volume: Any
    # From `DeviceField.empty_gradients`, 0 between steps.
    gradients: Array

    def __init__(self, device: Device, config: VolumeConfig, box: Box, resumed: State | None, step: int, kind: Any) -> None:
        self.device, self.config, self.box = device, config, box
        # Voxels along x, y, z, of the present stage.
        self.size = self.size_at(max(step - 1, 0) // config.steps_per_resolution)
        self._begin(resumed, kind)

    @abstractmethod
    def _begin(self, resumed: State | None, kind: Any) -> None:
        """Put the field onto the device by `_upload`."""

    @staticmethod
    @abstractmethod
    def layout(config: VolumeConfig, step: int, layout: Layout) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """The shapes of `state`, as far as `layout`, which a file has, may choose them, and types other than float32."""

    @property
    def steps_per_unit(self) -> float:
        """Samples a world unit, of the present stage."""
        return self.config.steps_per_voxel * voxels_per_unit(self.box, self.size, self.config.contract)

    def size_at(self, stage: int) -> tuple[int, ...]:
        """Voxels along x, y, z: cubes, as nearly as whole numbers allow."""
        sides = self.box.sides / self.box.sides.max()
        return tuple(max(round(float(side) * self.config.resolutions[stage]), 1) for side in sides)

    def begin_stage(self, stage: int) -> None:
        """Before the first step of each stage but the first."""
        self.size = self.size_at(stage)

    def record_occupancy(self, recorder: Recorder, march: March, step: int) -> None:
        """Note which parts hold anything, before a step."""
        self.volume.record_occupancy(recorder, march)

    def record(self, recorder: Recorder, step: int) -> None:
        """Adam, with what else adds to the gradient."""
        rate = self.config.rate * self.RATE * self.LAST_RATE ** (step / max(self.config.steps - 1, 1))
        self.volume.record_adam(recorder, adam_settings(self.ADAM, step, rate, rate, rate), self.gradients, self.m, self.v)

    @abstractmethod
    def field(self, background: NDArray[np.float32]) -> Any:
        """A copy of the field as it is now."""

    def state(self) -> State:
        """Arrays that a later fit needs to continue: parameters, m and v, of one shape, and others of the field."""
        arrays = {"parameters": self.volume.parameters, "m": self.m, "v": self.v}
        return {name: np.array(array.numpy()) for name, array in arrays.items()}

    def parts(self, state: State) -> Mapping[str, NDArray]:
        """Arrays of a state that have to be finite, by their names in messages."""
        return {self.name: state["parameters"], "m": state["m"], "v": state["v"]}

    def _upload(self, volume: Callable[..., Any], values: NDArray, m: NDArray | None = None, v: NDArray | None = None) -> None:
        """Put parameters onto the device, with Adam's moments, those of a checkpoint or none, and without a gradient."""
        array = self.device.memory.array
        self.m, self.v = (array(np.zeros_like(values) if moment is None else moment) for moment in (m, v))
        self.volume = volume(self.device, array(values))
        self.gradients = self.volume.empty_gradients()
        recorder = self.device.record()
        recorder.clear(self.gradients)
        recorder.submit()


def check_stages(device: Device, sizes: Iterable[tuple[int, ...]], coefficients: int) -> None:
    """Grids of these sizes, which a fit will have one after another."""
    for size in sizes:
        floats = row_floats(coefficients)
        device.memory.limits.check_grid(size, floats)
        advice = "; use lower --resolutions or a lower --sh-degree"
        check_memory(device, math.prod(size) * floats, f"a grid of {'×'.join(map(str, size))} voxels", advice)


class GridOptimiser(FieldOptimiser):
    """Voxels, which are split in eight by each stage. Densities may fall below 0, where they count as 0."""

    # A larger epsilon than for Gaussians holds coefficients still that no photograph constrains.
    ADAM = Adam(epsilon=1e-8)
    # Densities learn faster than constant colours, view dependence slower; all rates fall during each stage.
    DENSITY_RATE, REST_RATE = 5.0, 0.25
    LAST_RATE = 0.3
    # A fit starts as a thin grey fog, of this optical depth along the longest side: where nothing is, no gradient is either.
    FIRST_DENSITY = 1.0

    def _begin(self, resumed: State | None, kind: Any) -> None:
        self._coefficients = (self.config.sh_degree + 1) ** 2
        check_stages(self.device, map(self.size_at, range(len(self.config.resolutions))), self._coefficients)
        if resumed:
            self._upload_grid(resumed["grid"], resumed["m"], resumed["v"])
        else:
            grid = np.zeros((*self.size, row_floats(self._coefficients)), np.float32)
            grid[..., 0] = self.FIRST_DENSITY / self.box.sides.max()
            self._upload_grid(grid)

    @staticmethod
    def layout(config: VolumeConfig, step: int, layout: Layout) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        _, (x, y, z, row) = layout["grid"]
        if row != row_floats((config.sh_degree + 1) ** 2):
            raise ValueError("it was written by another version of splat_py")
        # The grid is enlarged by the first step of a stage.
        voxels = config.resolutions[max(step - 1, 0) // config.steps_per_resolution]
        if max(x, y, z) != voxels or min(x, y, z) < 1:
            raise ValueError(f"the grid has {x}×{y}×{z} voxels, not {voxels} along its longest side")
        return dict.fromkeys(("grid", "m", "v"), (x, y, z, row)), {}

    def begin_stage(self, stage: int) -> None:
        """Split voxels; Adam begins anew."""
        grid = from_voxel_order(self.volume.parameters.tensor().cpu()).movedim(-1, 0)[None]
        # The same field, sampled at the new voxels' centres.
        resized = torch.nn.functional.interpolate(grid, self.size_at(stage), mode="trilinear", align_corners=False)
        self._upload_grid(np.ascontiguousarray(resized[0].movedim(0, -1).numpy()))

    def record(self, recorder: Recorder, step: int) -> None:
        """Total variation, if asked for, and Adam."""
        config, age = self.config, step % self.config.steps_per_resolution
        rate = config.rate * self.LAST_RATE ** (age / max(config.steps_per_resolution - 1, 1))
        side = float(self.box.sides.max())
        if config.total_variation > 0:
            self.volume.record_total_variation(recorder, self.gradients, config.total_variation / math.prod(self.size), side)
        settings = adam_settings(self.ADAM, age, rate * self.DENSITY_RATE / side, rate, rate * self.REST_RATE)
        self.volume.record_adam(recorder, settings, self.gradients, self.m, self.v)

    def field(self, background: NDArray[np.float32]) -> RadianceField:
        grid = from_voxel_order(self.volume.parameters.tensor().cpu())
        k = self._coefficients
        sh = grid[..., 1 : 1 + 3 * k].reshape(*grid.shape[:3], k, 3).contiguous()
        return RadianceField(grid[..., 0].contiguous(), sh, self.box.numpy(), background, self.config.contract)

    def state(self) -> State:
        """grid, m, v: [X, Y, Z, row]."""
        arrays = {"grid": self.volume.parameters, "m": self.m, "v": self.v}
        return {name: np.array(from_voxel_order(array.tensor().cpu()).numpy()) for name, array in arrays.items()}

    def parts(self, state: State) -> dict[str, NDArray]:
        grid = state["grid"]
        return {"the density": grid[..., :1], "the colour": grid[..., 1:], "m": state["m"], "v": state["v"]}

    def _upload_grid(self, *arrays: NDArray) -> None:
        """Grid and Adam's moments, [X, Y, Z, row]."""
        self.size = arrays[0].shape[:3]
        self._upload(Volume, *(to_voxel_order(torch.from_numpy(array)).numpy() for array in arrays))


class HashOptimiser(FieldOptimiser):
    """A hash grid in a fit."""

    name = "the hash grid"
    # To find what is empty takes as long as some thousand rays: once in so many steps.
    OCCUPANCY_EVERY = 16

    def _begin(self, resumed: State | None, kind: Any) -> None:
        config = self.config
        if resumed:
            self.shape = HashShape.of_arrays(resumed)
            arrays = [resumed[name] for name in ("parameters", "m", "v")]
        else:
            self.shape = HashShape.of_memory(int(config.table_mib * 2**20), CELLS_PER_STEP * max(config.resolutions))
            arrays = [first_table(self.shape, config.seed)]
        check_memory(self.device, self.shape.floats, f"a hash grid of {self.shape.nbytes / 2**20:.0f} MiB (--table-mib)")
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

    def record_occupancy(self, recorder: Recorder, march: March, step: int) -> None:
        """Now and then."""
        if step % self.OCCUPANCY_EVERY == 0:
            self.volume.record_occupancy(recorder, march)

    def field(self, background: NDArray[np.float32]) -> HashRadianceField:
        table, weights = map(torch.from_numpy, self.shape.split(self.volume.parameters.numpy()))
        return HashRadianceField(table, weights, self.shape, self.box.numpy(), background)

    def state(self) -> State:
        """Also cells [levels] and size [1] of the shape, and which cells are occupied."""
        occupied = np.array(self.volume.occupied.numpy(), np.uint8)
        return {**super().state(), **self.shape.arrays(), "occupied": occupied}


class SlangOptimiser(FieldOptimiser):
    """The numbers of a function in a fit."""

    name = "the field"

    def _begin(self, resumed: State | None, kind: Any) -> None:
        self.kind, self.count = kind, params_of(kind)
        check_memory(self.device, self.count, f"a field of {self.count:,} numbers (PARAMS of {kind.name})")
        arrays = [resumed[name] for name in ("parameters", "m", "v")] if resumed else [first_values(kind, self.config.seed)]
        rows = (padded(torch.from_numpy(array)).numpy() for array in arrays)
        self._upload(lambda device, parameters: SlangVolume(device, kind, parameters), *rows)

    @staticmethod
    def layout(config: VolumeConfig, step: int, layout: Layout) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        (floats,) = layout["parameters"][1]
        if not 1 <= floats <= MOST_PARAMS:
            raise ValueError(f"its field has {floats} numbers")
        return dict.fromkeys(("parameters", "m", "v"), (floats,)), {}

    def field(self, background: NDArray[np.float32]) -> SlangField:
        params = torch.from_numpy(self.state()["parameters"])
        samples = self.steps_per_unit * float(self.box.sides.max())
        return SlangField(self.kind, params, self.box.numpy(), background, samples)

    def state(self) -> State:
        """parameters, m, v: [PARAMS]."""
        return {name: array[: self.count] for name, array in super().state().items()}
