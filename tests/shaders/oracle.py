"""What the shader tests compare with: exact derivatives in float64, and how close float32 has to come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from splat_py import shaders

Array = npt.NDArray[np.float64]

_STEP = 1e-30


def pullback(f: Callable[..., Array], v_output: Array, *inputs: Array) -> list[Array]:
    """Gradients of each of `inputs` [N, …] where f maps them, row by row, to an array [N, …].

    By complex steps (Squire & Trapp 1998): exact to float64's last digit, for `f` of analytic operations.
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


def assert_value(actual: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Compare a shader's result with the reference's: arrays, or dicts of them."""
    if isinstance(expected, dict):
        assert set(actual) == set(expected)
        for name in expected:
            np.testing.assert_allclose(actual[name], expected[name], rtol=rtol, atol=atol, err_msg=name)
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
        expected: one an argument: an array, None where there is to be no gradient, for a struct a dict of the
            fields whose gradients are not zero.
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
                if name in wanted:
                    _compare(field, wanted[name], f"{what}, {name}", rtol, atol)
                else:
                    assert not np.any(field), f"{what}, {name}"
        else:
            _compare(got, wanted, what, rtol, atol)


def _compare(actual: Array, expected: Array, what: str, rtol: float, atol: float) -> None:
    assert actual.shape == expected.shape, what
    # All zeros would hide a gradient that got lost.
    assert np.any(expected), f"{what}: this test cannot fail"
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=what)
