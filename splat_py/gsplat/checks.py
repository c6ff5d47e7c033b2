"""Checks of what the functions of this package are given: each ends in one sentence that names the argument."""

from __future__ import annotations

from torch import Tensor

from splat_py.errors import SplatError


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


def check_camera_model(camera_model: str) -> None:
    """Raise NotImplementedError for gsplat's other camera models, SplatError for what is none."""
    if camera_model in ("ftheta", "lidar"):
        raise NotImplementedError(f"camera_model={camera_model!r} is not supported; use pinhole, ortho or fisheye")
    if camera_model not in ("pinhole", "ortho", "fisheye"):
        raise SplatError(f"camera_model is {camera_model!r}; use pinhole, ortho or fisheye")
