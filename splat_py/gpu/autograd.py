"""Helpers for autograd functions, which keep their state as long as torch keeps the graph, are differentiable once, and break
the graphs of torch.compile."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from splat_py.base.errors import SplatError

_P = ParamSpec("_P")
_R = TypeVar("_R")
# Older ones break graphs without a message.
_SAYS_WHY = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)


def graph_break(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function that uses a device: torch.compile breaks its graph and calls the function directly. The function
    raises SplatError if an argument is inside a transformation of torch.func."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # The tracing compiler has already loaded what `disable` needs; loading it takes longer than a render.
        if torch.compiler.is_dynamo_compiling():
            if _SAYS_WHY:
                torch._dynamo.graph_break(msg=f"{function.__name__} runs kernels that torch cannot trace; leave fullgraph out")
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
    """Keep `state` for the backward pass, until torch frees the graph. torch raises an error if one of its source `tensors` is
    changed in place before that."""
    # The state lives as long as the graph holds this tensor, or another one with its storage.
    handle = torch.empty(0)
    handle.untyped_storage().state = state  # type: ignore[attr-defined]
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    # Checkpointing's hooks return this tensor from a second forward pass, with its state; other hooks may return a copy.
    if hooks is not None and hooks[0].__module__ != "torch.utils.checkpoint":
        ctx.state = state
    ctx.save_for_backward(handle, *tensors)


def load_state(ctx: Any) -> Any:
    """Return the state that `save_state` kept."""
    handle = ctx.saved_tensors[0]
    return ctx.state if hasattr(ctx, "state") else handle.untyped_storage().state


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a backward pass: differentiating its results raises SplatError, instead of taking them for constants."""

    @wraps(backward)
    def once(ctx: Any, *gradients: Tensor | None) -> Any:
        if any(map(_is_transformed, gradients)):
            raise SplatError(
                "splat_py's gradients cannot be computed in batches; leave is_grads_batched and vectorize out, "
                "and differentiate one output after another"
            )
        context = _Context(ctx)
        with torch.no_grad():
            results = backward(context, *gradients)
        if not torch.is_grad_enabled():
            return results
        # A second derivative by any of these passes through `_Constant`, which raises.
        sources = [t for t in (*context.saved_tensors, *gradients) if t is not None and t.requires_grad]
        marker = torch.zeros((), requires_grad=True)
        return tuple(result if result is None else _Constant.apply(result, marker, *sources) for result in results)

    return once


class _Context:
    """autograd's context with its saved tensors, which hooks allow to be unpacked only once."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.saved_tensors = ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def refuse_second_derivative(ctx: Any, *_: Tensor) -> Any:
    """Raise SplatError, as the backward pass of a gradient."""
    raise SplatError("splat_py's gradients cannot be differentiated again; leave create_graph out, or detach the gradient")


class _Constant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.detach()

    backward = staticmethod(refuse_second_derivative)
