"""Between torch tensors and the arrays of a device."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.arrays import Array, Memory
from splat_py.splats.data import StridedView


def check_tensors(tensors: Mapping[str, Tensor | None], halves: Collection[str] = ()) -> None:
    """Raise SplatError unless all that there are are float32 tensors, or `halves` float16 ones, on one torch device."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first = next(iter(given))
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise SplatError(f"{name} is a {type(tensor).__name__}; give a torch tensor")
        if tensor.dtype != torch.float32 and not (tensor.dtype == torch.float16 and name in halves):
            raise SplatError(f"{name} has dtype {tensor.dtype}; convert it to torch.float32")
        if tensor.device != given[first].device:
            raise SplatError(f"{name} is on {tensor.device} and {first} on {given[first].device}; move them to one device")


def check_shape(name: str, tensor: Tensor, *shapes: tuple[int | str, ...]) -> None:
    """Raise SplatError unless a tensor has one of these shapes; of a side given by a letter any length will do."""
    for shape in shapes:
        if tensor.dim() == len(shape) and all(
            isinstance(want, str) or have == want for have, want in zip(tensor.shape, shape, strict=True)
        ):
            return
    wanted = " or ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)
    raise SplatError(f"{name} has shape {list(tensor.shape)}; expected {wanted}")


def as_tensor(array: Array, like: Tensor) -> Tensor:
    """An array as a tensor on the torch device of another."""
    return array.tensor().to(like.device)


def words_of(halves: Tensor) -> Tensor:
    """The memory of float16 numbers as float32, flat: arrays hold words of 32 bits, of which the last may be half full."""
    flat = halves.detach().reshape(-1)
    if flat.numel() % 2 or flat.storage_offset() % 2:
        flat = torch.cat([flat, flat.new_zeros(flat.numel() % 2)])
    return flat.view(torch.float32)


def zeros_or(memory: Memory, gradient: Tensor | None, shape: tuple[int, ...]) -> Array:
    """A gradient, or zeros where there is none."""
    return memory.array(torch.zeros(shape) if gradient is None else gradient.contiguous())


def strided_view(memory: Memory, gradient: Tensor | None, count: int, width: int) -> StridedView:
    """A gradient as `count` rows of `width` floats: where it lies, if that is in rows of one of our arrays, else a copy."""
    if gradient is None:
        return StridedView(zeros_or(memory, None, (count, width)), width)
    rows = gradient.reshape(count, width)
    owner = memory.owner_of(rows)
    if owner is None or not (width == 1 or rows.stride(1) == 1):
        return StridedView(memory.array(rows.contiguous()), width)
    return StridedView(owner, int(rows.stride(0)) if count > 1 else width, int(rows.storage_offset()))


def sparse_rows(dense: Tensor, ids: Tensor) -> Tensor:
    """Of a gradient [..., N, k], the rows `ids`, counted through all leading dimensions, as a sparse tensor."""
    rows = dense.flatten(0, -2)[ids]
    indices = torch.stack(torch.unravel_index(ids, dense.shape[:-1]))
    return torch.sparse_coo_tensor(indices, rows, dense.shape, check_invariants=False, is_coalesced=True)
