"""Amounts of memory as people write them."""

from __future__ import annotations

import math
import re

from splat_py.errors import SplatError

_DECIMAL, _BINARY = 1000, 1024
_UNITS = "KMGT"
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGT])(IB|B|I)?", re.IGNORECASE)


def bytes_of(name: str, size: str) -> int:
    """Bytes of 8GB, 7.5 GiB or 500m; with an i units are powers of 1024, else of 1000.

    Args:
        name: of the option, for the message.

    Raises:
        SplatError: it is no such size.
    """
    match = _SIZE.fullmatch(size.replace(" ", "")) if len(size) < 32 else None
    if match is None:
        raise SplatError(f"{name} is {size[:32]!r}; give a number and a unit, such as 8GB, 7.5GiB or 500MB")
    number, unit, kind = match.groups()
    base = _BINARY if "i" in (kind or "").lower() else _DECIMAL
    return int(float(number) * base ** (_UNITS.index(unit.upper()) + 1))


def shown_bytes(nbytes: float) -> str:
    """The same in two or three digits: 740 MB, 8.9 GB."""
    if math.isinf(nbytes):
        return "any amount"
    return f"{nbytes / 1e6:,.0f} MB" if nbytes < 999.5e6 else f"{nbytes / 1e9:,.1f} GB"
