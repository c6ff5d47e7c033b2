"""A Mac's GPU through torch: torch compiles our Metal source at run time, which takes no Xcode, and dispatches it on its own
stream, so that kernels read and write the tensors of torch themselves.

Commands are sent when they are submitted. torch's stream runs them in order with torch's own, so that only the host has to wait
before it reads, and `Tensor.cpu` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import cast

import slangpy as spy
import torch

from splat_py.gpu import torch_metal_support
from splat_py.gpu.arrays import Array
from splat_py.gpu.bindings import Uniform
from splat_py.gpu.device import Adapter, Device, native_operators, tuning_of
from splat_py.gpu.kernels import Kernel, Recorder
from splat_py.gpu.profiling import Profile
from splat_py.gpu.torch_metal_kernels import TorchKernels, TorchProgram
from splat_py.gpu.torch_metal_memory import TensorMemory, tensor_buffer


class TorchMetal(Device):
    """Takes the place of a `Device` of SlangPy's."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.profile: Profile | None = None
        self._process = os.getpid()
        self.software = False
        self.tuning = tuning_of(adapter.backend)
        self.operators = native_operators(adapter.backend, [])
        self.memory = TensorMemory(torch_metal_support.TORCH_DEVICE)
        self.kernels = TorchKernels(torch_metal_support.TORCH_DEVICE)
        # What of SlangPy's devices is asked for without a look at the backend.
        self.handle = cast(
            spy.Device,
            SimpleNamespace(
                wait_for_idle=torch.mps.synchronize,
                has_feature=lambda feature: False,
                features=[],
                info=SimpleNamespace(limits=SimpleNamespace(), timestamp_frequency=0.0),
            ),
        )
        # The number of the last submission, and those that may still be running.
        self._submitted = 0
        self._running: dict[int, torch.mps.Event] = {}

    def record(self, profile: Profile | None = None) -> Recorder:
        """Begin a list of commands."""
        self.require_process()
        return _Recorder(self)

    def wait(self, submission: int) -> None:
        """Wait until what `Recorder.submit` sent has been done."""
        event = self._running.get(submission)
        if event is not None:
            event.synchronize()
        # What came before it is done, too.
        for number in [number for number in self._running if number <= submission]:
            self._running.pop(number, None)

    def sent(self) -> int:
        """The number of the submission that ends with what torch was told last."""
        event = torch.mps.Event()
        # Also has torch commit what it has gathered: the GPU begins while the host goes on.
        event.record()
        self._submitted += 1
        self._running[self._submitted] = event
        return self._submitted


class _Recorder(Recorder):
    """Remembers commands until they are submitted."""

    def __init__(self, device: TorchMetal) -> None:
        self._torch = device
        self._kernels = device.kernels
        self._memory = device.memory
        self._arrays: list[Array] = []
        self._commands: list[Callable[[], object]] = []

    def _record(
        self, kernel: Kernel, groups: tuple[int, int, int], uniforms: Mapping[str, Uniform], buffers: dict[str, Array]
    ) -> None:
        program = cast(TorchProgram, kernel.pipeline)
        self._commands.append(partial(program.dispatch, groups, program.arguments(uniforms, buffers)))

    def copy(self, source: Array, target: Array, at: int) -> None:
        """See `Recorder`."""
        begin, end = (tensor_buffer(array) for array in (source, target))
        self._commands.append(partial(end.bytes[at : at + source.nbytes].copy_, begin.bytes[: source.nbytes]))

    def clear(self, array: Array) -> None:
        """See `Recorder`."""
        self._commands.append(tensor_buffer(array).bytes[: array.nbytes].zero_)

    def stage(self, name: str) -> None:
        """Nothing: Metal has no timestamps here."""

    def submit(self, wait: bool = True) -> int:
        """See `Recorder`."""
        for command in self._commands:
            command()
        self._commands.clear()
        submission = self._torch.sent()
        if wait:
            self._torch.wait(submission)
        return submission
