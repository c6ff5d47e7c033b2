"""A device that runs the kernels' source on the CPU; the library's own host code drives it and cannot tell.

Memory lies between unreadable pages and starts as not-a-number, commands run when they are submitted, and data is copied in and
out, as on a Mac. A forbidden action of a kernel is a `KernelError`.
"""

import ctypes
import gc
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import slangpy as spy
from numpy.typing import NDArray

from splat_py.gpu.arrays import Array, Bridge, Memory
from splat_py.gpu.bindings import Bindings, Uniform
from splat_py.gpu.device import Adapter, Device, Tuning
from splat_py.gpu.kernels import Kernel, KernelCache, Profile, Recorder, specialising
from tests.emulation.kernels import Specialisation
from tests.emulation.program import Buffer, Schedule
from tests.emulation.programs import Programs


class EmulatedDevice(Device):
    """Replaces a `Device` of SlangPy's.

    Args:
        adapter: the adapter that it reports.
        programs: the programs of all kernels, shared between devices.
        tuning: the tuning of that kind of device, or another.
        schedule: the order in which programs run; may change between submissions.
        features: the features that SlangPy reports for that kind of device.
    """

    def __init__(
        self,
        adapter: Adapter,
        programs: Programs,
        tuning: Tuning,
        schedule: Schedule | None = None,
        features: Collection[spy.Feature] = (),
    ) -> None:
        nothing = SimpleNamespace(wait_for_idle=lambda: None, wait_for_submit=lambda submission: None)
        memory = _GuardedMemory(programs.compiler.runtime)
        super().__init__(adapter, cast(spy.Device, nothing), memory, DeclaredKernels(), features)
        self.software = False
        self.tuning = tuning
        self.schedule = schedule or Schedule()
        self.programs = programs

    def record(self, profile: Profile | None = None) -> Recorder:
        return _Recorder(self)

    def wait(self, submission: int) -> None:
        """Return at once: submitted commands have already run."""


class DeclaredKernels(KernelCache):
    def __init__(self) -> None:
        super().__init__(cast(spy.Device, None))

    def get(self, module: str, entry: str, **constants: Any) -> Kernel:
        constants = specialising(module, entry, constants)
        specialisation = Specialisation(module, entry, tuple(sorted(constants.items())))
        return Kernel(module, entry, cast(spy.ComputePipeline, specialisation), Bindings.of(module, entry, constants))


def specialisation_of(kernel: Kernel) -> Specialisation:
    """The specialisation that stands in for the pipeline of one of `DeclaredKernels`."""
    return cast(Specialisation, kernel.pipeline)


class _Recorder(Recorder):
    """A recorder that keeps commands until they are submitted."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._emulated = device
        self._kernels = device.kernels
        self._memory = device.memory
        self._arrays: list[Array] = []
        self._commands: list[Callable[[], None]] = []

    def _record(
        self, kernel: Kernel, groups: tuple[int, int, int], uniforms: Mapping[str, Uniform], buffers: dict[str, Array]
    ) -> None:
        values = dict(uniforms)

        def run() -> None:
            device = self._emulated
            bound = {name: Buffer(name, array.buffer.device_address, array.nbytes) for name, array in buffers.items()}
            device.programs.run(specialisation_of(kernel), groups, bound, values, device.schedule)

        self._commands.append(run)

    def copy(self, source: Array, target: Array, at: int) -> None:
        def run() -> None:
            ctypes.memmove(target.buffer.device_address + at, source.buffer.device_address, source.nbytes)

        self._commands.append(run)

    def clear(self, array: Array) -> None:
        self._arrays.append(array)
        self._commands.append(lambda: array.write(np.zeros(array.shape, array.dtype)))

    def stage(self, name: str) -> None:
        """Do nothing: times of emulated threads mean nothing."""

    def submit(self, wait: bool = True) -> int:
        for command in self._commands:
            command()
        self._commands.clear()
        return 0


class _GuardedMemory(Memory):
    """Memory with arrays of exact length, each used only once."""

    def __init__(self, runtime: ctypes.CDLL) -> None:
        super().__init__(cast(spy.Device, None), Bridge.COPY)
        self._runtime = runtime

    def take(self, nbytes: int) -> spy.Buffer:
        """Exactly `nbytes`, poisoned."""
        self.live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        address = self._runtime.guarded_allocate(nbytes)
        if not address:
            # Arrays in garbage take little memory, but much of the address space.
            gc.collect()
            address = self._runtime.guarded_allocate(nbytes)
        if not address:
            raise MemoryError("no address space for another guarded buffer")
        return cast(spy.Buffer, _GuardedBuffer(address, nbytes))

    def give_back(self, buffer: spy.Buffer) -> None:
        """Unmap the buffer, so a later access fails."""
        self.live_bytes -= buffer.size
        self._runtime.guarded_free(buffer.device_address, buffer.size)


class _GuardedBuffer:
    """The part of SlangPy's buffer that `Array` needs."""

    def __init__(self, address: int, size: int) -> None:
        self.device_address = address
        self.size = size

    def to_numpy(self) -> NDArray[np.uint8]:
        return np.frombuffer(ctypes.string_at(self.device_address, self.size), np.uint8).copy()

    def copy_from_numpy(self, values: NDArray) -> None:
        ctypes.memmove(self.device_address, values.ctypes.data, values.nbytes)
