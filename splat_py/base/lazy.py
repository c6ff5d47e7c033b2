"""Import a package's public names at their first use (PEP 562): torch, SlangPy and OpenCV take seconds, and `splat --help` or a
mistyped option need not wait for them."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, homes: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package, given its `__name__`. `homes` maps each public name to the module that
    defines it; "module:other" if its name there is `other`, "module:" for the module itself."""

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
