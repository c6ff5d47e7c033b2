"""What is checked of headers and tensors in files that somebody else may have made, before anything of them is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.files import Layout


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
