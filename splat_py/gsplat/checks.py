"""Checks of what the functions of this package are given: each ends in one sentence that names the argument."""

from __future__ import annotations

import torch
from torch import Tensor

from splat_py.errors import SplatError


def check_shape(name: str, tensor: Tensor, *shapes: tuple[int | str, ...]) -> None:
    """Raise SplatError unless a tensor has one of these shapes; of a side given by a letter any length will do."""
    for shape in shapes:
        if tensor.dim() == len(shape) and all(
            isinstance(want, str) or have == want for have, want in zip(tensor.shape, shape, strict=True)
        ):
            return
    wanted = " or ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)
    raise SplatError(f"{name} has shape {list(tensor.shape)}; expected {wanted}")


def leading(name: str, tensor: Tensor, *last: int | str) -> tuple[int, ...]:
    """The dimensions of a tensor before its last ones, which must be as given.

    Raises:
        SplatError: they are not.
    """
    count = len(last)
    tail = tuple(tensor.shape[max(tensor.dim() - count, 0) :])
    if len(tail) < count or any(isinstance(want, int) and have != want for have, want in zip(tail, last, strict=True)):
        raise SplatError(f"{name} has shape {list(tensor.shape)}; expected [..., {', '.join(map(str, last))}]")
    return tuple(tensor.shape[: tensor.dim() - count])


def check_float32(**tensors: Tensor | None) -> None:
    """Raise SplatError unless those that are given are float32, all on one torch device."""
    first = next((name for name, tensor in tensors.items() if tensor is not None), "")
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise SplatError(f"{name} is a {type(tensor).__name__}; give a torch tensor")
        if tensor.dtype != torch.float32:
            raise SplatError(f"{name} has dtype {tensor.dtype}; convert it to torch.float32")
        device = tensors[first].device  # type: ignore[union-attr]
        if tensor.device != device:
            raise SplatError(f"{name} is on {tensor.device} and {first} on {device}; move them to one device")


def check_camera_model(camera_model: str) -> None:
    """Raise NotImplementedError for gsplat's other camera models, SplatError for what is none."""
    if camera_model in ("ftheta", "lidar"):
        raise NotImplementedError(f"camera_model={camera_model!r} is not supported; use pinhole, ortho or fisheye")
    if camera_model not in ("pinhole", "ortho", "fisheye"):
        raise SplatError(f"camera_model is {camera_model!r}; use pinhole, ortho or fisheye")
