"""Fields on the device that are one row of numbers, which all learn alike."""

from __future__ import annotations

from collections.abc import Mapping

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.volume.marching import Marched


class FlatVolume(Marched):
    """A field of `parameters` [floats], a multiple of four."""

    def __init__(self, device: Device, parameters: Array) -> None:
        super().__init__(device)
        self.parameters = parameters

    @property
    def floats(self) -> int:
        """Of a gradient."""
        return self.parameters.size

    def empty_gradients(self) -> Array:
        """See `Marched`: [replicas, floats]."""
        return self.device.memory.empty((self.replicas, self.floats), by_address=self.groups > 0)

    def _no_grid(self) -> dict[str, Array | None]:
        """What `volume` kernels bind of a grid of voxels."""
        return {"grid": None, "gridHalves": None, "occupancy": None, **self._sums("vGrid", None)}

    def record_adam(
        self, recorder: Recorder, settings: Mapping[str, float], gradients: Array, first_moments: Array, second_moments: Array
    ) -> None:
        """See `Marched`: the kernel for a grid, of as many voxels of four floats each."""
        voxels = self.parameters.size // 4
        recorder.stage("adam")
        recorder.dispatch(
            self._module("volume_optimize"),
            "adamVolume",
            linear_groups(voxels),
            {"sizeX": voxels, "sizeY": 1, "sizeZ": 1, **settings},
            {
                "grid": self.parameters,
                "gradients": gradients,
                "firstMoments": first_moments,
                "secondMoments": second_moments,
            },
            QUADS=1,
            **({"REPLICAS": self.replicas} if self.groups else {}),
        )
