"""Slang of your own inside the renderer: types that kernels are linked with."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from functools import cache
from pathlib import Path

from splat_py.errors import SplatError
from splat_py.gpu.kernels import UserType
from splat_py.gpu.sources import shader_folder
from splat_py.shaders import ShaderModule, library_types, load, types_of
from splat_py.splats.splat_types import BUILT_IN


def source(text: str) -> ShaderModule:
    """Slang source of your own, which may import all of `splat.…`; its public functions are attributes.

    The module serves wherever the name of a built-in type does, if it declares a type that implements the interface there.

    Raises:
        SplatError: it cannot be compiled; the message has the line. Or this is no text.
    """
    if not isinstance(text, str):
        raise SplatError(f"the source is a {type(text).__name__}; give the text, or load a file: splat_py.shaders.load(path)")
    text = text.removeprefix("\ufeff").encode(errors="replace").decode()
    path = _folder() / f"source_{hashlib.sha256(text.encode()).hexdigest()[:16]}.slang"
    path.write_text(text, encoding="utf-8")
    try:
        return load(path)
    except SplatError as error:
        raise SplatError(str(error).replace(str(path), "the source")) from error


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="splat_py-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


# The types of ours that kernels take in the place of one that implements another interface than theirs.
_THROUGH = {"IFalloff2D": "AroundMean"}


def user_type(module: ShaderModule | UserType, *interfaces: str) -> UserType:
    """The type of a module that implements an interface: of several, the first that any type implements.

    Raises:
        SplatError: there is none, or more than one, or one of ours has its name.
    """
    found = {interface: types_of(module.text, interface) for interface in interfaces}
    if isinstance(module, UserType):
        found = {interface: names for interface, names in found.items() if module.name in names}
    interface = next((interface for interface, names in found.items() if names), " or ".join(reversed(interfaces)))
    name = module.name if isinstance(module, UserType) else module.type_of(interface)
    if not name.isascii():
        raise SplatError(f"{name} is no name that every compiler takes; use letters from A to Z, digits and _")
    ours = isinstance(module, ShaderModule) and module.path.is_relative_to(shader_folder())
    if name in (*library_types(), *BUILT_IN) and not ours:
        raise SplatError(f"{name} is also the name of a type of splat_py's own; rename yours")
    return UserType(name, module.text, _THROUGH.get(interface, ""))
