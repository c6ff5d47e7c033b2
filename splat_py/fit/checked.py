"""What is checked of files that somebody else may have made, before anything of them is used."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from splat_py.files import Layout

T = TypeVar("T")


def dataclass_of(cls: type[T], content: Any) -> T:
    """A dataclass from its fields as JSON has them, each of the type that the class declares: a bool is no number, an integer
    is a float, floats are finite, and a list is a tuple.

    Raises:
        TypeError: this is no dictionary, or has a field too many, too few, or of another type.
    """
    if not isinstance(content, dict):
        raise TypeError(f"expected a dictionary of fields, not {type(content).__name__}")
    hints = get_type_hints(cls)
    unknown = [name for name in content if name not in hints]
    if unknown:
        raise TypeError(f"there is no field {unknown[0]!r}")
    return cls(**{name: _checked(hints[name], value, name) for name, value in content.items()})


def _checked(hint: Any, value: Any, name: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, list) and arguments[1:] == (...,):
        return tuple(_checked(arguments[0], item, name) for item in value)
    if origin in (Union, types.UnionType):
        for option in arguments:
            try:
                return _checked(option, value, name)
            except TypeError:
                continue
    elif origin is Literal:
        if isinstance(value, str) and value in arguments:
            return value
    elif hint is float and type(value) in (int, float):
        # Beyond this an integer is no index, no seed and no float.
        if math.isfinite(value) if isinstance(value, float) else abs(value) < 1 << 63:
            return float(value)
    elif hint is Path and isinstance(value, str) and "\0" not in value:
        return Path(value)
    elif type(value) is hint and (hint is not int or abs(value) < 1 << 63):
        return value
    raise TypeError(f"{name} is {str(value)[:40]!r}; it must be {getattr(hint, '__name__', hint)}")


def whole_number(header: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """A field of a header.

    Raises:
        ValueError: it is missing, or no integer from `low` to `high`.
    """
    value = header.get(name)
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {str(value)[:40]!r}; it must be a whole number from {low} to {high}")
    return value


def require_layout(layout: Layout, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str] | None = None) -> None:
    """Raise ValueError unless a file has these tensors, of these shapes, all float32 but those in `dtypes`, and no others."""
    if layout.keys() != shapes.keys():
        name = min(layout.keys() ^ shapes.keys())
        raise ValueError(f"there is {'a' if name in layout else 'no'} tensor {name!r}")
    for name, shape in shapes.items():
        expected = ((dtypes or {}).get(name, "F32"), shape)
        if layout[name] != expected:
            raise ValueError(f"{name} is {layout[name]}; it must be {expected}")


def require_finite(tensors: Mapping[str, NDArray[Any]], squares: tuple[str, ...] = ()) -> None:
    """Raise ValueError if a number is not finite, or below 0 in one of `squares`."""
    for name, values in tensors.items():
        if not np.isfinite(values).all() or (name in squares and (values < 0).any()):
            raise ValueError(f"{name} holds numbers that no fit leaves: NaN, infinity, or a negative mean of squares")
