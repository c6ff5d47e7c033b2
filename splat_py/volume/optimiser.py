"""A radiance field that is being fitted, with Adam's moments, on the device, whichever kind it is of."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.base.files import Layout
from splat_py.fit.steps import Adam
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.volume.config import VolumeConfig
from splat_py.volume.device_field import Box, March, groups_on, voxels_per_unit

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


class FieldOptimiser(ABC):
    """A field that is being fitted, a checkpoint's after `step` steps or a new one, with Adam's moments and its gradient, on
    the device. Here its numbers all learn alike, with all their detail from the first step; stages only sample rays more
    densely."""

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
        self._record_adam(recorder, step, rate, rate, rate)

    def _record_adam(self, recorder: Recorder, step: int, density_rate: float, rate: float, rest_rate: float) -> None:
        """Adam with rates of densities, of colours' constant coefficients, and of others."""
        settings = {"adam": self.ADAM.settings(step, rate), "density_rate": density_rate, "rest_rate": rest_rate}
        self.volume.record_adam(recorder, settings, self.gradients, self.m, self.v)

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
