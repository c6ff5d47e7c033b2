"""References of the shader tests: exact derivatives in float64, and the tolerances for float32."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from splat_py import shaders

Array = npt.NDArray[np.float64]

_STEP = 1e-30


def pullback(f: Callable[..., Array], v_output: Array, *inputs: Array) -> list[Array]:
    """Gradients of each of `inputs` [N, …], for an f that maps them, row by row, to an array [N, …].

    Uses complex steps (Squire & Trapp 1998): exact to float64's last digit if `f` consists of analytic operations.
    """
    gradients = []
    for position, array in enumerate(inputs):
        gradient = np.zeros(array.shape)
        for index in np.ndindex(array.shape[1:]):
            moved: list[Any] = list(inputs)
            moved[position] = array.astype(complex)
            moved[position][:, *index] += 1j * _STEP
            change = f(*moved).imag / _STEP
            gradient[:, *index] = np.sum((v_output * change).reshape(len(array), -1), axis=1)
        gradients.append(gradient)
    return gradients


def float32(array: npt.ArrayLike) -> Array:
    """The nearest numbers that a shader can receive."""
    return np.asarray(array, np.float32).astype(float)


def unit(vectors: npt.ArrayLike) -> Array:
    """Vectors [..., 3] of length 1 in the same directions."""
    return np.asarray(vectors) / np.linalg.norm(vectors, axis=-1, keepdims=True)


def assert_value(actual: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    if isinstance(expected, dict):
        assert set(actual) == set(expected)
        for name in expected:
            assert_value(actual[name], expected[name], rtol=rtol, atol=atol)
    else:
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def assert_gradients(
    function: shaders.ShaderFunction,
    v_output: Any,
    arguments: Sequence[Any],
    expected: Sequence[Any],
    *,
    rtol: float = 1e-4,
    atol: float = 1e-6,
) -> None:
    """Compare every scalar of every argument's gradient.

    Args:
        expected: one an argument: an array, 0 for zeros, None for no gradient; for a struct, a dict of its fields, without
            those whose gradients are zeros.
    """
    actual = shaders.gradients(function, v_output, *arguments)
    assert len(actual) == len(expected)
    names = [parameter.name for parameter in function.reflection.parameters]
    for argument, got, wanted in zip(names, actual, expected, strict=True):
        what = f"{function}, argument {argument}"
        if wanted is None:
            assert got is None, what
        elif isinstance(wanted, dict):
            assert set(wanted) <= set(got), what
            for name, field in got.items():
                _compare(field, wanted.get(name, 0), f"{what}, {name}", rtol, atol)
        else:
            _compare(got, wanted, what, rtol, atol)


def assert_like(
    function: shaders.ShaderFunction,
    f: Callable[..., Any],
    arguments: Sequence[Any],
    fixed: Sequence[Any] = (),
    *,
    no_diff: Sequence[int] = (),
    v: Any = None,
    value: tuple[float, float] = (1e-5, 1e-6),
    rtol: float = 1e-4,
    atol: float = 1e-6,
) -> None:
    """Compare a shader's result and every gradient with f's, in torch's float64.

    Args:
        f: a function of the arguments as tensors, structs as dicts of them; returns a tensor, or a struct.
        fixed: further arguments, without gradients, that only the shader has.
        no_diff: indices of the other arguments without gradients.
        v: gradient of the result, random by default.
        value: relative and absolute tolerance of the result; rtol and atol are those of gradients.
    """
    leaves = [_each(lambda a: torch.tensor(a, dtype=torch.float64, requires_grad=True), argument) for argument in arguments]
    expected = f(*leaves)
    given = [*arguments, *fixed]
    assert_value(function(*given), _each(lambda x: x.detach().numpy(), expected), rtol=value[0], atol=value[1])
    rng = np.random.default_rng(23)
    v = _each(lambda x: rng.normal(size=x.shape), expected) if v is None else v
    torch.autograd.backward(*zip(*_pairs(expected, v), strict=True))
    wanted = [_each(_gradient, leaf) for leaf in leaves]
    assert any(np.any(gradient) for leaf in wanted for gradient in (leaf.values() if isinstance(leaf, dict) else [leaf]))
    for position in no_diff:
        wanted[position] = None
    assert_gradients(function, v, given, [*wanted, *(None for _ in fixed)], rtol=rtol, atol=atol)


def _each(f: Callable[[Any], Any], value: Any) -> Any:
    return {name: _each(f, field) for name, field in value.items()} if isinstance(value, dict) else f(value)


def _pairs(expected: Any, v: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if isinstance(v, dict):
        return [pair for name in v for pair in _pairs(expected[name], v[name])]
    return [(expected, torch.as_tensor(v))]


def _gradient(leaf: torch.Tensor) -> Any:
    return leaf.grad.numpy() if leaf.grad is not None and leaf.grad.any() else 0


def _compare(actual: Array, expected: Any, what: str, rtol: float, atol: float) -> None:
    if isinstance(expected, int):
        assert not np.any(actual), what
        return
    assert actual.shape == expected.shape, what
    # All zeros would hide a lost gradient.
    assert np.any(expected), f"{what}: this test cannot fail"
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=what)
