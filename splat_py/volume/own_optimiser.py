"""Fitting a field that is a function of the user's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.gpu.device import Device
from splat_py.gpu.kernels import UserType
from splat_py.volume.box import Box
from splat_py.volume.config import VolumeConfig
from splat_py.volume.optimisers import FlatOptimiser, State
from splat_py.volume.own_field import OwnRadianceField, first_values
from splat_py.volume.own_volume import OwnVolume, padded, params_of


class OwnOptimiser(FlatOptimiser):
    """The numbers of a function."""

    volume: OwnVolume

    def __init__(
        self, device: Device, config: VolumeConfig, box: Box, resumed: State | None, step: int, kind: UserType
    ) -> None:
        super().__init__(device, config, box)
        self.kind, self.count = kind, params_of(kind)
        self.size = self.size_at(max(step - 1, 0) // config.steps_per_resolution)
        self._check_memory(self.count, f"a field of {self.count:,} numbers (PARAMS of {kind.name})")
        first = resumed["parameters"] if resumed else first_values(kind, config.seed)
        parameters = self._put(*(self._padded(a) for a in (first, *((resumed["m"], resumed["v"]) if resumed else ()))))
        self.volume = OwnVolume(device, parameters, kind)
        self._clear_gradients()

    def field(self, background: NDArray[np.float32]) -> OwnRadianceField:
        """See `FieldOptimiser`."""
        params = torch.from_numpy(self.state()["parameters"])
        samples = self.steps_per_unit * float(self.box.sides.max())
        return OwnRadianceField(self.kind, params, self.box.numpy(), background, samples)

    def state(self) -> State:
        """parameters, m, v: [PARAMS]."""
        arrays = {"parameters": self.volume.parameters, "m": self.m, "v": self.v}
        return {name: np.array(array.numpy()[: self.count]) for name, array in arrays.items()}

    def parts(self, state: State) -> Mapping[str, NDArray]:
        """See `FieldOptimiser`."""
        return {"the field": state["parameters"], "m": state["m"], "v": state["v"]}

    def _padded(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.append(values, np.zeros(padded(self.count) - self.count, np.float32)).astype(np.float32)
