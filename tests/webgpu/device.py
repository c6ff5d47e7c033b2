"""A device that runs the kernels as WGSL through wgpu: the library's own host code drives it and cannot tell."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import slangpy as spy
from numpy.typing import NDArray

from splat_py.gpu.arrays import Array, Bridge, Memory
from splat_py.gpu.bindings import Uniform
from splat_py.gpu.device import _GPU_TUNING, Adapter, Device, native_operators
from splat_py.gpu.emission import WgslKernel, emit_wgsl
from splat_py.gpu.kernels import Kernel, Recorder
from splat_py.gpu.profiling import Profile
from tests.emulation.device import DeclaredKernels, specialisation_of
from tests.emulation.kernels import Specialisation
from tests.webgpu.wgsl import for_naga

# An extension of naga's, which no browser has.
FLOAT_ATOMICS = "shader-float32-atomic"
# As many as Metal has slots; the standard promises 8, GPUs have more.
_STORAGE_BUFFERS = 28
_FORMATS = {"u32": "<I", "i32": "<i", "f32": "<f", "vec2<u32>": "<Q"}


def open_wgpu(*beyond: str) -> Any:
    """A device of wgpu's with subgroups, all that kernels need of the standard's optional features, and with features `beyond`
    it; skips the test where there is none."""
    features = ["subgroup", *beyond]
    wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed: pip install 'slang-splat[webgpu]'")
    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if set(features) <= a.features]
    if not adapters:
        pytest.skip(f"wgpu finds no adapter with {' and '.join(features)}")
    # A GPU where there is one.
    adapter = min(adapters, key=lambda a: a.info["adapter_type"] == "CPU")
    limits = {"max-storage-buffers-per-shader-stage": _STORAGE_BUFFERS}
    return adapter.request_device_sync(required_features=features, required_limits=limits)


class WebGpu(Device):
    """Takes the place of a `Device` of SlangPy's."""

    def __init__(self, wgpu_device: Any) -> None:
        self.wgpu = wgpu_device
        name = wgpu_device.adapter.info["device"]
        self.adapter = Adapter("webgpu", name, ())
        self.software = False
        self.tuning = _GPU_TUNING
        self.operators = native_operators("webgpu", [spy.Feature.wave_ops])
        self.memory = _Memory(wgpu_device)
        self.kernels = DeclaredKernels()
        self.programs: dict[Specialisation, _Program] = {}
        nothing = SimpleNamespace(wait_for_idle=lambda: None, wait_for_submit=lambda submission: None)
        self.handle = cast(spy.Device, nothing)

    def record(self, profile: Profile | None = None) -> Recorder:
        """Begin a list of commands."""
        return _Recorder(self)

    def wait(self, submission: int) -> None:
        """Nothing: who reads a buffer waits for it."""

    def program(self, specialisation: Specialisation) -> _Program:
        """Compiled when it is first asked for."""
        if specialisation not in self.programs:
            module, entry, constants = specialisation
            source = for_naga(emit_wgsl(module, entry, dict(constants)))
            self.programs[specialisation] = _Program.of(self.wgpu, source, entry)
        return self.programs[specialisation]


class _Program(NamedTuple):
    pipeline: Any
    kernel: WgslKernel

    @classmethod
    def of(cls, device: Any, source: str, entry: str) -> _Program:
        """Everything that a dispatch needs to know of WGSL source."""
        module = device.create_shader_module(code=source)
        pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": entry})
        return cls(pipeline, WgslKernel.of(source))


class _Recorder(Recorder):
    """Commands for wgpu."""

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
        # What is not used, though named, nobody sets.
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
        """See `Recorder`."""
        begin, end = (cast(_Buffer, array.buffer).handle for array in (source, target))
        self._encoder.copy_buffer_to_buffer(begin, 0, end, at, source.nbytes)

    def clear(self, array: Array) -> None:
        """See `Recorder`."""
        self._encoder.clear_buffer(cast(_Buffer, array.buffer).handle)

    def stage(self, name: str) -> None:
        """Nothing: nobody times this."""

    def submit(self, wait: bool = True) -> int:
        """See `Recorder`."""
        self._webgpu.wgpu.queue.submit([self._encoder.finish()])
        return 0


class _Memory(Memory):
    """Buffers of wgpu's; data is copied."""

    def __init__(self, device: Any) -> None:
        super().__init__(cast(spy.Device, None), Bridge.COPY)
        self._wgpu = device

    def _create(self, size: int) -> spy.Buffer:
        return cast(spy.Buffer, _Buffer(self._wgpu, size))


class _Buffer:
    """What `Array` asks of a buffer."""

    def __init__(self, device: Any, size: int) -> None:
        self.size = size
        self.handle = device.create_buffer(size=size, usage="STORAGE|COPY_SRC|COPY_DST")
        self._queue = device.queue

    def to_numpy(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._queue.read_buffer(self.handle), np.uint8)

    def copy_from_numpy(self, values: NDArray[Any]) -> None:
        self._queue.write_buffer(self.handle, 0, np.ascontiguousarray(values))
