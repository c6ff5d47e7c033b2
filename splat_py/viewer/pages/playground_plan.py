"""Recording of the host's device commands as JSON, which a page then sends to WebGPU.

The library's host code drives a `PlanDevice` like any other device: its arrays are numbers in a list, and its commands go into
a `Plan`. Sizes may be symbols, which are numbers that remember their computation. One plan then serves pictures, lists and
blob counts of any size: host code computes with the number, and the page evaluates the expression for its own variables. In
JSON an expression is a number, the name of a variable, or [operator, operand, operand]. Host code compares the recorded
numbers, so a plan is valid for sizes for which these comparisons have the same results.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partialmethod
from types import SimpleNamespace
from typing import Any, TypeAlias, Union, cast

import numpy as np
import slangpy as spy
from numpy.typing import DTypeLike

from splat_py.gpu.arrays import Array, Bridge, Memory
from splat_py.gpu.bindings import Bindings, Uniform
from splat_py.gpu.device import _GPU_TUNING, Adapter, Device
from splat_py.gpu.emission import WGSL_SIZES, WgslKernel, emit
from splat_py.gpu.kernels import Kernel, KernelCache, Pipeline, Profile, Recorder, specialising
from splat_py.gpu.sources import constant

_GROUPS_PER_ROW = constant("parallel/threads", "GROUPS_PER_ROW")
# Browsers assume that the lanes of a subgroup may diverge; in these kernels they take the same branches.
_UNIFORMITY = "diagnostic(off, subgroup_uniformity);\n"

Json = dict[str, Any]
Expression: TypeAlias = Union[int, float, str, "list[Expression]"]

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": operator.pow,
    "min": min,
}


class _Symbol:
    """A number with its expression. A float on the left of a whole symbol gives a plain number, since Python asks the float
    first; tests of plans detect this."""

    expression: Expression

    def __new__(cls, value: float, expression: Expression) -> Any:
        number = super().__new__(cls, value)  # type: ignore[call-arg]
        number.expression = expression
        return number

    def __neg__(self) -> Any:
        return _combined("-", 0, self)


class _WholeSymbol(_Symbol, int):
    pass


class _FloatSymbol(_Symbol, float):
    pass


def symbol(value: float, expression: Expression) -> Any:
    return (_WholeSymbol if isinstance(value, int) else _FloatSymbol)(value, expression)


def expression_of(value: Any) -> Expression:
    """The expression of a symbol, or a plain number itself."""
    return value.expression if isinstance(value, _Symbol) else _plain(value)


def _plain(value: Any) -> float:
    return int(value) if isinstance(value, int) else float(value)


def _combined(name: str, a: Any, b: Any) -> Any:
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        return NotImplemented
    return symbol(OPERATORS[name](_plain(a), _plain(b)), [name, expression_of(a), expression_of(b)])


for _method, _operator in {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "pow": "**"}.items():
    setattr(_Symbol, f"__{_method}__", partialmethod(lambda self, name, other: _combined(name, self, other), _operator))
    setattr(_Symbol, f"__r{_method}__", partialmethod(lambda self, name, other: _combined(name, other, self), _operator))


class WgslKernels:
    def __init__(self) -> None:
        self._kernels: dict[tuple[Any, ...], tuple[int, WgslKernel]] = {}
        self.content: list[Json] = []

    def number(self, kernel: Kernel) -> tuple[int, WgslKernel]:
        """The kernel's index in `content`, and its WGSL with the bindings."""
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
    return WgslKernel.of(emit("wgsl", module, entry, dict(constants)).source)


@dataclass
class Plan:
    """Buffers, and lists of commands that use them."""

    kernels: WgslKernels
    buffers: list[Json] = field(default_factory=list)
    # Indices of the buffers that the page fills or reads.
    names: dict[str, int] = field(default_factory=dict)
    lists: dict[str, list[Json]] = field(default_factory=dict)

    def number(self, array: Array) -> int:
        """The index of an array's buffer, assigned on first use."""
        buffer = cast(_Buffer, array.buffer)
        if buffer.number is None:
            buffer.number = len(self.buffers)
            self.buffers.append(buffer.content)
        return buffer.number

    def name(self, **arrays: Array) -> None:
        self.names |= {name: self.number(array) for name, array in arrays.items()}

    def content(self) -> Json:
        return {"buffers": self.buffers, "names": self.names, "lists": self.lists}


