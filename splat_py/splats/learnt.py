"""What training learns beside Gaussians: parameters on the device with Adam's moments, by their name in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.splats.parameters import MOMENTS


class Learnt:
    """One array of parameters, on the device.

    Args:
        values: where they start.
        state: of a checkpoint, which has them instead.
    """

    def __init__(self, device: Device, name: str, values: NDArray[np.float32], state: Mapping[str, NDArray] | None) -> None:
        self.name = name
        names = [name, *(f"{name}.{moment}" for moment in MOMENTS)]
        fresh = dict(zip(names, [values, np.zeros_like(values), np.zeros_like(values)], strict=True))
        self._arrays = {key: device.memory.array(state[key] if state else fresh[key]) for key in names}

    @property
    def values(self) -> Array:
        """The parameters themselves."""
        return self._arrays[self.name]

    def moments(self) -> dict[str, Array]:
        """Adam's, as kernels call them."""
        first, second = (self._arrays[f"{self.name}.{moment}"] for moment in MOMENTS)
        return {"firstMoments": first, "secondMoments": second}

    def state(self) -> dict[str, NDArray[np.float32]]:
        """A copy of everything, on the host. Nothing that writes it may still be running."""
        return {name: array.numpy().copy() for name, array in self._arrays.items()}
