"""What the host would send to a device, written down as JSON for a page to send to WebGPU.

The library's own host code drives a `PlanDevice` and cannot tell: its arrays are numbers in a list, and its commands end up in
a `Plan`. Sizes may be symbols (playground_symbols.py), so that one plan serves pictures, lists and numbers of blobs of any
size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import slangpy as spy
from numpy.typing import DTypeLike

from splat_py.gpu.arrays import Array, Bridge, Memory
from splat_py.gpu.bindings import Bindings, Uniform
from splat_py.gpu.device import _GPU_TUNING, Adapter, Device, native_operators
from splat_py.gpu.emission import WGSL_SIZES, WgslKernel, emit_wgsl
from splat_py.gpu.kernels import Kernel, KernelCache, Recorder, specialising
from splat_py.gpu.profiling import Profile
from splat_py.gpu.sources import constant
from splat_py.pages.playground_symbols import expression_of, smaller

_GROUPS_PER_ROW = constant("parallel/threads", "GROUPS_PER_ROW")
# Browsers take the lanes of a subgroup to part where one of them has found nothing; all of ours go the same way.
_UNIFORMITY = "diagnostic(off, subgroup_uniformity);\n"

Json = dict[str, Any]


class WgslKernels:
    """Kernels that plans share, each emitted once."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[Any, ...], tuple[int, WgslKernel]] = {}
        self.content: list[Json] = []

    def number(self, kernel: Kernel) -> tuple[int, WgslKernel]:
        """Its place in `content`, and what it binds."""
        module, entry, constants = cast(tuple[str, str, tuple[tuple[str, Any], ...]], kernel.pipeline)
        key = (module, entry, constants)
        if key not in self._kernels:
            emitted = _emitted(module, entry, constants)
            self._kernels[key] = len(self.content), emitted
            size = max((item.offset + WGSL_SIZES[item.type] for item in emitted.fields), default=0)
            self.content.append(
                {
                    "name": f"{module}.{entry}",
                    "entry": entry,
                    "source": _UNIFORMITY + emitted.source,
                    "buffers": {name: binding for binding, name in emitted.buffers.items()},
                    "uniforms": emitted.uniforms,
                    "bytes": -(-size // 16) * 16,
                    "fields": [list(item) for item in emitted.fields],
                }
            )
        return self._kernels[key]


@cache
def _emitted(module: str, entry: str, constants: tuple[tuple[str, Any], ...]) -> WgslKernel:
    return WgslKernel.of(emit_wgsl(module, entry, dict(constants)))


@dataclass
class Plan:
    """Buffers, and lists of commands over them."""

    kernels: WgslKernels
    buffers: list[Json] = field(default_factory=list)
    # Numbers of the buffers that the page fills or reads.
    names: dict[str, int] = field(default_factory=dict)
    lists: dict[str, list[Json]] = field(default_factory=dict)

    def name(self, **arrays: Array) -> None:
        """Let the page know these arrays."""
        self.names |= {name: _number(array) for name, array in arrays.items()}

    def content(self) -> Json:
        """All of it for the page, without buffers that nothing uses."""
        used = sorted(set(self.names.values()).union(*map(_buffers_of, (c for part in self.lists.values() for c in part))))
        place = {number: i for i, number in enumerate(used)}

        def renumbered(command: Json) -> Json:
            if "clear" in command:
                return {"clear": place[command["clear"]]}
            return command | {"buffers": {name: place[number] for name, number in command["buffers"].items()}}

        return {
            "buffers": [self.buffers[number] for number in used],
            "names": {name: place[number] for name, number in self.names.items()},
            "lists": {name: [renumbered(command) for command in commands] for name, commands in self.lists.items()},
        }


class PlanDevice(Device):
    """Takes the place of a `Device` of SlangPy's. Without float atomics, which WebGPU does not have."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.adapter = Adapter("webgpu", "a page", ())
        self.profile = None
        self._process = os.getpid()
        self.software = False
        # Browsers ask that barriers can be proven to be reached by all; between batches they follow from what was blended.
        # A plan has as many passes of the sort at every size: three for the tiles of frames that it is made for.
        self.tuning = replace(_GPU_TUNING, batched=False, sort_digit_bits=4, sort_threads=256, sort_items=16)
        self.operators = native_operators("webgpu", [spy.Feature.wave_ops])
        self.memory = _Memory(plan)
        self.kernels = _Kernels()
        self.handle = cast(spy.Device, SimpleNamespace())

    def record(self, profile: Profile | None = None) -> PlanRecorder:
        """Begin a list of commands."""
        return PlanRecorder(self)


class PlanRecorder(Recorder):
    """Commands for the plan."""

    def __init__(self, device: PlanDevice) -> None:
        self._plan = device.plan
        self._kernels = device.kernels
        self._memory = device.memory
        self._arrays: list[Array] = []
        self._commands: list[Json] = []
        self._unused = device.memory.empty(4)

    def _record(
        self, kernel: Kernel, groups: tuple[int, int, int], uniforms: Mapping[str, Uniform], buffers: dict[str, Array]
    ) -> None:
        number, emitted = self._plan.kernels.number(kernel)
        # Rows of workgroups as `linear_groups` makes them; other grids are never so wide.
        x, y, z = smaller(groups[0], _GROUPS_PER_ROW), groups[1], groups[2]
        self._commands.append(
            {
                "kernel": number,
                "groups": [expression_of(n) for n in (x, y, z)],
                # What constants have switched off, nobody sets, though it may still be named.
                "uniforms": {item.name: expression_of(uniforms[item.name]) for item in emitted.fields if item.name in uniforms},
                "buffers": {name: _number(buffers.get(name, self._unused)) for name in emitted.buffers.values()},
            }
        )

    def copy(self, source: Array, target: Array, at: int) -> None:
        """Nothing that is planned copies."""
        raise NotImplementedError

    def clear(self, array: Array) -> None:
        """See `Recorder`."""
        self._commands.append({"clear": _number(array)})

    def stage(self, name: str) -> None:
        """Nothing: pages are not profiled."""

    def submit(self, wait: bool = True) -> int:
        """Nothing runs; `submit_as` keeps the commands."""
        return 0

    def submit_as(self, name: str) -> None:
        """Make the commands a list of the plan's."""
        self._plan.lists[name] = self._commands


class _Kernels(KernelCache):
    """Kernels without programs, bound as their sources declare."""

    def __init__(self) -> None:
        super().__init__(cast(spy.Device, None))

    def get(self, module: str, entry: str, **constants: Any) -> Kernel:
        """See `KernelCache`."""
        constants = specialising(module, entry, constants)
        key = cast(spy.ComputePipeline, (module, entry, tuple(sorted(constants.items()))))
        return Kernel(module, entry, key, Bindings.of(module, entry, constants))


class _Memory(Memory):
    """Arrays that are entries in a plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(cast(spy.Device, None), Bridge.COPY)
        self._plan = plan

    def empty(self, shape: tuple[int, ...] | int, dtype: DTypeLike = np.float32, *, by_address: bool = False) -> Array:
        """See `Memory`; sides may be symbols."""
        return Array(self, shape if isinstance(shape, tuple) else (shape,), np.dtype(dtype))

    def full(self, shape: tuple[int, ...], value: float, dtype: DTypeLike = np.float32) -> Array:
        """See `Memory`."""
        array = self.empty(shape, dtype)
        self._plan.buffers[_number(array)] |= {"value": expression_of(value), "type": np.dtype(dtype).name}
        return array

    def arange(self, count: int) -> Array:
        """See `Memory`."""
        array = self.empty(count, np.uint32)
        self._plan.buffers[_number(array)] |= {"range": True}
        return array

    def take(self, nbytes: int) -> spy.Buffer:
        """A new entry."""
        self._plan.buffers.append({"bytes": expression_of(nbytes)})
        return cast(spy.Buffer, _Buffer(len(self._plan.buffers) - 1))

    def give_back(self, buffer: spy.Buffer) -> None:
        """Nothing: no two arrays share an entry."""


@dataclass(frozen=True)
class _Buffer:
    number: int


def _number(array: Array) -> int:
    return cast(_Buffer, array.buffer).number


def _buffers_of(command: Json) -> list[int]:
    return [command["clear"]] if "clear" in command else list(command["buffers"].values())
