"""A device that runs the kernels as WGSL through wgpu: the library's own host code drives it and cannot tell.

The end of the file works around differences between the compiler's WGSL and its readers.
"""

import re
import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, Self, cast

import numpy as np
import pytest
import slangpy as spy
from numpy.typing import NDArray

from splat_py.gpu.arrays import Array, Bridge, Memory
from splat_py.gpu.bindings import Uniform
from splat_py.gpu.compile_cache import EmissionCache
from splat_py.gpu.device import Adapter, Device
from splat_py.gpu.emission import WgslKernel
from splat_py.gpu.kernels import Kernel, Profile, Recorder
from tests.emulation.device import DeclaredKernels, specialisation_of
from tests.emulation.kernels import Specialisation

# An extension of naga's that no browser has.
EMITTED = EmissionCache("wgsl")
FLOAT_ATOMICS = "shader-float32-atomic"
# The number of Metal's slots; the standard guarantees 8, GPUs have more.
_STORAGE_BUFFERS = 28
_FORMATS = {"u32": "<I", "i32": "<i", "f32": "<f", "vec2<u32>": "<Q"}


def open_wgpu(*beyond: str) -> Any:
    """A device of wgpu's with subgroups, the only optional feature that kernels need, and with the features `beyond`; skips the
    test if there is none."""
    features = ["subgroup", *beyond]
    wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed: pip install 'slang-splat[webgpu]'")
    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if set(features) <= a.features]
    if not adapters:
        pytest.skip(f"wgpu finds no adapter with {' and '.join(features)}")
    # Prefer a GPU.
    adapter = min(adapters, key=lambda a: a.info["adapter_type"] == "CPU")
    limits = {"max-storage-buffers-per-shader-stage": _STORAGE_BUFFERS}
    return adapter.request_device_sync(required_features=features, required_limits=limits)


class WebGpu(Device):
    def __init__(self, wgpu_device: Any) -> None:
        self.wgpu = wgpu_device
        name = wgpu_device.adapter.info["device"]
        nothing = cast(spy.Device, SimpleNamespace(wait_for_idle=lambda: None, wait_for_submit=lambda submission: None))
        adapter, features = Adapter("webgpu", name, ()), [spy.Feature.wave_ops]
        super().__init__(adapter, nothing, _Memory(wgpu_device), DeclaredKernels(), features)
        self.programs: dict[Specialisation, _Program] = {}

    def record(self, profile: Profile | None = None) -> Recorder:
        return _Recorder(self)

    def wait(self, submission: int) -> None:
        """Return at once: readers of a buffer wait for it."""

    def program(self, specialisation: Specialisation) -> "_Program":
        if specialisation not in self.programs:
            module, entry, constants = specialisation
            source = for_naga(EMITTED.get(module, entry, dict(constants)).source)
            self.programs[specialisation] = _Program.of(self.wgpu, source, entry)
        return self.programs[specialisation]


class _Program(NamedTuple):
    pipeline: Any
    kernel: WgslKernel

    @classmethod
    def of(cls, device: Any, source: str, entry: str) -> Self:
        """The pipeline and parameters that a dispatch of WGSL source needs."""
        module = device.create_shader_module(code=source)
        pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": entry})
        return cls(pipeline, WgslKernel.of(source))


