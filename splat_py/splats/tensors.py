"""Between torch tensors and the arrays of a device."""

from __future__ import annotations

import torch
from torch import Tensor

from splat_py.gpu.arrays import Array, Memory
from splat_py.splats.data import StridedView


def as_tensor(array: Array, like: Tensor) -> Tensor:
    """An array as a tensor on the torch device of another."""
    return array.tensor().to(like.device)


def zeros_or(memory: Memory, gradient: Tensor | None, shape: tuple[int, ...]) -> Array:
    """A gradient, or zeros where there is none."""
    return memory.array(torch.zeros(shape) if gradient is None else gradient.contiguous())


def strided_view(memory: Memory, gradient: Tensor | None, shape: tuple[int, ...]) -> StridedView:
    """A gradient as rows of shape[-1] floats: where it lies, if that is in rows of one of our arrays, else a copy."""
    width = shape[-1]
    if gradient is None:
        return StridedView(zeros_or(memory, None, shape), width)
    gradient = gradient.reshape(shape) if gradient.dim() == len(shape) else gradient[..., None]
    owner = memory.owner_of(gradient)
    stride = int(gradient.stride(1)) if shape[1] > 1 else width
    regular = gradient.stride(-1) == 1 or width == 1
    regular &= shape[0] == 1 or gradient.stride(0) == shape[1] * stride
    if owner is None or not regular:
        return StridedView(memory.array(gradient.contiguous()), width)
    return StridedView(owner, stride, int(gradient.storage_offset()))
