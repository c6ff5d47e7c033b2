"""A stand-in for `torch.mps` without a Mac: `compile_shader`, events and `synchronize`, on the CPU, as in torch's sources or
stricter.

Tensors on the CPU stand for MPS tensors, and a dispatch runs at once. That is the order in which torch's stream runs commands,
including torch's own. The stand-in relies on these parts of pytorch/pytorch, 2.7 to 2.13:

- aten/src/ATen/native/mps/OperationUtils.mm: MetalKernelFunction::runCommandBlock uses the stream's serial queue, so any
  thread may dispatch; ::startEncoding uses its one encoder; ::dispatch is dispatchThreads:threadsPerThreadgroup:, which counts
  threads. MetalShaderLibrary::compileLibrary compiles at once, as Metal 3.1, 3.2 or 4.0 by macOS, with MTLMathModeSafe
  and precise functions unless PYTORCH_MPS_FAST_MATH is set, from a string of ASCII, and throws c10::SyntaxError.
- aten/src/ATen/mps/MPSStream.mm: commandEncoder() is [commandBuffer computeCommandEncoder], which is serial: each dispatch sees
  what those before it wrote. copy() and fill() end it and encode into the same command buffer; copies to the host wait.
- aten/src/ATen/mps/MPSHooks.mm: recordEvent passes syncEvent, so MPSEvent::recordLocked commits the encoded commands.
- torch/csrc/mps/Module.cpp: how arguments are distinguished; the code below names the functions.
"""

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any

import torch

from splat_py.gpu.metal_parameters import MetalParameters
from tests.emulation.compiler import Compiler, KernelError
from tests.emulation.program import Buffer, Schedule, guarded
from tests.metal.program import Program

# Metal Feature Set Tables: buffers of a kernel, bytes of `setBytes`, threads of a threadgroup.
_MOST_BUFFERS, _MOST_BYTES, _MOST_THREADS = 31, 4096, 1024
# torch/csrc/mps/Module.cpp, OptionalArgCaster::setValue.
_CASTS = {"int32": "i", "int16": "h", "int8": "b", "uint8": "B", "fp16": "e"}


class Library:
    """The result of `compile_shader`: kernels are its attributes, and the source is compiled at once.

    torch/csrc/mps/Module.cpp, initModule; aten/src/ATen/native/mps/MetalShaderLibrary.h, DynamicMetalShaderLibrary.
    """

    def __init__(self, mps: "TorchMps", source: str) -> None:
        # OperationUtils.mm, MetalShaderLibrary::compileLibrary: the string is made with NSASCIIStringEncoding.
        source.encode("ascii")
        self._mps = mps
        self._source = source
        names = [line.split("void ", 1)[1].split("(")[0] for line in source.split("\n") if line.startswith("[[kernel]]")]
        self._kernels = {name: KernelFunction(mps, source, name) for name in names}

    def __getattr__(self, name: str) -> "KernelFunction":
        kernel = self._kernels.get(name)
        if kernel is None:
            # MetalShaderLibrary::getLibraryPipelineState.
            raise RuntimeError(f"Failed to create function state object for: {name}")
        return kernel