class _Recorder(Recorder):
    def __init__(self, device: WebGpu) -> None:
        self._webgpu = device
        self._kernels = device.kernels
        self._memory = device.memory
        self._encoder = device.wgpu.create_command_encoder()
        # As in `Recorder`.
        self._arrays: list[Array] = []

    def _record(
        self, kernel: Kernel, groups: tuple[int, int, int], uniforms: Mapping[str, Uniform], buffers: dict[str, Array]
    ) -> None:
        device = self._webgpu.wgpu
        program = self._webgpu.program(specialisation_of(kernel))
        # Buffers that the shader names but does not use are not passed.
        handles = {name: cast(_Buffer, array.buffer).handle for name, array in buffers.items()}
        bound = [
            (binding, handles.get(name) or device.create_buffer(size=16, usage="STORAGE"))
            for binding, name in program.kernel.buffers.items()
        ]
        fields = program.kernel.fields
        if fields:
            block = bytearray(-(-(fields[-1].offset + 8) // 16) * 16)
            for name, offset, kind in fields:
                value = uniforms.get(name, 0)
                number = value.x | value.y << 32 if isinstance(value, spy.uint2) else value
                struct.pack_into(_FORMATS[kind], block, offset, number)
            bound.append((program.kernel.uniforms, device.create_buffer_with_data(data=block, usage="UNIFORM")))
        entries = [{"binding": binding, "resource": {"buffer": buffer}} for binding, buffer in bound]
        group = device.create_bind_group(layout=program.pipeline.get_bind_group_layout(0), entries=entries)
        compute = self._encoder.begin_compute_pass()
        compute.set_pipeline(program.pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*groups)
        compute.end()

    def copy(self, source: Array, target: Array, at: int) -> None:
        begin, end = (cast(_Buffer, array.buffer).handle for array in (source, target))
        self._encoder.copy_buffer_to_buffer(begin, 0, end, at, source.nbytes)

    def clear(self, array: Array) -> None:
        self._arrays.append(array)
        self._encoder.clear_buffer(cast(_Buffer, array.buffer).handle)

    def stage(self, name: str) -> None:
        """Do nothing: there are no timings here."""

    def submit(self, wait: bool = True) -> int:
        self._webgpu.wgpu.queue.submit([self._encoder.finish()])
        return 0


class _Memory(Memory):
    """Memory with wgpu's buffers; data is copied."""

    def __init__(self, device: Any) -> None:
        super().__init__(cast(spy.Device, None), Bridge.COPY)
        self._wgpu = device

    def _create(self, size: int) -> spy.Buffer:
        return cast(spy.Buffer, _Buffer(self._wgpu, size))


class _Buffer:
    def __init__(self, device: Any, size: int) -> None:
        self.size = size
        self.handle = device.create_buffer(size=size, usage="STORAGE|COPY_SRC|COPY_DST")
        self._queue = device.queue

    def to_numpy(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._queue.read_buffer(self.handle), np.uint8)

    def copy_from_numpy(self, values: NDArray[Any]) -> None:
        self._queue.write_buffer(self.handle, 0, np.ascontiguousarray(values))


_NEGATION = re.compile(r"\(vec[234]<f32>\(0\) - ")


def negated_sums(source: str) -> list[str]:
    """Negated sums of vectors whose brackets the compiler has lost: -(a + b) as `(vec2<f32>(0) - a + b)`, in Slang 2026.5 and
    2026.12.

    Slang's -a - b means the same and is emitted correctly.
    """
    found = []
    for negation in _NEGATION.finditer(source):
        depth, is_sum, end = 0, False, negation.end()
        while depth >= 0:
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(source[end], 0)
            is_sum |= depth == 0 and source[end : end + 3] in (" + ", " - ")
            end += 1
        if is_sum:
            found.append(source[negation.end() : end - 1])
    return found


# Parts of the standard that naga 29 lacks, and what it has instead; test_wgsl.py checks each.
_POINTER_TO_PART = re.compile(r"\b(?!atomic)\w+\([^;{}]*&\(\w+[.\[].*;")
_ENABLE = "enable subgroups;"
_SIGNED_LANE = re.compile(r"(subgroupShuffle\([^;]*, )i32\(")
_SIGNED_VARIABLE = re.compile(r"(subgroupShuffle\([^;]*, )(\w+)\)")
_ELECT = "subgroupElect()"
_ELECTED = "fn subgroupElect() -> bool { return subgroupExclusiveAdd(1u) == 0u; }\n"


def pointers_to_parts(source: str) -> list[str]:
    """Calls that pass a pointer to a field or an element to a function: the first version of WGSL does not allow it, and naga
    validates it but crashes when it compiles it."""
    return _POINTER_TO_PART.findall(source)


def for_naga(source: str) -> str:
    """WGSL for naga, the validator in wgpu: without the line that enables subgroups, with unsigned lane numbers and an own
    `subgroupElect`."""
    source = _SIGNED_LANE.sub(r"\1u32(", source.replace(_ENABLE, ""))
    source = _SIGNED_VARIABLE.sub(r"\1u32(\2))", source)
    return _ELECTED + source if _ELECT in source else source
