"""Packages whose public names are imported when they are first used (PEP 562): torch, SlangPy and OpenCV take seconds, which
`splat --help` and a mistyped option need not wait for."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, homes: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the package of this `__name__`. `homes` has by public name the module that defines it;
    "module:other" if it is called other there, "module:" for the module."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, colon, other = homes[name].partition(":")
        module = import_module(home)
        value = module if colon and not other else getattr(module, other or name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
