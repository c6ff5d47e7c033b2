"""Base class of radiance fields in a fit: on the device, with Adam's moments."""

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

# Arrays of a field's size in a fit, besides its gradients: the field and two moments, the same on the host during the upload,
# and temporaries of resampling.
_FIT_ARRAYS = 8


def check_memory(device: Device, floats: int, what: str, advice: str = "") -> None:
    """Raise SplatError unless memory suffices for a fit of `floats` numbers."""
    needed = floats * 4 * (_FIT_ARRAYS + max(groups_on(device), 1))
    if needed > device.memory.free_bytes:
        raise SplatError(
            f"{what} takes {needed / 2**30:.1f} GiB with its gradients and moments, and "
            f"only {device.memory.free_bytes / 2**30:.1f} GiB are free{advice}"
        )


class FieldOptimiser(ABC):
    """A field in a fit, new or from a checkpoint after `step` steps, with Adam's moments and its gradient, on the device. In
    this base class all numbers learn alike, with all detail from the first step; stages only sample rays more densely."""

    # A tiny epsilon, as in Müller et al. 2022: entries that few samples reach have tiny gradients.
    ADAM = Adam(epsilon=1e-15, beta1=0.9, beta2=0.99)
    # Share of a grid's colour rate: 0.03, thrice the paper's, whose fits have ten times the steps. It falls during the fit.
    RATE, LAST_RATE = 0.15, 0.1
    # Steps between searches for empty space.
    OCCUPANCY_EVERY = 1

    # Name in messages.
    name: str
    m: Array
    v: Array
    volume: Any
    # From `DeviceField.empty_gradients`, 0 between steps.
    gradients: Array

    def __init__(self, device: Device, config: VolumeConfig, box: Box, resumed: State | None, step: int, kind: Any) -> None:
        self.device, self.config, self.box = device, config, box
        # Voxels along x, y, z in the present stage.
        self.size = self.size_at(max(step - 1, 0) // config.steps_per_resolution)
        self._begin(resumed, kind)

    @abstractmethod
    def _begin(self, resumed: State | None, kind: Any) -> None:
        """Upload the field by `_upload`."""

    @staticmethod
    @abstractmethod
    def layout(config: VolumeConfig, step: int, layout: Layout) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Return the shapes of `state`, with the sizes that a file's `layout` may choose, and types other than float32."""

    @property
    def steps_per_unit(self) -> float:
        """Samples per world unit in the present stage."""
        return self.config.steps_per_voxel * voxels_per_unit(self.box, self.size, self.config.contract)

    def size_at(self, stage: int) -> tuple[int, ...]:
        """Return the voxels along x, y, z, as close to cubes as whole numbers allow."""
        sides = self.box.sides / self.box.sides.max()
        return tuple(max(round(float(side) * self.config.resolutions[stage]), 1) for side in sides)

    def begin_stage(self, stage: int) -> None:
        """Prepare a stage; called before the first step of each stage but the first."""
        self.size = self.size_at(stage)

    def record_occupancy(self, recorder: Recorder, march: March, step: int) -> None:
        """Record which parts of the field are not empty, if that is due; called before a step."""
        if step % self.OCCUPANCY_EVERY == 0:
            self.volume.record_occupancy(recorder, march)

    def record(self, recorder: Recorder, step: int) -> None:
        """Record Adam, and what else adds to the gradient."""
        rate = self.config.rate * self.RATE * self.LAST_RATE ** (step / max(self.config.steps - 1, 1))
        self._record_adam(recorder, step, rate, rate, rate)

    def _record_adam(self, recorder: Recorder, step: int, density_rate: float, rate: float, rest_rate: float) -> None:
        """Record Adam with the rates of densities, of the colours' constant coefficients, and of the rest."""
        settings = {"adam": self.ADAM.settings(step, rate), "density_rate": density_rate, "rest_rate": rest_rate}
        self.volume.record_adam(recorder, settings, self.gradients, self.m, self.v)

    @abstractmethod
    def field(self, background: NDArray[np.float32]) -> Any:
        """Return a copy of the field as it is now."""

    def state(self) -> State:
        """Return the arrays that a later fit needs to continue: parameters, m and v, of one shape, and others of the field."""
        arrays = {"parameters": self.volume.parameters, "m": self.m, "v": self.v}
        return {name: np.array(array.numpy()) for name, array in arrays.items()}

    def parts(self, state: State) -> Mapping[str, NDArray]:
        """Return the arrays of a state that must be finite, by their names in messages."""
        return {self.name: state["parameters"], "m": state["m"], "v": state["v"]}

    def _upload(self, volume: Callable[..., Any], values: NDArray, m: NDArray | None = None, v: NDArray | None = None) -> None:
        """Upload parameters with Adam's moments, 0 by default, and clear the gradients."""
        array = self.device.memory.array
        self.m, self.v = (array(np.zeros_like(values) if moment is None else moment) for moment in (m, v))
        self.volume = volume(self.device, array(values))
        self.gradients = self.volume.empty_gradients()
        with self.device.recording() as recorder:
            recorder.clear(self.gradients)