class KernelFunction:
    """MetalKernelFunction's `__call__` (torch/csrc/mps/Module.cpp, initModule)."""

    def __init__(self, mps: "TorchMps", source: str, entry: str) -> None:
        self._mps = mps
        self._source = source
        self._entry = entry
        self._parameters = MetalParameters.of(source, entry)
        self._in_device_memory = {p.number for p in self._parameters.parameters if "device*" in p.type}
        self._programs: dict[tuple[int, ...], Program] = {}
        try:
            self._program((1, 1, 1))
        except KernelError as error:
            # compileLibrary throws c10::SyntaxError, which Python sees as SyntaxError.
            raise SyntaxError(f"program_source:1:1: error: {error}") from error

    def __call__(
        self,
        *args: Any,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | dict[int, str] | None = None,
    ) -> None:
        if threads is None or group_size is None:
            raise RuntimeError("Number of threads is undefined, of which torch would take those of the first tensor")
        sizes, group = _axes(threads), _axes(group_size)
        if len(sizes) != len(group):
            raise RuntimeError("Expected threads->size() == group_size->size() to be true, but got false.")
        sizes, group = sizes + (1,) * (3 - len(sizes)), group + (1,) * (3 - len(group))
        # OperationUtils.mm, MetalKernelFunction::dispatch.
        if math.prod(group) > _MOST_THREADS:
            raise ValueError(f"Threadgroup size exceeds {_MOST_THREADS} limit")
        # dispatchThreads:threadsPerThreadgroup: cuts the last threadgroup of an axis short.
        if any(n % size for n, size in zip(sizes, group, strict=True)) or 0 in sizes:
            raise KernelError(f"{self._entry}: {sizes} threads in groups of {group}: our kernels need whole groups")
        x, y, z = (n // size for n, size in zip(sizes, group, strict=True))
        self._run((x, y, z), group, self._bound(args, arg_casts))

    def _run(self, groups: tuple[int, int, int], group: tuple[int, ...], bound: list[torch.Tensor | bytes]) -> None:
        # Guarded copies: of the bytes that setBytes copies at encoding, and of tensors, one copy for all that share memory.
        shared: dict[tuple[int, int], tuple[Buffer, torch.Tensor]] = {}
        own: list[Buffer] = []
        runtime = self._mps.compiler.runtime
        buffers = []
        try:
            for i, value in enumerate(bound):
                if isinstance(value, bytes):
                    own.append(guarded(runtime, f"argument {i}", value))
                    buffers.append(own[-1])
                    continue
                memory = _memory_from(value)
                key = value.untyped_storage().data_ptr(), memory.data_ptr()
                if key not in shared:
                    if any(storage == key[0] for storage, _ in shared):
                        raise KernelError(f"{self._entry}: argument {i} overlaps another, and begins elsewhere")
                    shared[key] = guarded(runtime, f"argument {i}", bytes(memory.numpy())), memory
                buffers.append(shared[key][0])
            self._program(group).run_bound(groups, buffers, self._mps.schedule)
            for buffer, memory in shared.values():
                ctypes.memmove(memory.data_ptr(), buffer.address, buffer.nbytes)
        finally:
            for buffer in (*own, *(buffer for buffer, _ in shared.values())):
                runtime.guarded_free(buffer.address, buffer.nbytes)
        self._mps.dispatches += 1

    def _bound(self, args: tuple[Any, ...], arg_casts: str | dict[int, str] | None) -> list[torch.Tensor | bytes]:
        """Arguments by position, which is Metal's number (initModule: `self.setArg(idx, t)`)."""
        needed = {number: name for name, number in self._parameters.buffers.items()}
        if len(args) > _MOST_BUFFERS or len(args) != 1 + max(needed, default=-1):
            # Stricter than torch, which would leave the others as the previous kernel set them.
            raise KernelError(f"{self._entry} takes buffers {sorted(needed)}, and got {len(args)} arguments")
        bound: list[torch.Tensor | bytes] = []
        for i, value in enumerate(args):
            cast = arg_casts.get(i, "") if isinstance(arg_casts, dict) else arg_casts or ""
            argument = self._tensor(value, i) if isinstance(value, torch.Tensor) else _bytes(value, cast)
            block = self._parameters.blocks.get(needed.get(i, ""))
            if block and (not isinstance(argument, bytes) or len(argument) - block.size not in range(8)):
                raise KernelError(f"{self._entry}: the uniform block has {block.size} bytes, and {value!r} are others")
            if i in self._in_device_memory and isinstance(argument, bytes):
                raise KernelError(f"{self._entry}: {needed[i]} is in device memory, and {value!r} is not")
            bound.append(argument)
        return bound

    def _tensor(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """Check a tensor. OperationUtils.h, mtl_setBuffer, only passes storage, offset and index:
        [encoder setBuffer:storage offset:storage_offset * element_size atIndex:idx]. Strides are lost."""
        if tensor.device.type != "cpu" or tensor.numel() == 0 or not tensor.is_contiguous():
            raise KernelError(f"{self._entry}: argument {number} is no contiguous MPS tensor with something in it")
        if int(tensor.storage_offset()) * tensor.element_size() % 16:
            raise KernelError(f"{self._entry}: argument {number} is not aligned to 16 bytes, which kernels load at once")
        return tensor

    def _program(self, group: tuple[int, ...]) -> Program:
        if group not in self._programs:
            x, y, z = group
            self._programs[group] = Program(self._mps.compiler, self._source, self._entry, (x, y, z))
        return self._programs[group]


class TorchMps:
    """The part of `torch.mps` that the library uses.

    Args:
        compiler: the compiler of the tests' session.
    """

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.schedule = Schedule()
        # Number of dispatches that have run.
        self.dispatches = 0
        self.synchronised = 0

    def compile_shader(self, source: str) -> Library:
        """torch/mps/__init__.py, compile_shader."""
        return Library(self, source)

    def synchronize(self) -> None:
        self.synchronised += 1

    def event(self) -> "Event":
        """torch/mps/event.py."""
        return Event()


class Event:
    """One mark in the stream. MPSEvent.mm: recording it commits the encoded commands (recordLocked, SyncType::COMMIT)."""

    def __init__(self) -> None:
        self._recorded = False

    def record(self) -> None:
        self._recorded = True

    def synchronize(self) -> None:
        if not self._recorded:
            raise KernelError("an event is waited for that was never recorded")


def _memory_from(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage from its first element on: a kernel does not know where it ends."""
    storage, offset = tensor.untyped_storage(), int(tensor.storage_offset()) * tensor.element_size()
    return torch.empty(0, dtype=torch.uint8).set_(storage, offset, [storage.nbytes() - offset])  # type: ignore[call-overload]


def _axes(value: int | Sequence[int]) -> tuple[int, ...]:
    """Module.cpp, optional_vec_from_pyobject: one to three axes."""
    axes = (value,) if isinstance(value, int) else tuple(value)
    if not 0 < len(axes) < 4:
        raise RuntimeError("Expected vec.size() > 0 && vec.size() < 4 to be true, but got false.")
    return axes


def _bytes(value: Any, cast: str) -> bytes:
    """Module.cpp, OptionalArgCaster::setValue: integers are int64_t and other numbers float unless a cast is named; a list's
    first element decides for all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise RuntimeError("Empty list/tuple can not be an argument to metal kernel")
    if isinstance(values[0], int):
        if not all(-(1 << 63) <= number < 1 << 63 for number in values):
            raise RuntimeError("Unable to cast Python instance to C++ type int64_t")
        kind = _CASTS[cast] if cast else "q"
    elif isinstance(values[0], float):
        kind = _CASTS[cast] if cast else "f"
    else:
        raise RuntimeError(f"Unsupported argument type {type(value).__name__}")
    contents = struct.pack(f"<{len(values)}{kind}", *values)
    if len(contents) > _MOST_BYTES:
        raise KernelError(f"setBytes takes {_MOST_BYTES} bytes, not {len(contents)}")
    return contents
