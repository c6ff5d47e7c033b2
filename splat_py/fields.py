"""Checks of a dataclass' fields: whether their values have the types that they are declared with, and lie in a range."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from splat_py.errors import SplatError

# Least and largest value.
Range = tuple[float, float]
# Of counts that shaders and NumPy take as 32 bits with a sign.
LARGEST = (1 << 31) - 1


def check_fields(options: Any, ranges: Mapping[str, Range]) -> None:
    """Raise a SplatError that names the first field of a dataclass with a wrong type or out of its range.

    Args:
        ranges: of every field that is a number. Fields of other types than numbers, bool and Literal are left alone.
    """
    for name, kind in get_type_hints(type(options)).items():
        value = getattr(options, name)
        if kind is bool:
            if not isinstance(value, bool):
                raise SplatError(f"{name} is {shown(value)}; it must be true or false")
        elif get_origin(kind) is Literal:
            if not isinstance(value, str) or value not in get_args(kind):
                raise SplatError(f"{name} is {shown(value)}; use {', '.join(get_args(kind))}")
        elif kind in (int, float):
            check_number(name, value, kind, ranges[name])


def check_number(name: str, value: Any, kind: type, limits: Range) -> None:
    """Raise a SplatError unless `value` is an int or a finite float in a range."""
    least, largest = limits
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        raise SplatError(f"{name} is {shown(value)}; it must be a {'whole ' if kind is int else ''}number")
    if isinstance(value, float) and not math.isfinite(value):
        raise SplatError(f"{name} is {shown(value)}; it must be finite")
    if value < least:
        raise SplatError(f"{name} is {shown(value)}; it must be at least {least}")
    if value > largest:
        raise SplatError(f"{name} is {shown(value)}; it must be at most {largest:,}")


def shown(value: Any) -> str:
    """A value, in a few characters. Python itself refuses to write out very long whole numbers."""
    return "a number of more than 18 digits" if isinstance(value, int) and abs(value) >= 10**18 else reprlib.repr(value)
