"""Arrays in device memory, which NumPy and torch share, or copy if sharing is impossible.

On software Vulkan a device address is a host address, so host arrays and tensors alias device memory. On CUDA torch shares
the pointer. If torch itself dispatches the kernels (MPS), arrays are its tensors. Otherwise (SlangPy's Metal, Vulkan on a GPU)
data is copied.
"""

import math
import weakref
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np
import psutil
import slangpy as spy
import torch
from numpy.typing import DTypeLike, NDArray

from splat_py.base.errors import SplatError
from splat_py.gpu.limits import Limits

_USAGE = (
    spy.BufferUsage.unordered_access
    | spy.BufferUsage.shader_resource
    | spy.BufferUsage.copy_source
    | spy.BufferUsage.copy_destination
)
_MEBIBYTE = 1 << 20
# Freed buffers kept for reuse. On software Vulkan the first touch of fresh memory costs 12 ms for 20 MB, of reused memory 1 ms.
MOST_FREE_BYTES = 512 * _MEBIBYTE


class Bridge(Enum):
    """The way in which host and device share memory."""

    ALIAS = "device memory is host memory"
    CUDA = "torch tensors on the same GPU"
    MPS = "torch's own MPS tensors"
    COPY = "copies"


class Memory:
    """Buffers of one device, reused by size."""

    def __init__(self, device: spy.Device, bridge: Bridge) -> None:
        self.bridge = bridge
        self.limits = Limits.of(device) if device else Limits()
        self.live_bytes = 0
        self.peak_bytes = 0
        # Submits commands that are recorded but do not run yet (`Device.flush`).
        self.flush: Callable[[], None] = lambda: None
        # Lets go of buffers that are to be freed (`KernelCache.forget_buffers`).
        self.forget_buffers: Callable[[], None] = lambda: None
        self._device = device
        # Heaps, so that renders of the same sizes have the same buffers, which kernels need not bind again (`Pipeline`).
        self._free: dict[int, list[tuple[int, spy.Buffer]]] = {}
        self._free_bytes = 0
        # Aliased arrays by address: a tensor that was made from one finds its buffer again.
        self.aliased: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()

    @property
    def free_bytes(self) -> float:
        """Free memory in bytes if the host knows it (`Bridge.ALIAS`); else infinity."""
        return psutil.virtual_memory().available if self.bridge is Bridge.ALIAS else math.inf

    def empty(self, shape: tuple[int, ...] | int, dtype: DTypeLike = np.float32, *, by_address: bool = False) -> "Array":
        """Allocate an array with undefined contents, with `by_address` if kernels reach it by 64-bit addresses. SplatError if
        it is larger than kernels can index, or than free memory."""
        # Products of NumPy's integers would wrap.
        sides = tuple(map(int, shape)) if isinstance(shape, tuple) else (int(shape),)
        self.limits.check_array(sides, np.dtype(dtype), by_address)
        return Array(self, sides, np.dtype(dtype))

    def array(self, values: NDArray | torch.Tensor) -> "Array":
        """Return an array holding `values`: the array itself that a tensor aliases, else a copy."""
        if isinstance(values, torch.Tensor):
            owner, shape, dtype = self.owner_of(values), tuple(values.shape), np.dtype(str(values.dtype).removeprefix("torch."))
            whole = owner is not None and values.is_contiguous() and values.storage_offset() == 0
            if owner is not None and whole and (shape, dtype) == (owner.shape, owner.dtype):
                return owner
            if owner is not None or self.bridge in (Bridge.MPS, Bridge.CUDA):
                # The tensor may be a result.
                self.flush()
            array = self.empty(shape, dtype)
        else:
            array = self.empty(values.shape, values.dtype)
        array.write(values)
        return array

    def full(self, shape: tuple[int, ...], value: float, dtype: DTypeLike = np.float32) -> "Array":
        return self.array(np.full(shape, value, dtype))

    def zeros(self, shape: tuple[int, ...]) -> "Array":
        """An array of float32 zeros."""
        return self.array(np.zeros(shape, np.float32))

    def arange(self, count: int) -> "Array":
        """An array of 0, 1, … count - 1, uint32."""
        return self.array(np.arange(count, dtype=np.uint32))

    def owner_of(self, tensor: torch.Tensor) -> "Array | None":
        """The array whose memory a tensor aliases, or None."""
        if self.bridge is not Bridge.ALIAS or tensor.device.type != "cpu" or tensor.numel() == 0:
            return None
        return self.aliased.get(tensor.untyped_storage().data_ptr())

    def take(self, nbytes: int) -> spy.Buffer:
        """Take a buffer of at least `nbytes`, from the pool or new."""
        size = bucket(nbytes)
        if self._free.get(size):
            _, buffer = heappop(self._free[size])
            self._free_bytes -= size
        else:
            buffer = self._create(size)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return buffer

    def _create(self, size: int) -> spy.Buffer:
        try:
            return self._allocate(size)
        except (RuntimeError, MemoryError):
            # Releasing the buffers kept for reuse may free enough memory.
            self._drop_free()
        try:
            return self._allocate(size)
        except (RuntimeError, MemoryError) as error:
            raise SplatError(
                f"too little memory: splat_py holds {self.live_bytes / _MEBIBYTE:.0f} MiB on the device and cannot get "
                f"{size / _MEBIBYTE:.0f} MiB more; use fewer Gaussians, smaller images (--downscale) or close other programs"
            ) from error

    def _allocate(self, size: int) -> spy.Buffer:
        if size > 64 * _MEBIBYTE and size > self.free_bytes:
            raise MemoryError
        return self._device.create_buffer(size=size, struct_size=4, usage=_USAGE)

    def give_back(self, buffer: spy.Buffer) -> None:
        """Keep a buffer that is no longer in use, to reuse it at its size."""
        size = buffer.size
        self.live_bytes -= size
        if self._free_bytes + size > MOST_FREE_BYTES:
            self._drop_free()
        if size <= MOST_FREE_BYTES:
            heappush(self._free.setdefault(size, []), (id(buffer), buffer))
            self._free_bytes += size
        else:
            self.forget_buffers()

    def _drop_free(self) -> None:
        self.forget_buffers()
        self._free.clear()
        self._free_bytes = 0


