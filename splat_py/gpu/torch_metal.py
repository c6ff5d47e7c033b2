"""A Mac's GPU through torch: torch compiles the emitted Metal source at run time, without Xcode, and dispatches it on its own
stream, so kernels read and write torch's tensors directly.

Commands are sent at submission. torch's stream runs them in order with torch's own, so only the host must wait before it reads,
which `Tensor.cpu` does.
"""

import struct
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import slangpy as spy
import torch
from numpy.typing import DTypeLike, NDArray

from splat_py.base.errors import SplatError
from splat_py.gpu.arrays import Array, Bridge, Memory
from splat_py.gpu.bindings import Bindings, Uniform
from splat_py.gpu.compile_cache import EmissionCache
from splat_py.gpu.emission import EmittedKernel
from splat_py.gpu.kernels import Kernel, KernelCache, Pipeline, Recorder
from splat_py.gpu.limits import Limits
from splat_py.gpu.metal_parameters import MetalParameters

# Kernels load vectors of four floats.
_ALIGNMENT = 16
_DTYPES = {torch.float32: np.float32, torch.int32: np.int32, torch.uint32: np.uint32, torch.uint8: np.uint8}
# Metal's limit on a kernel's buffers.
_MOST_BUFFERS = 31


class TensorBuffer:
    """A buffer over bytes of a torch storage, which it keeps alive, with the methods of SlangPy's that `Array` calls."""

    def __init__(self, storage: torch.UntypedStorage, offset: int, size: int) -> None:
        self.storage = storage
        self.offset = offset
        self.size = size

    def view(self, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
        """A tensor over the memory from its beginning. autograd does not see a view, so it may be changed in place."""
        tensor = torch.empty(0, dtype=dtype, device=self.storage.device)
        return tensor.set_(self.storage, self.offset // dtype.itemsize, shape)  # type: ignore[call-overload]

    @cached_property
    def bytes(self) -> torch.Tensor:
        """The whole buffer."""
        return self.view(torch.uint8, [self.size])

    def to_torch(self, data_type: spy.DataType, shape: list[int]) -> torch.Tensor:
        return self.view(getattr(torch, data_type.name), shape)

    def to_numpy(self) -> NDArray[np.uint8]:
        """A copy, made after all submitted commands."""
        return np.asarray(self.bytes.to("cpu", copy=True).numpy())

    def copy_from_numpy(self, values: NDArray[Any]) -> None:
        flat = values.reshape(-1).view(np.uint8)
        source = torch.from_numpy(flat if flat.flags.writeable else flat.copy())
        self.bytes[: flat.size].copy_(source)


class TensorMemory(Memory):
    """Buffers from torch's allocator, which reuses freed ones itself, after their commands have finished."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(cast(spy.Device, None), Bridge.MPS)
        # Metal's buffers may hold more, but kernels number elements with 32 bits.
        self.limits = Limits(buffer_bytes=4 << 32)
        self._torch_device = device

    def array(self, values: NDArray | torch.Tensor) -> Array:
        if isinstance(values, torch.Tensor) and self._is_ours(values) and values.is_contiguous():
            offset = int(values.storage_offset()) * values.element_size()
            if offset % _ALIGNMENT == 0:
                return self._over(values, offset, tuple(values.shape), _DTYPES[values.dtype])
        return super().array(values)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        return self.array(torch.zeros(shape, device=self._torch_device))

    def arange(self, count: int) -> Array:
        return self.array(torch.arange(count, dtype=torch.int32, device=self._torch_device).view(torch.uint32))

    def owner_of(self, tensor: torch.Tensor) -> Array | None:
        """The whole storage of a tensor as a flat array of its type; None if the array cannot alias it."""
        if not self._is_ours(tensor):
            return None
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        return self._over(tensor, 0, (count,), _DTYPES[tensor.dtype])

    def give_back(self, buffer: spy.Buffer) -> None:
        """Only count: torch frees memory with its last tensor."""
        self.live_bytes -= buffer.size

    def _allocate(self, size: int) -> spy.Buffer:
        storage = torch.empty(size, dtype=torch.uint8, device=self._torch_device).untyped_storage()
        return cast(spy.Buffer, TensorBuffer(storage, 0, size))

    def _is_ours(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._torch_device.type and tensor.dtype in _DTYPES and tensor.numel() > 0

    def _over(self, tensor: torch.Tensor, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        storage = tensor.untyped_storage()
        buffer = TensorBuffer(storage, offset, storage.nbytes() - offset)
        return Array(self, shape, np.dtype(dtype), cast(spy.Buffer, buffer))


class TorchKernels(KernelCache):
    """A `KernelCache` of `TorchProgram`s."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(cast(spy.Device, None))
        self._emitted = EmissionCache()
        # Placeholder for unset buffers: torch numbers arguments without gaps.
        self._nothing = torch.zeros(16, dtype=torch.uint8, device=device)

    def _is_fast(self, module: str, entry: str, constants: dict[str, Any]) -> bool:
        return False

    def _open_session(self, fast: bool) -> spy.SlangSession:
        return cast(spy.SlangSession, None)

    def _compile(self, session: spy.SlangSession, module: str, entry: str, constants: dict[str, Any]) -> Kernel:
        program = TorchProgram(f"{module}.{entry}", entry, self._emitted.get(module, entry, constants), self._nothing)
        return Kernel(module, entry, cast(Pipeline, program), Bindings.of(module, entry, constants))


class TorchProgram:
    """One compiled entry point; SplatError if torch rejects the source, or cannot bind the kernel's buffers."""

    def __init__(self, name: str, entry: str, kernel: EmittedKernel, nothing: torch.Tensor) -> None:
        self._name = name
        self._threads = kernel.threads
        self._parameters = MetalParameters.of(kernel.source, entry)
        self._nothing: Any = nothing
        self._count = 1 + max(self._parameters.buffers.values(), default=-1)
        if any(block.pointers for block in self._parameters.blocks.values()) or self._count > _MOST_BUFFERS:
            raise SplatError(f"{name} reads buffers by address, or more than {_MOST_BUFFERS}, which torch cannot bind")
        try:
            # torch needs an ASCII string.
            self._kernel = getattr(torch.mps.compile_shader(kernel.source.encode("ascii").decode()), entry)
        except (RuntimeError, SyntaxError, UnicodeError) as error:
            lines = str(error).split("\n")
            reason = next((line for line in lines if "error:" in line), lines[0]).strip()
            raise SplatError(f"torch cannot compile the Metal source of {name}: {reason}") from error

    def arguments(self, uniforms: Mapping[str, Uniform], buffers: Mapping[str, Array]) -> list[Any]:
        """torch's arguments for Metal's buffers, by position; a placeholder for each missing or unset one."""
        found = [self._nothing] * self._count
        for name, number in self._parameters.buffers.items():
            if name in self._parameters.blocks:
                block = self._parameters.blocks[name].pack(uniforms)
                # A list of integers is copied into the command, eight bytes each.
                block += bytes(-len(block) % 8)
                found[number] = list(struct.unpack(f"<{len(block) // 8}q", block))
            elif name in buffers:
                found[number] = cast(TensorBuffer, buffers[name].buffer).bytes
        return found

    def dispatch(self, groups: tuple[int, int, int], arguments: list[Any]) -> None:
        """Dispatch on torch's stream. Thread counts fill whole workgroups, as torch would cut the last one short."""
        threads = [n * size for n, size in zip(groups, self._threads, strict=True)]
        try:
            self._kernel(*arguments, threads=threads, group_size=list(self._threads))
        except (RuntimeError, ValueError) as error:
            raise SplatError(f"torch cannot dispatch {self._name}: {str(error).split(chr(10))[0]}") from error


class TorchCommands(list[Callable[[], Any]]):
    """A replacement for SlangPy's command encoder: calls to make at submission."""

    def copy_buffer(self, target: TensorBuffer, at: int, source: TensorBuffer, begin: int, size: int) -> None:
        self.append(partial(target.bytes[at : at + size].copy_, source.bytes[begin : begin + size]))

    def finish(self) -> list[Callable[[], Any]]:
        return self


class TorchQueue:
    """A replacement for SlangPy's device in `Device`, `Recorder` and `Profile`, without features and timestamps."""

    features: tuple[spy.Feature, ...] = ()
    info = SimpleNamespace(limits=SimpleNamespace(), timestamp_frequency=0.0)

    def __init__(self) -> None:
        # The number of the last submission, and the events of those that may still be running.
        self._submitted = 0
        self._running: dict[int, torch.mps.Event] = {}

    def has_feature(self, feature: spy.Feature) -> bool:
        return False

    def create_command_encoder(self) -> TorchCommands:
        return TorchCommands()

    def submit_command_buffer(self, commands: list[Callable[[], Any]]) -> int:
        """Run the commands, and return the submission's number."""
        for command in commands:
            command()
        # The commands hold tensors.
        commands.clear()
        event = torch.mps.Event()
        # This also makes torch commit its commands: the GPU begins while the host goes on.
        event.record()
        self._submitted += 1
        self._running[self._submitted] = event
        return self._submitted

    def wait_for_submit(self, submission: int) -> None:
        event = self._running.get(submission)
        if event is not None:
            event.synchronize()
        # Earlier submissions are done, too.
        for number in [number for number in self._running if number <= submission]:
            self._running.pop(number, None)

    def wait_for_idle(self) -> None:
        torch.mps.synchronize()
        self._running.clear()


class TorchRecorder(Recorder):
    """A recorder for dispatches of `TorchProgram`s."""

    def _record(
        self, kernel: Kernel, groups: tuple[int, int, int], uniforms: Mapping[str, Uniform], buffers: dict[str, Array]
    ) -> None:
        program = cast(TorchProgram, kernel.pipeline)
        cast(TorchCommands, self._encoder).append(partial(program.dispatch, groups, program.arguments(uniforms, buffers)))

    def clear(self, array: Array) -> None:
        """Fill only the array with zeros: more of a caller's tensor may follow it."""
        self._arrays.append(array)
        memory = cast(TensorBuffer, array.buffer).bytes[: array.nbytes]
        cast(TorchCommands, self._encoder).append(memory.zero_)
