"""Memory that is torch's: arrays are MPS tensors, and MPS tensors are arrays, without a copy in either direction."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import numpy as np
import slangpy as spy
import torch
from numpy.typing import DTypeLike, NDArray

from splat_py.gpu.arrays import Array, Bridge, Memory, bucket
from splat_py.gpu.limits import Limits

# Kernels load vectors of four floats.
_ALIGNMENT = 16
_DTYPES = {torch.float32: np.float32, torch.int32: np.int32, torch.uint32: np.uint32, torch.uint8: np.uint8}


class TensorBuffer:
    """What `Array` asks of a buffer, over bytes of a torch storage, which it keeps alive."""

    def __init__(self, storage: torch.UntypedStorage, offset: int, size: int) -> None:
        self.storage = storage
        self.offset = offset
        self.size = size

    def view(self, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
        """A tensor over the memory, from its beginning. To autograd it is no view: it may be changed in place."""
        tensor = torch.empty(0, dtype=dtype, device=self.storage.device)
        return tensor.set_(self.storage, self.offset // dtype.itemsize, shape)  # type: ignore[call-overload]

    @cached_property
    def bytes(self) -> torch.Tensor:
        """All of it."""
        return self.view(torch.uint8, [self.size])

    def to_torch(self, data_type: spy.DataType, shape: list[int]) -> torch.Tensor:
        """As SlangPy's buffers have it."""
        return self.view(getattr(torch, data_type.name), shape)

    def to_numpy(self) -> NDArray[np.uint8]:
        """A copy, once all commands that were sent are done."""
        return np.asarray(self.bytes.to("cpu", copy=True).numpy())

    def copy_from_numpy(self, values: NDArray[Any]) -> None:
        """Overwrite the beginning."""
        flat = values.reshape(-1).view(np.uint8)
        source = torch.from_numpy(flat if flat.flags.writeable else flat.copy())
        self.bytes[: flat.size].copy_(source)


def tensor_buffer(array: Array) -> TensorBuffer:
    """The buffer of an array of `TensorMemory`."""
    return cast(TensorBuffer, array.buffer)


class TensorMemory(Memory):
    """Buffers from torch's allocator, which keeps those that are freed itself, and not before commands have finished.

    Args:
        device: of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(cast(spy.Device, None), Bridge.MPS)
        # Metal's buffers hold more; kernels number elements with 32 bits.
        self.limits = Limits(buffer_bytes=4 << 32)
        self._torch_device = device

    def array(self, values: NDArray | torch.Tensor) -> Array:
        """An array holding `values`: the very memory of a tensor of this device, else a copy."""
        if isinstance(values, torch.Tensor) and self._is_ours(values) and values.is_contiguous():
            offset = int(values.storage_offset()) * values.element_size()
            if offset % _ALIGNMENT == 0:
                return self._over(values, offset, tuple(values.shape), _DTYPES[values.dtype])
        return super().array(values)

    def owner_of(self, tensor: torch.Tensor) -> Array | None:
        """All of the memory that a tensor looks at, as a flat array of its type."""
        if not self._is_ours(tensor):
            return None
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        return self._over(tensor, 0, (count,), _DTYPES[tensor.dtype])

    def take(self, nbytes: int) -> spy.Buffer:
        """A buffer of at least `nbytes`."""
        buffer = self._create(bucket(nbytes))
        self.live_bytes += buffer.size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return buffer

    def give_back(self, buffer: spy.Buffer) -> None:
        """Only counts: torch frees memory when no tensor looks at it any more."""
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
