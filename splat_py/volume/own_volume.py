"""Fields that are a function of the user's on the device: what slang/kernels/function_buffers.slang is bound to."""

from __future__ import annotations

from typing import Any

from splat_py.errors import SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, UserType
from splat_py.gpu.sources import constant_of
from splat_py.volume.flat_volume import FlatVolume
from splat_py.volume.hash_volume import unit_density
from splat_py.volume.marching import March

# Kernels count numbers, of several replicas, with 32 bits.
MOST_PARAMS = 1 << 26


def params_of(kind: UserType) -> int:
    """How many numbers a function has, PARAMS in its source.

    Raises:
        SplatError: there is none, or no whole number in its place.
    """
    try:
        count = constant_of(kind.text, "PARAMS")
    except ValueError as error:
        raise SplatError(f"{error}; write it with numbers and other constants of the source") from error
    if not isinstance(count, int) or not 1 <= count <= MOST_PARAMS:
        raise SplatError(
            f"{kind.name} has PARAMS = {count}; say how many numbers it reads, 1 to {MOST_PARAMS:,}: "
            "static const int PARAMS = 100;"
        )
    return count


def padded(params: int) -> int:
    """Floats of so many numbers on the device."""
    return -(-params // 4) * 4


class OwnVolume(FlatVolume):
    """A function of the user's on the device, with its numbers, [padded(PARAMS)]."""

    def __init__(self, device: Device, parameters: Array, kind: UserType | str) -> None:
        super().__init__(device, parameters)
        self.kind = kind

    def record_occupancy(self, recorder: Recorder, march: March) -> None:
        """Nothing: no part of it is known to be empty."""

    def _field_constants(self, march: March) -> dict[str, Any]:
        return {"Field": "OwnField", "FieldFunction": self.kind}

    def _field_uniforms(self, march: March) -> dict[str, int | float]:
        return {
            **dict.fromkeys(("sizeX", "sizeY", "sizeZ"), 1),
            **dict.fromkeys(("tableSize", "tableEntries"), 0),
            "tableFloats": self.parameters.size,
            "unitDensity": unit_density(march.box),
        }

    def _field_buffers(self, gradients: Array | None) -> dict[str, Array | None]:
        return {**self._no_grid(), "fieldParams": self.parameters, **self._sums("vFieldParams", gradients)}
