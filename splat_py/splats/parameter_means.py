"""What a run leaves: the mean of its parameters over the last epochs (kernels/parameter_means.slang).

Steps of Adam scatter them around what all photographs agree on, each towards its own; means of whole epochs favour none
(Polyak & Juditsky 1992; Izmailov et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.splats.config import TrainConfig
from splat_py.splats.parameters import WEIGHTS, Parameters, State, groups_of

# In a checkpoint, behind the names of parameters.
MEAN = ".mean"
_EPOCHS = 2
# Or so much of a run: Gaussians are neither added nor removed then.
_LARGEST_SHARE = 10

# Floats a thread.
_RUN = constant("kernels/parameter_means", "RUN")


def first_averaged(config: TrainConfig, photographs: int) -> int:
    """The step from which on parameters are averaged, to the end: two epochs before it, or a tenth of the run.

    Args:
        photographs: that there are to train on.
    """
    return config.steps - min(_EPOCHS * (photographs // config.photographs), config.steps // _LARGEST_SHARE)


class ParameterMeans:
    """Means of all parameters over the steps from `first` on. Before it there are none.

    Args:
        state: of a checkpoint after `step` steps. Where it lacks means although `first` is over, as of a run that is extended
            by few steps, those that have been missed count as if they had left what the checkpoint has.
    """

    def __init__(self, device: Device, first: int, step: int = 0, state: State | None = None) -> None:
        self._first = first
        self._memory = device.memory
        self._means: dict[str, Array] = {}
        if state is not None and step > first:
            self._means = {name: device.memory.array(state.get(name + MEAN, state[name])) for name in averaged_groups(state)}

    def record(self, recorder: Recorder, parameters: Parameters, step: int, status: Array) -> None:
        """After Adam of a step."""
        if step < self._first:
            return
        recorder.stage("means")
        names = averaged_groups(parameters.arrays)
        if not self._means:
            self._means = {name: self._memory.empty(parameters.arrays[name].shape) for name in names}
            for array in self._means.values():
                recorder.clear(array)
        for name in names:
            recorder.dispatch(
                "parameter_means",
                "addToMeans",
                linear_groups(-(-self._means[name].size // _RUN)),
                {"count": self._means[name].size, "share": 1 / (step - self._first + 1)},
                {"status": status, "parameters": parameters.arrays[name], "parameterMeans": self._means[name]},
            )

    def state(self) -> State:
        """A copy on the host, by the names that checkpoints have. No step may still be running."""
        return {name + MEAN: array.numpy().copy() for name, array in self._means.items()}


def averaged_groups(state: Mapping[str, Any]) -> list[str]:
    """The arrays of a state that are averaged: all parameters of the scene."""
    return [*groups_of(state), *([WEIGHTS] if WEIGHTS in state else ())]


def averaged(state: State) -> State:
    """A state's Gaussians with their means, if it has any, in the place of what the last step left."""
    return {name: state.get(name + MEAN, values) for name, values in state.items() if not name.endswith(MEAN)}