class Array:
    """A shape and a type over a device buffer: a given one or another array's, or by default one from the pool, which returns
    there with the array."""

    _is_from_pool = False

    def __init__(
        self, memory: Memory, shape: tuple[int, ...], dtype: np.dtype, given: "spy.Buffer | Array | None" = None
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize
        self.memory = memory
        self._given = given
        if given is None:
            self.buffer = memory.take(self.nbytes)
            self._is_from_pool = True
        else:
            self.buffer = given.buffer if isinstance(given, Array) else given

    def __del__(self) -> None:
        if self._is_from_pool:
            self.memory.give_back(self.buffer)

    @property
    def as_uint32(self) -> "Array":
        """The same memory as uint32: for kernels that add to floats by compare-and-swap."""
        return Array(self.memory, self.shape, np.dtype(np.uint32), self)

    # Kernels take a read-only array as its buffer, or as this buffer and its address (kernels/vectors.slang).
    elements = property(lambda self: self)

    @property
    def address(self) -> spy.uint2:
        """Two words, the lower first, where the host reads the memory (`Bridge.ALIAS`); else 0."""
        return _words_of(self.buffer.device_address if self.memory.bridge is Bridge.ALIAS else 0)

    def numpy(self) -> NDArray:
        """The contents: the device's own memory if the host shares it (`Bridge.ALIAS`), else a copy."""
        self.memory.flush()
        if self.memory.bridge is Bridge.ALIAS:
            return np.asarray(_HostView(self))
        flat = self.buffer.to_numpy().view(np.uint8)[: self.nbytes]
        return flat.view(self.dtype).reshape(self.shape)

    def tensor(self) -> torch.Tensor:
        """The contents as a torch tensor: shared if possible (`Bridge`), and then not to be read before `Device.flush`; else
        copied to the CPU."""
        if self.memory.bridge is Bridge.MPS or (self.memory.bridge is Bridge.CUDA and self.size):
            tensor = self.buffer.to_torch(getattr(spy.DataType, self.dtype.name), list(self.shape))
            if self.memory.bridge is Bridge.CUDA:
                # The buffer returns to its pool with this array, so the tensor's storage keeps the array alive.
                tensor.untyped_storage().array = self
            return tensor
        if self.memory.bridge is Bridge.ALIAS:
            self.memory.aliased[self.buffer.device_address] = self
            return torch.from_numpy(np.asarray(_HostView(self)))
        return torch.from_numpy(self.numpy())

    def write(self, values: NDArray | torch.Tensor) -> None:
        """Overwrite the contents. On an aliasing device, no running kernel may use the array."""
        if self.size == 0:
            return
        if isinstance(values, torch.Tensor):
            values = values.detach()
            is_cuda = self.memory.bridge is Bridge.CUDA and values.is_cuda
            if is_cuda or self.memory.bridge is Bridge.MPS:
                self.tensor().copy_(values.reshape(self.shape))
                if is_cuda:
                    # Kernels run on the device's own stream. On MPS they run in the order of torch's own commands.
                    torch.cuda.current_stream(values.device).synchronize()
                return
            values = values.numpy(force=True)
        if self.memory.bridge is Bridge.ALIAS:
            np.copyto(np.asarray(_HostView(self)), values.reshape(self.shape), casting="unsafe")
        else:
            self.buffer.copy_from_numpy(np.ascontiguousarray(values, dtype=self.dtype))


class _HostView:
    """Show an array's memory to NumPy, and keep the array alive while NumPy uses it."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.buffer.device_address, False),
        }


@lru_cache(4096)
def _words_of(address: int) -> spy.uint2:
    return spy.uint2(address & 0xFFFFFFFF, address >> 32)


def bucket(nbytes: int) -> int:
    """Round up to a multiple of 16, or of 1/8 of the power of two below: similar sizes share buffers, at most 1/8 is wasted."""
    step = max(16, 1 << max(nbytes.bit_length() - 4, 0))
    return max(-(-nbytes // step) * step, 16)
