"""What every `autograd.Function` here does alike: keep its state as long as torch keeps the graph, and differentiate once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from splat_py.errors import SplatError


def keep(ctx: Any, state: Any, *tensors: Tensor | None) -> None:
    """Keep `state` for the backward pass, until torch frees the graph.

    Args:
        tensors: what it was made from. Changing one in place before the backward pass is an error.
    """
    handle = torch.empty(0)
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        # It lives as long as the graph holds the tensor.
        handle.state = state  # type: ignore[attr-defined]
    else:
        # Hooks, such as those of checkpointing, would give another tensor back.
        ctx.state = state
    ctx.save_for_backward(handle, *tensors)


def kept(ctx: Any) -> Any:
    """What `keep` has kept."""
    handle = ctx.saved_tensors[0]
    return ctx.state if hasattr(ctx, "state") else handle.state


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass whose results cannot be differentiated again: that raises, as they would be taken for constants."""

    @wraps(backward)
    def once(ctx: Any, *gradients: Tensor | None) -> Any:
        with torch.no_grad():
            results = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return results
        marker = torch.zeros((), requires_grad=True)
        return tuple(result if result is None else _Constant.apply(result, marker) for result in results)

    return once


class _Constant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, marker: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise SplatError(
            "a gradient of splat_py's cannot be differentiated again; leave create_graph out, or detach what it goes into"
        )
