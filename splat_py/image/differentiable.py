"""Blobs → picture for torch."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import alert_not_deterministic
from splat_py.gpu.autograd import first_derivative, keep, kept, opaque
from splat_py.gpu.device import device_for
from splat_py.image.method import Method
from splat_py.image.rasterizers import FLOATS, rasterizer_for
from splat_py.image.result import check_size

# Raw colours that are squashed to exactly 1.
_WHITE = 100.0


@opaque
def render(
    params: torch.Tensor,
    width: int,
    height: int,
    *,
    method: Method = "auto",
    background: torch.Tensor | ArrayLike = (0.0, 0.0, 0.0),
) -> torch.Tensor:
    """Draw blobs, differentiably.

    Args:
        params: [9, N] float32 raw floats, any values: rows centre x, y; variance x, y; anisotropy; red, green, blue; opacity
            (squashed by splat/blob2d.slang). Index is order of depth, 0 in front.
        width, height: of the picture, pixels; need not be multiples of anything.
        method: "tiles" or "group", of which "auto" takes the faster one, or "simple", for at most 256 blobs: see
            `splat_py.image.rasterizers`.
        background: rgb [3] from 0 to 1, behind the blobs; differentiable if it is a tensor. Any but black takes a second
            render, of how much the blobs cover.

    Returns:
        [height, width, 3] float32, 0 to 1, on the tensor's device.

    Raises:
        SplatError: wrong shape, type or size; in the backward pass, if torch is to be deterministic.
    """
    if not isinstance(params, torch.Tensor) or params.dtype != torch.float32:
        raise SplatError(f"params is {getattr(params, 'dtype', type(params).__name__)}; it must be a float32 tensor")
    if params.ndim != 2 or params.shape[0] != FLOATS or params.shape[1] == 0:
        raise SplatError(f"params has shape {list(params.shape)}; it must be [9, N] with at least one blob")
    size = check_size(width, height)
    behind = torch.as_tensor(background, dtype=torch.float32, device=params.device)
    if behind.shape != (3,) or not bool(((behind >= 0) & (behind <= 1)).all()):
        raise SplatError(f"background is {background!r}; it must be three numbers from 0 to 1")
    picture = _Render.apply(params, *size, method)
    if not behind.requires_grad and not behind.any():
        return picture
    # What white blobs leave on black is what they cover.
    white = torch.cat([params[:5], torch.full_like(params[5:8], _WHITE), params[8:]])
    return picture + (1 - _Render.apply(white, *size, method)) * behind


class _Render(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, params: torch.Tensor, width: int, height: int, method: Method) -> torch.Tensor:
        device = device_for(params)
        rasterizer = rasterizer_for(device, params.shape[1], width, height, method)
        parameters = device.memory.array(params.detach().contiguous())
        rasterizer.reserve(parameters)
        image = device.memory.empty((height, width, 3))
        recorder = device.record()
        rasterizer.record_render(recorder, parameters, image)
        recorder.submit()
        keep(ctx, (device, rasterizer), params)
        return image.tensor().to(params.device)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v_image: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        alert_not_deterministic("image.render")
        device, rasterizer = kept(ctx)
        _, params = ctx.saved_tensors
        memory = device.memory
        parameters = memory.array(params.detach().contiguous())
        v_params = memory.empty(tuple(params.shape))
        recorder = device.record()
        rasterizer.record_backward(recorder, parameters, memory.array(v_image.contiguous()), v_params)
        recorder.submit()
        return v_params.tensor().to(params.device), None, None, None
