"""Helpers for autograd functions, which keep their state as long as torch keeps the graph, are differentiable once, and break
the graphs of torch.compile."""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from splat_py.base.errors import SplatError

_P = ParamSpec("_P")
_R = TypeVar("_R")
# Older ones break graphs without a message.
_SAYS_WHY = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)


def graph_break(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function that uses a device: torch.compile breaks its graph and calls the function directly. The function
    raises SplatError if an argument is inside a transformation of torch.func, or has a tangent."""
    refusal = "cannot be transformed by torch.func (grad, vmap, …), and has no forward derivative"
    return _outside_graphs(function, lambda value: _is_transformed(value) or has_tangent(value), refusal)


def forward_graph_break(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`graph_break` for a function that has forward derivatives: dual tensors, torch.func.jvp and jacfwd pass through it."""
    return _outside_graphs(function, _is_beyond_forward_mode, "cannot be transformed by torch.func except by jvp and jacfwd")


def _outside_graphs(function: Callable[_P, _R], is_refused: Callable[[Any], bool], refusal: str) -> Callable[_P, _R]:
    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # The tracing compiler has already loaded what `disable` needs; loading it takes longer than a render.
        if torch.compiler.is_dynamo_compiling():
            if _SAYS_WHY:
                torch._dynamo.graph_break(msg=f"{function.__name__} runs kernels that torch cannot trace; leave fullgraph out")
            return torch.compiler.disable(function)(*args, **kwargs)
        if _is_traced() or any(map(is_refused, (*args, *kwargs.values()))):
            raise SplatError(f"{function.__name__} {refusal}; use torch.autograd.grad, and leading dimensions for batches")
        # The compiler breaks no graph inside transformations. It leaves the caller alone, and tries what the caller calls.
        if torch._C._functorch.get_interpreter_stack() and "torch._dynamo" in sys.modules:
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def _is_traced() -> bool:
    """True inside torch.func.linearize, which records torch's operations to repeat them without the function."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def _is_transformed(value: Any) -> bool:
    of = torch._C._functorch
    return isinstance(value, Tensor) and (of.is_functorch_wrapped_tensor(value) or of.is_legacy_batchedtensor(value))


def has_tangent(value: Any) -> bool:
    return isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None


def has_derivative(value: Any) -> bool:
    """True for a tensor that has gradients or tangents, or may have them inside a transformation of torch.func."""
    return isinstance(value, Tensor) and (value.requires_grad or _is_transformed(value) or has_tangent(value))


def _is_beyond_forward_mode(value: Any) -> bool:
    """True inside a transformation other than torch.func.jvp, or `vmap` over tangents alone, as in jacfwd."""
    of = torch._C._functorch
    if not _is_transformed(value):
        return False
    if any(interpreter.key() == of.TransformType.Grad for interpreter in of.get_interpreter_stack() or ()):
        return True
    while of.is_gradtrackingtensor(value):
        value = of.get_unwrapped(value)
    return _is_transformed(value)


def primal(tensor: Tensor) -> Tensor:
    """Return a tensor without gradients, tangents and the wrappers of torch.func."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.detach()


def save_state(ctx: Any, state: Any, *tensors: Tensor | None) -> None:
    """Keep `state` for the derivatives, until torch frees the graph. torch raises an error if one of its source `tensors` is
    changed in place before that."""
    # The state lives as long as the graph holds this tensor, or another one with its storage.
    handle = torch.empty(0)
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    # Checkpointing's hooks return this tensor from a second forward pass, with its state; other hooks may return a copy.
    if _is_transformed(handle) or (hooks is not None and hooks[0].__module__ != "torch.utils.checkpoint"):
        ctx.state = state
    else:
        handle.untyped_storage().state = state  # type: ignore[attr-defined]
    # Hooks may allow saved tensors to be unpacked only once.
    ctx.may_be_early = hooks is None
    ctx.save_for_backward(handle, *tensors)
    ctx.save_for_forward(handle, *tensors)


def may_repeat() -> bool:
    """False where torch.utils.checkpoint, or other hooks, expect a second forward pass to save the same tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def load_state(ctx: Any) -> Any:
    """Return the state that `save_state` kept."""
    handle = ctx.saved_tensors[0]
    return ctx.state if hasattr(ctx, "state") else handle.untyped_storage().state


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a backward pass: differentiating its results raises SplatError, instead of taking them for constants."""

    @wraps(backward)
    def once(ctx: Any, *gradients: Tensor | None) -> Any:
        early: _Early | None = ctx.__dict__.pop("early", None)
        if early is not None and early.fits(gradients):
            return early.results
        if any(map(_is_transformed, gradients)):
            raise SplatError(
                "splat_py's gradients cannot be computed in batches; leave is_grads_batched and vectorize out, "
                "and differentiate one output after another"
            )
        context = _Context(ctx)
        # No tensor has a tangent outside the levels of forward mode.
        if forward_ad._current_level >= 0 and any(map(has_tangent, (*context.saved_tensors, *gradients))):
            refuse_second_derivative(ctx)
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
        self.create_graph = torch.is_grad_enabled()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class _Early(NamedTuple):
    """Results of a backward pass that ran before torch came to it."""

    gradients: Sequence[Tensor | None]
    versions: list[int]  # of the gradients, which rise when hooks change them in place
    results: Any

    def fits(self, gradients: Sequence[Tensor | None]) -> bool:
        """True if torch has passed the expected gradients on."""
        same = all(given is expected for given, expected in zip(gradients, self.gradients, strict=True))
        return same and self.versions == _versions(gradients)


def _versions(gradients: Sequence[Tensor | None]) -> list[int]:
    return [0 if gradient is None else gradient._version for gradient in gradients]


def backward_early(ctx: Any, gradients: Sequence[Tensor | None]) -> None:
    """Run the backward passes of the stages that made a stage's input tensors, so that one submission holds them all. Torch
    takes their results when it comes to these stages, unless hooks or other uses of the tensors have changed the gradients.

    Args:
        gradients: one for each input tensor of the stage that is not None.
    """
    if ctx.create_graph or not all(_is_stage_or_leaf(node) for node, _ in ctx.next_functions):
        return
    expected: dict[Any, dict[int, Tensor | None]] = defaultdict(dict)
    for (node, output), gradient in zip(ctx.next_functions, gradients, strict=True):
        if getattr(node, "may_be_early", False) and torch._C._will_engine_execute_node(node):
            expected[node][output] = gradient
    # Shading, whose colours are among the last tensors, before projection.
    for node, by_output in reversed(expected.items()):
        given = [by_output.get(output) for output in range(len(node._input_metadata))]
        node.early = _Early(given, _versions(given), node._forward_cls.backward(node, *given))


def _is_stage_or_leaf(node: Any) -> bool:
    """True unless a tensor comes from operations that may also use results of stages, whose gradients would be incomplete."""
    if hasattr(node, "may_be_early"):
        return True
    while node is not None and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node is None or not node.next_functions


def refuse_second_derivative(ctx: Any, *_: Tensor) -> Any:
    """Raise SplatError, as the backward pass of a gradient."""
    raise SplatError(
        "splat_py's derivatives cannot be differentiated again; leave create_graph out, detach the gradient, "
        "or push tangents by torch.func.jvp"
    )


class Stage(torch.autograd.Function):
    """An autograd function with both derivatives: `backward`, and `jvp`, which returns `Tangents.of`."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        # torch asks for it in each call.
        cls.forward.__signature__ = signature(cls.forward)  # type: ignore[attr-defined]

    @staticmethod
    def vmap(*_: Any) -> Any:
        """torch leaves this out if only tangents are batched."""
        raise SplatError("a render cannot be transformed by torch.func.vmap; use leading dimensions for batches")


class Untransformed(Stage):
    """Calls a function outside torch's transformations, which see no tensor among its arguments and thus no derivative."""

    @staticmethod
    def forward(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @staticmethod
    def setup_context(*_: Any) -> None:
        pass


class Tangents(torch.autograd.Function):
    """The forward derivative of a stage: in one direction or, as torch.func.jacfwd needs it, in several at once."""

    @classmethod
    def of(
        cls,
        push: Callable[[tuple[int, ...], list[Any]], tuple[Tensor | None, ...]],
        tensors: Sequence[Tensor | None],
        tangents: Sequence[Tensor | None],
        optional: Collection[int] = (),
    ) -> Any:
        """Return the tangents of a stage's results, from its tensors and their tangents, where None stands for zeros.

        `push` computes them, given the leading dimensions that all tangents have: none, or the number of directions. Those of
        the `optional` tensors are None if all of them are zeros.
        """
        for tensor, d in zip(tensors, tangents, strict=False):
            if d is not None and tensor is not None and d.dtype != tensor.dtype:
                raise SplatError(f"a tangent is {d.dtype}, and its tensor {tensor.dtype}; convert the tangent")
        left_out = optional if all(tangents[i] is None for i in optional) else ()
        given = [
            torch.zeros(t.shape, dtype=t.dtype, device=t.device) if d is None and t is not None and i not in left_out else d
            for i, (t, d) in enumerate(zip(tensors, tangents, strict=False))
        ]
        # Differentiating a tangent by any of these raises.
        sources = [forward_ad.unpack_dual(t).primal for t in tensors if t is not None]
        return cls.apply(push, len(given), *given, *sources)

    @staticmethod
    def forward(push: Any, count: int, *tensors: Tensor | None) -> Any:
        if any(map(_is_transformed, tensors)):
            raise SplatError("torch.autograd.functional cannot batch tangents of a render; use torch.func.jacfwd")
        return push((), list(tensors[:count]))

    @staticmethod
    def setup_context(*_: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, push: Any, count: int, *tensors: Tensor | None) -> Any:
        given = [
            t if t is None else t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(tensors[:count], in_dims[2:], strict=False)
        ]
        if any(map(_is_transformed, given)):
            refuse_second_derivative(info)
        results = push((info.batch_size,), given)
        return results, tuple(None if result is None else 0 for result in results)

    backward = staticmethod(refuse_second_derivative)
    jvp = staticmethod(refuse_second_derivative)


class _Constant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.detach()

    backward = staticmethod(refuse_second_derivative)
