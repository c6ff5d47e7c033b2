"""Checks of what the functions of this package are given: each ends in one sentence that names the argument."""

import math

from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.device import Device, Operator, device_for
from splat_py.gpu.tensors import check_shape


def leading(name: str, tensor: Tensor, *last: int | str) -> tuple[int, ...]:
    """The dimensions of a tensor before its last ones, which must be as given."""
    count = len(last)
    tail = tuple(tensor.shape[max(tensor.dim() - count, 0) :])
    if len(tail) < count or any(isinstance(want, int) and have != want for have, want in zip(tail, last, strict=True)):
        raise SplatError(f"{name} has shape {list(tensor.shape)}; expected [..., {', '.join(map(str, last))}]")
    return tuple(tensor.shape[: tensor.dim() - count])


def check_camera_model(camera_model: str) -> None:
    """Raise NotImplementedError for gsplat's other camera models, SplatError for what is none."""
    if camera_model in ("ftheta", "lidar"):
        raise NotImplementedError(f"camera_model={camera_model!r} is not supported; use pinhole, ortho or fisheye")
    if camera_model not in ("pinhole", "ortho", "fisheye"):
        raise SplatError(f"camera_model is {camera_model!r}; use pinhole, ortho or fisheye")


def check_tiles(isect_offsets: Tensor, images: tuple[int, ...], size: tuple[int, int], tile_size: int) -> None:
    """Raise SplatError unless `isect_offsets` has a number for each tile of these images, and tiles cover them."""
    check_shape("isect_offsets", isect_offsets, (*images, "tile_height", "tile_width"), (math.prod(images), "rows", "columns"))
    rows, columns = isect_offsets.shape[-2:]
    if columns * tile_size < size[0] or rows * tile_size < size[1]:
        raise SplatError(
            f"isect_offsets has {columns} × {rows} tiles of {tile_size} pixels, which do not cover {size[0]} × {size[1]} pixels"
        )


def device_to_differentiate(tensor: Tensor) -> Device:
    """The device for a tensor. Raises SplatError if it does not render, or not backwards."""
    device = device_for(tensor)
    device.require(Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    return device
