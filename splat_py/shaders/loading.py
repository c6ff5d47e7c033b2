"""The caller's own Slang: files and text as modules, and types in them that kernels are linked with."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from splat_py.base.errors import SplatError
from splat_py.base.files import reason
from splat_py.gpu.device import Device, compiler_options, slang_device
from splat_py.gpu.kernels import UserType
from splat_py.gpu.messages import first_error
from splat_py.gpu.sources import shader_folder
from splat_py.shaders.declarations import BUILT_IN, MOST_NUMBERS, fields_of, types_of
from splat_py.shaders.functions import ShaderModule, library, public_types, source_file

_REFERENCE = re.compile(r'(?:\bimport|\b__include|\bimplementing|#\s*include)\s*(?:"([^"\n]+)"|([\w.]+)\s*;)')

# Brackets, with a `for` before them, semicolons, and structs named like a number or vector; comments and strings hide others.
_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|(?:\bfor\s*)?\(|[)\[\]{};]"""
    r"""|\bstruct\s+(?:bool|half|float|double|u?int)(?:8|16|32|64)?(?:_t)?(?:\d(?:x\d)?)?\b""",
    re.DOTALL,
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
# By device and file: the content that a module was made from, and the module, or the reason why it does not compile.
_loaded: dict[tuple[Device, Path], tuple[dict[Path, bytes], ShaderModule | str]] = {}


def load(path: str | Path) -> ShaderModule:
    """Load your own Slang file, which may import all of `splat.…`; its public functions become attributes.

    The same file gives the same module until it or one of its imports changes; then it is compiled again.

    Raises:
        SplatError: the file cannot be read or compiled; the message says why.
    """
    device, file = slang_device(), Path(path).resolve()
    if not file.is_file():
        raise SplatError(f"{path} does not exist or is not a file; name a Slang file")
    if file.suffix != ".slang":
        # The compiler would add the ending and look for another file.
        raise SplatError(f"{path} does not end in .slang; rename it")
    try:
        content = _content(file)
        before, module = _loaded.get((device, file), (None, ""))
        if before != content:
            # A session reads each file once, and later accepts one that it refused or did not find: changed files need another.
            own = before is not None or _imports_others(content)
            options = compiler_options(device.adapter.backend)
            try:
                module = _ends_the_compiler(content[file].decode()) or ShaderModule(
                    device, file, device.handle.create_slang_session(options) if own else None
                )
            except (OSError, ValueError):
                raise
            except Exception as error:  # SlangPy's own error, with another name in each version
                module = first_error(str(error))
            _loaded[device, file] = content, module
    except (OSError, ValueError) as error:
        raise SplatError(f"{path} cannot be read: {reason(error)}; name a Slang file") from error
    if isinstance(module, str):
        raise SplatError(f"{path} cannot be compiled: {module}")
    return module


def _ends_the_compiler(text: str) -> str:
    """Name the mistake that may end the process in Slang 2026.12: a bracket that is not closed, in a differentiable function,
    or a struct that takes a built-in type's name. Empty if there is none, or if a preprocessor may choose."""
    if re.search(r"^\s*#", text, re.MULTILINE):
        return ""
    # Place, bracket, and how many semicolons it may still hold.
    opened: list[list[Any]] = []
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token.startswith("struct"):
            return f"line {_line_at(text, found.start())}: {token.split()[1]} is a built-in type's name"
        if token[-1] in _CLOSING and not token.startswith("//"):
            opened.append([found.start(), token[-1], {"{": np.inf, "f": 2}.get(token[0], 0)])
        elif opened and token == ";":
            opened[-1][2] -= 1
            if opened[-1][2] < 0:
                break
        elif opened and token in _CLOSING.values():
            if token != _CLOSING[opened[-1][1]]:
                break
            opened.pop()
    return f"line {_line_at(text, opened[-1][0])}: {opened[-1][1]} is not closed" if opened else ""


