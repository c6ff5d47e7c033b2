"""Radiance fields in the user's own Slang: the user's field, the device's field, and its optimiser."""

import os
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.base.files import Layout
from splat_py.fit.run_folder import require_layout
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import UserType
from splat_py.shaders import ShaderModule
from splat_py.shaders.declarations import MOST_SOURCE, SlangSource
from splat_py.shaders.field_functions import MOST_PARAMS, first_values, params_of
from splat_py.volume.config import FIELD, VolumeConfig
from splat_py.volume.device_field import Box, DeviceField, GridSize, March, TableSize
from splat_py.volume.field import Field, check_finite_tensors
from splat_py.volume.optimiser import FieldOptimiser, State, check_memory


def padded(params: Tensor) -> Tensor:
    """Pad parameters to a multiple of four, as they lie on the device."""
    return torch.nn.functional.pad(params, (0, -len(params) % 4))


class SlangVolume(DeviceField):
    """The user's function on the device, with its padded numbers."""

    kind = "OwnField"

    def __init__(self, device: Device, function: UserType | str, parameters: Array) -> None:
        super().__init__(device, parameters, parameters.shape, GridSize(parameters.size // 4, 1, 1))
        self._function = function
        self.table_size = TableSize(0, 0, parameters.size)

    def _constants(self, march: March) -> dict[str, Any]:
        return {"FieldFunction": self._function}

    def _memory(self) -> dict[str, Array | None]:
        return {"numbers": self.parameters}


@dataclass(frozen=True, eq=False)
class SlangField(Field):
    """A Slang function from a position, a direction and numbers to a density and a colour (`IFieldFunction` in
    slang/splat/field_function.slang).

    Attributes:
        kind: from `splat_py.shaders.source` or `load`; the source of a file is compiled only once it is trusted.
        params: [PARAMS] float32, the numbers.
        box: [2, 3] lower and upper corner in the world.
        background: [3] rgb behind the box.
        samples: default number of samples along the box's longest side.

    Raises:
        SplatError: arrays do not fit, numbers are not finite, the box has no volume, or the source has no PARAMS.
    """

    _kind, _names = "field in Slang", ("params",)

    kind: UserType | ShaderModule | SlangSource
    params: Tensor
    box: NDArray[np.float64]
    background: NDArray[np.float32]
    samples: float = 64.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, SlangSource):
            object.__setattr__(self, "kind", FIELD.own(self.kind))
            count = params_of(self._trusted)
            if tuple(self.params.shape) != (count,) or self.params.dtype != torch.float32:
                given = f"{self.params.dtype} {list(self.params.shape)}"
                raise SplatError(f"params is {given}; {self._trusted.name} takes torch.float32 [{count}]")
        check_finite_tensors({"params": self.params})
        super().__post_init__()
        if not 0 < self.samples <= 1e6:
            raise SplatError(f"samples is {self.samples}; it must be above 0")

    @classmethod
    def new(cls, kind: UserType | ShaderModule, box: ArrayLike, background: ArrayLike = (0.0, 0.0, 0.0), seed: int = 0) -> Self:
        """Make a field with the initial numbers from `first` in the source."""
        own = FIELD.own(kind)
        return cls(own, torch.from_numpy(first_values(own, seed)), Box.of(box).numpy(), cast(Any, background))

    @property
    def steps_per_unit(self) -> float:
        return self.samples / float(Box.of(self.box).sides.max())

    @property
    def _trusted(self) -> UserType:
        if isinstance(self.kind, SlangSource):
            raise SplatError(
                f"the field is Slang source from a file, {self.kind.name}, which could read and write any memory; "
                "call its trust_source() if you trust it"
            )
        assert isinstance(self.kind, UserType)
        return self.kind

    def trust_source(self) -> Self:
        """Return the same field with a source that may be compiled; SplatError if it cannot be compiled. The source could read
        and write any of your memory."""
        own = FIELD.trusted(self.kind, None, True, "the field")  # type: ignore[arg-type]
        assert isinstance(own, UserType)
        return replace(self, kind=own)

    def _parameters(self) -> list[Tensor]:
        return [padded(self.params)]

    def _on_device(self, device: Device, parameters: Array) -> SlangVolume:
        return SlangVolume(device, self._trusted, parameters)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        assert not isinstance(self.kind, ShaderModule)
        return {
            "samples": np.array([self.samples]),
            "name": np.frombuffer(self.kind.name.encode(), np.uint8),
            "source": np.frombuffer(self.kind.text.encode(), np.uint8),
        }

    @classmethod
    def _of_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        source = SlangSource(*(bytes(arrays[name]).decode() for name in ("name", "source")))
        params, samples = torch.from_numpy(arrays["params"]), float(arrays["samples"][0])
        return cls(source, params, arrays["box"], arrays["background"], samples)

    @classmethod
    def load(cls, path: str | os.PathLike[str], kind: UserType | ShaderModule | None = None) -> Self:
        """Read what `save` wrote.

        Args:
            kind: the source, passed again; without it nothing is compiled before `trust_source()`.

        Raises:
            SplatError: the file is missing, damaged or of another kind, or `kind` is another source.
        """
        field = super().load(path)
        if kind is None:
            return field
        assert isinstance(field.kind, SlangSource)
        own = FIELD.trusted(field.kind, FIELD.own(kind), False, str(path))
        assert isinstance(own, UserType)
        return replace(field, kind=own)

    @staticmethod
    def _check_layout(header: dict[str, Any], layout: Layout) -> None:
        (params,), (name,), (source,) = (layout[key][1] for key in ("params", "name", "source"))
        if not 1 <= params <= MOST_PARAMS or not 1 <= name <= 64 or not 1 <= source <= 4 * MOST_SOURCE:
            raise ValueError(f"it has {params} numbers and {source} bytes of source")
        shapes = {"params": (params,), "box": (2, 3), "background": (3,), "samples": (1,), "name": (name,), "source": (source,)}
        require_layout(layout, shapes, {"box": "F64", "samples": "F64", "name": "U8", "source": "U8"})


class SlangOptimiser(FieldOptimiser):
    """The numbers of a Slang function in a fit."""

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
        """Return parameters, m, v: [PARAMS]."""
        return {name: array[: self.count] for name, array in super().state().items()}
