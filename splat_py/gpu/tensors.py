"""Checks of torch tensors, and conversions between them and device arrays."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.arrays import Array, Bridge, Memory


def check_tensors(tensors: Mapping[str, Tensor | None], halves: Collection[str] = (), needed: Collection[str] = ()) -> None:
    """Raise SplatError unless those in `needed` are given, and all given tensors are float32, or float16 if named in `halves`,
    on one torch device."""
    for name in needed:
        if tensors[name] is None:
            raise SplatError(f"{name} is None; give a torch tensor")
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first = next(iter(given))
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise SplatError(f"{name} is a {type(tensor).__name__}; give a torch tensor")
        if tensor.is_meta:
            raise SplatError(f"{name} is on the meta device, where tensors have no numbers; create it on another one")
        if tensor.dtype != torch.float32 and not (tensor.dtype == torch.float16 and name in halves):
            raise SplatError(f"{name} has dtype {tensor.dtype}; convert it to torch.float32")
        if tensor.device != given[first].device:
            raise SplatError(f"{name} is on {tensor.device} and {first} on {given[first].device}; move them to one device")


def check_shape(name: str, tensor: Tensor, *shapes: tuple[int | str, ...]) -> None:
    """Raise SplatError unless a tensor has one of these shapes; a letter stands for any length."""
    for shape in shapes:
        if tensor.dim() == len(shape) and all(
            isinstance(want, str) or have == want for have, want in zip(tensor.shape, shape, strict=True)
        ):
            return
    wanted = " or ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)
    raise SplatError(f"{name} has shape {list(tensor.shape)}; expected {wanted}")


def as_tensor(array: Array, like: Tensor) -> Tensor:
    """Return an array as a tensor on the torch device of `like`."""
    tensor, device = array.tensor(), like.device
    if tensor.device == device:
        return tensor
    array.memory.flush()
    return tensor.to(device)


def is_shared(array: Array, like: Tensor) -> bool:
    """True if `as_tensor` returns a view of the array, not a copy of what it holds now."""
    return array.memory.bridge is not Bridge.COPY and array.tensor().device == like.device


def words_of(halves: Tensor) -> Tensor:
    """View float16 numbers as flat float32: arrays hold words of 32 bits, and the last word may be half full."""
    flat = halves.detach().reshape(-1)
    if flat.numel() % 2 or flat.storage_offset() % 2:
        flat = torch.cat([flat, flat.new_zeros(flat.numel() % 2)])
    return flat.view(torch.float32)


def side_by_side(memory: Memory, count: int, *gradients: tuple[Tensor | None, int]) -> tuple[Array, int, int]:
    """Return gradients of `count` splats, with their widths, as columns of one array: the array, its row length, first column.

    Gradients that already lie side by side in rows of one device array are not copied; None counts as zeros.
    """
    first, width = gradients[0]
    owner = None if first is None else memory.owner_of(first)
    if owner is not None and first is not None:
        stride, at = int(first.reshape(count, width).stride(0)) if count > 1 else owner.size, int(first.storage_offset())
        column = at
        for gradient, width in gradients:
            rows = None if gradient is None else gradient.reshape(count, width)
            is_next = rows is not None and memory.owner_of(rows) is owner and rows.storage_offset() == column
            if rows is None or not is_next or (count > 1 and rows.stride(0) != stride) or (width > 1 and rows.stride(1) != 1):
                break
            column += width
        else:
            return owner, stride, at
    like = next((gradient for gradient, _ in gradients if gradient is not None), torch.empty(0))
    if like.numel():
        memory.flush()
    parts = [like.new_zeros(count, width) if g is None else g.reshape(count, width) for g, width in gradients]
    rows = (torch.cat(parts, 1) if len(parts) > 1 else parts[0]).contiguous()
    return memory.array(rows), rows.shape[1], 0


def sparse_rows(dense: Tensor, ids: Tensor) -> Tensor:
    """Return rows `ids` of a gradient [..., N, k] as a sparse tensor; `ids` count through all leading dimensions."""
    rows = dense.flatten(0, -2)[ids]
    indices = torch.stack(torch.unravel_index(ids, dense.shape[:-1]))
    return torch.sparse_coo_tensor(indices, rows, dense.shape, check_invariants=False, is_coalesced=True)