def _line_at(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def built_in(name: str) -> ShaderModule:
    """The module of slang/splat or slang/parallel with this name."""
    return load({file.stem: file for file in library()}[name])


def source(text: str) -> ShaderModule:
    """Load your own Slang source, which may import all of `splat.…`; its public functions become attributes.

    A module that declares a type can be given wherever the name of a built-in type with the same interface can.

    Raises:
        SplatError: the source is not text, or cannot be compiled; the message has the line.
    """
    if not isinstance(text, str):
        raise SplatError(f"the source is a {type(text).__name__}; give the text, or load a file: splat_py.shaders.load(path)")
    path = source_file(text)
    try:
        return load(path)
    except SplatError as error:
        raise SplatError(str(error).replace(str(path), "the source")) from error


# Adapters: a type that implements one of these interfaces is wrapped in a generic type, which kernels accept.
_ADAPTERS = {
    "IFalloff3D": "Falloff3DAdapter",
    "IFalloff2D": "Falloff2DAdapter",
    "ISplatColor": "SplatColorHits",
    "IWindshield": "BehindWindshield",
}


def user_type(module: ShaderModule | UserType, *interfaces: str) -> UserType:
    """Return the type of a module that implements an interface, the first of `interfaces` that any type implements."""
    found = {interface: types_of(module.text, interface) for interface in interfaces}
    if isinstance(module, UserType):
        found = {interface: names for interface, names in found.items() if module.name in names}
    interface = next((interface for interface, names in found.items() if names), " or ".join(sorted(interfaces)))
    name = module.name if isinstance(module, UserType) else module.type_of(interface)
    if not name.isascii():
        raise SplatError(f"{name} is not a name that every compiler accepts; use letters from A to Z, digits and _")
    ours = isinstance(module, ShaderModule) and module.path.is_relative_to(shader_folder())
    if name in _taken_names() and not ours:
        raise SplatError(f"{name} is also the name of a splat_py type; rename yours")
    return UserType(name, module.text, _ADAPTERS.get(interface, ""))


# The interface that a type has when kernels are linked with it, by its adapter.
_STORED = {"": "IStoredFalloff", "Falloff2DAdapter": "IStoredFalloff2D", "Falloff3DAdapter": "IStoredFalloff3D"}
_STORED |= {"SplatColorHits": "IStoredColor"}


@lru_cache(maxsize=64)
def with_numbers(names: tuple[str, ...], *types: UserType) -> tuple[UserType, ...]:
    """Return a source's splat types as kernels are linked with them, which store the numbers `names` in this order. SplatError
    unless these are the types' fields."""
    fields = {kind.name: fields_of(kind.text, kind.name) for kind in types}
    wanted = list(dict.fromkeys(name for each in fields.values() for name in each))
    if len(fields) < len(types):
        raise SplatError(f"{types[0].name} is a falloff and a colour; declare a struct for each, which may share fields")
    if len(wanted) > MOST_NUMBERS:
        raise SplatError(f"the source has {len(wanted)} numbers of each splat; a splat has {MOST_NUMBERS} at most")
    if set(wanted) != set(names):
        raise SplatError(
            f"splat_params has {', '.join(names) or 'nothing'}; the fields of {' and '.join(fields)} are "
            f"{', '.join(wanted) or 'none'}: give one parameter for each, by name"
        )
    text = types[0].text
    for kind in types:
        read = "".join(f" own.{n} = extras[{names.index(n) // 4}][{names.index(n) % 4}];" for n in fields[kind.name])
        of = f"[Differentiable] static {kind.name} of(float4x4 extras) {{ {kind.name} own;{read} return own; }}"
        text += f"\nextension {kind.name} : {_STORED[kind.adapter]} {{ {of} }}"
    return tuple(replace(kind, text=text) for kind in types)


def shape_of(falloff: UserType) -> UserType:
    """The shape of a falloff of the image or of space."""
    return replace(falloff, adapter=falloff.adapter.replace("Adapter", "Shape"))


@cache
def _taken_names() -> frozenset[str]:
    """The names of all public types of splat_py, and of built-in splats."""
    return frozenset(BUILT_IN).union(*map(public_types, library()))


def built_in_or_own(option: str, given: Any, names: Iterable[str], *interfaces: str) -> str | UserType:
    """Check an option's value: a built-in type's name, or the caller's own type, which implements one of the interfaces."""
    if isinstance(given, UserType | ShaderModule):
        return user_type(given, *interfaces)
    if not isinstance(given, str) or given not in names:
        said = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
        raise SplatError(f"{option} is {said}; use {', '.join(names)}, or a type from splat_py.shaders.source")
    return given


def _content(file: Path) -> dict[Path, bytes]:
    """Read a file and all files that it imports or includes, beside it or from splat_py."""
    content: dict[Path, bytes] = {}
    new = [file]
    while new:
        path = new.pop()
        if path in content or not path.is_file():
            continue
        content[path] = path.read_bytes()
        for names in _references(content[path]):
            new += [folder / name for folder in (path.parent, shader_folder()) for name in names]
    return content


def _references(content: bytes) -> Iterator[set[str]]:
    """Yield the names that the file of each import and include of a source may have."""
    for quoted, name in _REFERENCE.findall(content.decode(errors="replace")):
        yield {quoted} if quoted else {f"{name.replace('.', '/').replace('_', dash)}.slang" for dash in "_-"}


def _imports_others(content: dict[Path, bytes]) -> bool:
    """True if a source refers to files outside splat_py, or to missing files."""
    ours = shader_folder()
    wanted = [names for text in content.values() for names in _references(text)]
    return any(not any((ours / name).is_file() for name in names) for names in wanted)
