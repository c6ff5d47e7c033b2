"""Checks of what public functions are given: whole numbers, arrays, and objects of the library."""

import operator
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from splat_py.base.errors import SplatError
from splat_py.base.fields import LARGEST, shown

T = TypeVar("T")


def as_integer(name: str, value: Any, least: int, most: int = LARGEST) -> int:
    """Return an integer of Python, NumPy or torch; SplatError if it is none, or out of its range."""
    try:
        number = operator.index(value)
    except (TypeError, ValueError):
        number = least - 1
    if least <= number <= most:
        return number
    upper = "" if most == LARGEST else f" to {most}"
    raise SplatError(f"{name} is {shown(value)}; it must be a whole number from {least}{upper}")


def require_instance(kind: type, **values: Any) -> None:
    """Raise a SplatError that names the first argument that is no instance of this class of the library."""
    for name, value in values.items():
        if not isinstance(value, kind):
            raise SplatError(f"{name} is a {type(value).__name__}; give a splat_py.{kind.__name__}")


def instances(kind: type[T], name: str, values: Iterable[T]) -> list[T]:
    """List the elements of an argument; SplatError unless all are instances of this class of the library."""
    if not isinstance(values, Iterable):
        raise SplatError(f"{name} is a {type(values).__name__}; give a list of splat_py.{kind.__name__}")
    listed = list(values)
    for value in listed:
        if not isinstance(value, kind):
            raise SplatError(f"{name} holds a {type(value).__name__}; give a list of splat_py.{kind.__name__}")
    return listed


def as_numpy(name: str, values: ArrayLike, dtype: DTypeLike | None = None, wanted: str = "give numbers") -> NDArray[Any]:
    """Return an argument's numbers as an array, by default of their own type; SplatError, with what is `wanted`, if it holds
    something else. A tensor may be on a GPU, require a gradient, or belong to torch.func.jvp."""
    given: Any = values
    try:
        if hasattr(given, "detach"):
            try:
                given = given.detach().cpu().numpy()
            except RuntimeError:
                # NumPy cannot read a tensor inside torch.func.jvp.
                given = given.tolist()
        return np.asarray(given, dtype)
    except (TypeError, ValueError, OverflowError):
        raise SplatError(f"{name} is {shown(values)}; {wanted}") from None


def finite_array(name: str, values: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return a new array of an argument's numbers; SplatError unless they are finite and have this shape."""
    found = as_numpy(name, values, np.float64).copy()
    if found.shape != shape:
        raise SplatError(f"{name} has shape {list(found.shape)}; pass {list(shape)}")
    if not np.isfinite(found).all():
        raise SplatError(f"{name} holds NaN or infinity; pass finite numbers")
    return found


def background_of(background: ArrayLike) -> NDArray[np.float32]:
    """Return rgb [3]; SplatError unless it is three numbers from 0 to 1."""
    wanted = "it must be three numbers from 0 to 1"
    rgb = as_numpy("background", background, np.float32, wanted)
    if rgb.shape != (3,) or not ((rgb >= 0) & (rgb <= 1)).all():
        raise SplatError(f"background is {shown(background)}; {wanted}")
    return rgb
