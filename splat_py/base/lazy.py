"""Import a package's public names at their first use (PEP 562): torch, SlangPy and OpenCV take seconds, and `splat --help` or a
mistyped option need not wait for them."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy(package: str, homes: dict[str, str] | None = None) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package, given its `__name__`. `homes` maps each public name to the module that
    defines it; "module:other" if its name there is `other`, "module:" for the module itself. By default these are the names
    that the package's source imports for type checkers."""
    known = typed_homes(package) if homes is None else homes

    def load(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, colon, other = known[name].partition(":")
        module = import_module(home)
        value = module if colon and not other else getattr(module, other or name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *known})

    return load, names


def typed_homes(package: str) -> dict[str, str]:
    """Return the homes, as for `lazy`, of the names that a package imports in its first `if`, `if TYPE_CHECKING:`."""
    file = Path(str(sys.modules[package].__file__))
    checked = next(node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    homes: dict[str, str] = {}
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom)
        home = str(node.module)
        # Packages give their modules here, modules their names.
        is_package = file.parents[package.count(".") + 1].joinpath(*home.split(".")).is_dir()
        homes |= {a.asname or a.name: f"{home}.{a.name}:" if is_package else f"{home}:{a.name}" for a in node.names}
    return homes
