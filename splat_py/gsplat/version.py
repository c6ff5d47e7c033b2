"""The version of gsplat in force. 1.5.3, which pip installs, and 1.6 contradict each other in the limit of α (0.999 and 0.99),
the number of values of packed projections (8 and 9), the sigma points that must be valid (all and one), the bits of keys, and
the order of some positional arguments."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from splat_py.base.errors import SplatError

_VERSIONS = {"1.5": "1.5.3", "1.5.3": "1.5.3", "1.6": "1.6.0", "1.6.0": "1.6.0"}


def _known(name: str, version: str) -> str:
    if version not in _VERSIONS:
        raise SplatError(f"{name} is {version!r}; use 1.5.3 or 1.6")
    return _VERSIONS[version]


__version__ = _known("SPLAT_GSPLAT", os.environ.get("SPLAT_GSPLAT") or "1.5.3")


def use(version: str) -> None:
    """Follow gsplat "1.5.3" or "1.6" from now on, in the whole process. `__version__` says which is in force; the
    environment variable SPLAT_GSPLAT sets the first one, by default 1.5.3. SplatError if it is neither."""
    for module in (__name__, __package__):
        vars(sys.modules[module])["__version__"] = _known("version", version)
    vars(sys.modules[f"{__package__}.cuda._constants"])["MAX_ALPHA"] = max_alpha()


def is_1_5() -> bool:
    """True if gsplat 1.5.3 is followed, False if 1.6 is."""
    return __version__ == "1.5.3"


def max_alpha() -> float:
    """The largest α of a splat in a pixel."""
    return 0.999 if is_1_5() else 0.99


def key_bits(count: int) -> int:
    """The bits of the number of one of `count` images or tiles in a key of `isect_tiles`."""
    return (count if is_1_5() else max(count - 1, 0)).bit_length()


def by_position(version: str, first: int, names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function whose positional arguments from number `first` on are `names` in another version than its own."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        later = names.split()

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if __version__ != version or len(args) <= first:
                return function(*args, **named)
            if len(args) > first + len(later):
                raise TypeError(f"{function.__qualname__} takes at most {first + len(later)} positional arguments")
            return function(*args[:first], **dict(zip(later, args[first:], strict=False)), **named)

        call.by_position = {version: (first, later)}  # type: ignore[attr-defined]
        return call

    return decorated
