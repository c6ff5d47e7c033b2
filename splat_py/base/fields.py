"""Checks that values from options and JSON have the types that a dataclass declares, and ranges; and sizes such as 8GB."""

import math
import re
import reprlib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from splat_py.base.errors import SplatError

T = TypeVar("T")

# Least and largest value.
Range = tuple[float, float]
# The largest count that fits in 32 bits with a sign, as in shaders and NumPy.
LARGEST = (1 << 31) - 1
_ANY_FLOAT: Range = (-math.inf, math.inf)
# Integers beyond these are neither indices nor seeds.
_ANY_INT: Range = (-(1 << 63), (1 << 63) - 1)
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGT])(IB|B|I)?", re.IGNORECASE)


def dataclass_of(cls: type[T], content: Any) -> T:
    """Make a dataclass from its fields in JSON, each of the declared type: a bool is no number, an integer can be a float,
    floats are finite, a list can be a tuple. TypeError if fields are unknown or missing, SplatError if types are wrong."""
    if not isinstance(content, dict):
        raise TypeError(f"expected a dictionary of fields, not {type(content).__name__}")
    hints = get_type_hints(cls)
    unknown = [name for name in content if name not in hints]
    if unknown:
        raise TypeError(f"there is no field {shown(unknown[0])}")
    return cls(**{name: _typed(name, value, hints[name]) for name, value in content.items()})


def check_fields(options: Any, ranges: Mapping[str, Range]) -> None:
    """Raise a SplatError that names the first field of a dataclass with a wrong type, or a number out of its range."""
    for name, kind in get_type_hints(type(options)).items():
        _typed(name, getattr(options, name), kind, ranges.get(name))


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


def require_number(**values: Any) -> None:
    """Raise a SplatError that names the first argument that is not a finite number of Python, NumPy or torch."""
    for name, value in values.items():
        try:
            finite = not isinstance(value, str | bytes) and math.isfinite(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            finite = False
        if not finite:
            raise SplatError(f"{name} is {shown(value)}; it must be a finite number")


def shown(value: Any) -> str:
    """A value in a few characters. Python itself refuses to print very long integers."""
    return "a number of more than 18 digits" if isinstance(value, int) and abs(value) >= 10**18 else reprlib.repr(value)


def _typed(name: str, value: Any, kind: Any, limits: Range | None = None) -> Any:
    """Convert a value to its field's declared type; SplatError if it has another type, or is out of its range."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is int or kind is float:
        # An integer given for a float may be too large for one.
        check_number(name, value, kind, limits or (_ANY_FLOAT if isinstance(value, float) else _ANY_INT))
        return kind(value)
    if origin in (Union, types.UnionType):
        for option in arguments:
            try:
                return _typed(name, value, option, limits)
            except SplatError:
                continue
    elif origin is Literal:
        if isinstance(value, str) and value in arguments:
            return value
        raise SplatError(f"{name} is {shown(value)}; use {', '.join(arguments)}")
    elif origin is tuple and isinstance(value, (list, tuple)):
        endless = arguments[1:] == (...,)
        if endless or len(value) == len(arguments):
            kinds = [arguments[0]] * len(value) if endless else arguments
            return tuple(_typed(name, item, each) for item, each in zip(value, kinds, strict=True))
    elif kind is Path and isinstance(value, (str, Path)) and "\0" not in str(value):
        return Path(value)
    elif kind in (bool, str, type(None)) and isinstance(value, kind):
        return value
    expected = "true or false" if kind is bool else getattr(kind, "__name__", kind) if origin is None else kind
    raise SplatError(f"{name} is {shown(value)}; it must be {expected}")


def bytes_of(name: str, size: str) -> int:
    """Bytes in an option's value, such as 8GB, 7.5 GiB or 500m; units with an i are powers of 1024, others of 1000."""
    match = _SIZE.fullmatch(size.replace(" ", "")) if len(size) < 32 else None
    if match is None:
        raise SplatError(f"{name} is {size[:32]!r}; give a number and a unit, such as 8GB, 7.5GiB or 500MB")
    number, unit, kind = match.groups()
    base = 1024 if "i" in (kind or "").lower() else 1000
    return int(float(number) * base ** ("KMGT".index(unit.upper()) + 1))


def shown_bytes(nbytes: float) -> str:
    """Show bytes in two or three digits: 740 MB, 8.9 GB."""
    if math.isinf(nbytes):
        return "any amount"
    return f"{nbytes / 1e6:,.0f} MB" if nbytes < 999.5e6 else f"{nbytes / 1e9:,.1f} GB"