class PlanDevice(Device):
    """A `Device` without SlangPy that records a plan. It has no float atomics, since WebGPU has none."""

    def __init__(self, plan: Plan) -> None:
        nothing, features = cast(spy.Device, SimpleNamespace()), [spy.Feature.wave_ops]
        super().__init__(Adapter("webgpu", "a page", ()), nothing, _Memory(), _Kernels(), features)
        self.plan = plan
        # WebGPU promises 16 KiB of group-shared memory.
        self.tuning = replace(_GPU_TUNING, sort_threads=128)

    def record(self, profile: Profile | None = None) -> "PlanRecorder":
        return PlanRecorder(self)


class PlanRecorder(Recorder):
    def __init__(self, device: PlanDevice) -> None:
        self._plan = device.plan
        self._kernels = device.kernels
        self._memory = device.memory
        self._profile = None
        self._arrays: list[Array] = []
        self._commands: list[Json] = []
        self._unused = device.memory.empty(4)

    def _record(
        self, kernel: Kernel, groups: tuple[int, int, int], uniforms: Mapping[str, Uniform], buffers: dict[str, Array]
    ) -> None:
        number, emitted = self._plan.kernels.number(kernel)
        # WebGPU has no addresses.
        numbers = {name: value for name, value in uniforms.items() if not isinstance(value, spy.uint2)}
        # Rows of workgroups as in `linear_groups`; other grids are never this wide.
        width = min(groups[0], _GROUPS_PER_ROW)
        if isinstance(groups[0], _Symbol):
            width = symbol(width, ["min", expression_of(groups[0]), _GROUPS_PER_ROW])
        self._commands.append(
            {
                "kernel": number,
                "groups": [expression_of(n) for n in (width, *groups[1:])],
                # A uniform that constants switch off has no value, but the WGSL may still declare it.
                "uniforms": {item.name: expression_of(numbers[item.name]) for item in emitted.fields if item.name in numbers},
                "buffers": {name: self._plan.number(buffers.get(name, self._unused)) for name in emitted.buffers.values()},
            }
        )

    def clear(self, array: Array) -> None:
        self._commands.append({"clear": self._plan.number(array)})

    def submit_as(self, name: str) -> None:
        self._plan.lists[name] = self._commands


class _Kernels(KernelCache):
    """Kernels without programs, with the bindings that their sources declare."""

    def __init__(self) -> None:
        super().__init__(cast(spy.Device, None))

    def get(self, module: str, entry: str, **constants: Any) -> Kernel:
        constants = specialising(module, entry, constants)
        key = cast(Pipeline, (module, entry, tuple(sorted(constants.items()))))
        return Kernel(module, entry, key, Bindings.of(module, entry, constants))


class _Memory(Memory):
    """Arrays that are entries in a plan."""

    def __init__(self) -> None:
        super().__init__(cast(spy.Device, None), Bridge.COPY)

    def empty(self, shape: tuple[int, ...] | int, dtype: DTypeLike = np.float32, *, by_address: bool = False) -> Array:
        return Array(self, shape if isinstance(shape, tuple) else (shape,), np.dtype(dtype))

    def full(self, shape: tuple[int, ...], value: float, dtype: DTypeLike = np.float32) -> Array:
        array = self.empty(shape, dtype)
        cast(_Buffer, array.buffer).content |= {"value": expression_of(value), "type": np.dtype(dtype).name}
        return array

    def arange(self, count: int) -> Array:
        array = self.empty(count, np.uint32)
        cast(_Buffer, array.buffer).content |= {"range": True}
        return array

    def take(self, nbytes: int) -> spy.Buffer:
        return cast(spy.Buffer, _Buffer({"bytes": expression_of(nbytes)}))

    def give_back(self, buffer: spy.Buffer) -> None:
        """Do nothing: arrays never share an entry."""


@dataclass
class _Buffer:
    content: Json
    number: int | None = None
