"""Checks of this package's arguments; errors name the argument in one sentence."""

import math
from typing import Any

from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.device import Device, Operator, device_for
from splat_py.gpu.tensors import check_shape


class ArgumentError(SplatError, AssertionError):
    """An argument does not fit. Also a ValueError and an AssertionError; gsplat raises one or the other."""


def check_same(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raise ArgumentError unless two tensors have the same shape."""
    if tensor.shape != other.shape:
        raise ArgumentError(f"{name} has shape {list(tensor.shape)} and {other_name} {list(other.shape)}; give equal shapes")


def leading(name: str, tensor: Tensor, *last: int | str) -> tuple[int, ...]:
    """The leading dimensions of a tensor. SplatError unless its last dimensions are `last`; text allows any size."""
    count = len(last)
    tail = tuple(tensor.shape[max(tensor.dim() - count, 0) :])
    if len(tail) < count or any(isinstance(want, int) and have != want for have, want in zip(tail, last, strict=True)):
        raise ArgumentError(f"{name} has shape {list(tensor.shape)}; expected [..., {', '.join(map(str, last))}]")
    return tuple(tensor.shape[: tensor.dim() - count])


def check_camera_model(camera_model: str) -> None:
    """Raise NotImplementedError for gsplat's unsupported camera models, SplatError for unknown ones."""
    if camera_model in ("ftheta", "lidar"):
        raise NotImplementedError(f"camera_model={camera_model!r} is not supported; use pinhole, ortho or fisheye")
    if camera_model not in ("pinhole", "ortho", "fisheye"):
        raise SplatError(f"camera_model is {camera_model!r}; use pinhole, ortho or fisheye")


def refuse(function: str, **given: Any) -> None:
    """Raise NotImplementedError for an argument that is given, neither None nor False, to a function that does not support
    it."""
    for name, value in given.items():
        if value is not None and value is not False:
            shown = f"={value!r}" if isinstance(value, bool | int | float | str) else ""
            raise NotImplementedError(f"splat_py.gsplat.{function} does not support {name}{shown}; leave {name} out")


def check_tiles(isect_offsets: Tensor, images: tuple[int, ...], size: tuple[int, int], tile_size: int) -> None:
    """Raise SplatError unless `isect_offsets` has an entry for each tile of these images, and the tiles cover them."""
    check_shape("isect_offsets", isect_offsets, (*images, "tile_height", "tile_width"), (math.prod(images), "rows", "columns"))
    rows, columns = isect_offsets.shape[-2:]
    if columns * tile_size < size[0] or rows * tile_size < size[1]:
        raise SplatError(
            f"isect_offsets has {columns} × {rows} tiles of {tile_size} pixels, which do not cover {size[0]} × {size[1]} pixels"
        )


def device_to_differentiate(tensor: Tensor) -> Device:
    """The device for a tensor. SplatError if it cannot run the forward or the backward pass."""
    device = device_for(tensor)
    device.require(Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    return device
