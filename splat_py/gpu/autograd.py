"""Functions that torch differentiates: each keeps its state as long as torch keeps the graph, is differentiated once, and
breaks the graphs of torch's compiler."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from splat_py.base.errors import SplatError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def graph_break(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function that talks to a device: torch.compile calls it as it is, between its graphs. It raises SplatError if an
    argument is inside a transformation of torch.func."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # Asked while the compiler traces, which has loaded what `disable` needs; to load that takes longer than to render.
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)
        if any(map(_is_transformed, (*args, *kwargs.values()))):
            raise SplatError(
                f"{function.__name__} cannot be transformed by torch.func (grad, vmap, …); "
                "use torch.autograd.grad, and leading dimensions for batches"
            )
        return function(*args, **kwargs)

    return call


def _is_transformed(value: Any) -> bool:
    of = torch._C._functorch
    return isinstance(value, Tensor) and (of.is_functorch_wrapped_tensor(value) or of.is_legacy_batchedtensor(value))


def save_state(ctx: Any, state: Any, *tensors: Tensor | None) -> None:
    """Keep `state` for the backward pass, until torch frees the graph. Changing one of the `tensors` that it was made from in
    place before the backward pass is an error."""
    # It lives as long as the graph holds the tensor, or another one with its memory.
    handle = torch.empty(0)
    handle.untyped_storage().state = state  # type: ignore[attr-defined]
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    # Hooks of checkpointing drop the tensor, and give back that of a second forward pass. Others may give back a copy.
    if hooks is not None and hooks[0].__module__ != "torch.utils.checkpoint":
        ctx.state = state
    ctx.save_for_backward(handle, *tensors)


def load_state(ctx: Any) -> Any:
    """The state that `save_state` has kept."""
    handle = ctx.saved_tensors[0]
    return ctx.state if hasattr(ctx, "state") else handle.untyped_storage().state


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass whose results cannot be differentiated again: that raises, as they would be taken for constants."""

    @wraps(backward)
    def once(ctx: Any, *gradients: Tensor | None) -> Any:
        if any(map(_is_transformed, gradients)):
            raise SplatError(
                "gradients of splat_py's cannot be taken in batches; leave is_grads_batched and vectorize out, "
                "and differentiate one output after another"
            )
        context = _Context(ctx)
        with torch.no_grad():
            results = backward(context, *gradients)
        if not torch.is_grad_enabled():
            return results
        # Whoever differentiates in what they depend on has to come by here.
        sources = [t for t in (*context.saved_tensors, *gradients) if t is not None and t.requires_grad]
        marker = torch.zeros((), requires_grad=True)
        return tuple(result if result is None else _Constant.apply(result, marker, *sources) for result in results)

    return once


class _Context:
    """autograd's context with its tensors, which hooks allow to be unpacked once."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.saved_tensors = ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def refuse_second_derivative(ctx: Any, *_: Tensor) -> Any:
    """The backward pass of a gradient."""
    raise SplatError(
        "a gradient of splat_py's cannot be differentiated again; leave create_graph out, or detach what it goes into"
    )


class _Constant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.detach()

    backward = staticmethod(refuse_second_derivative)
