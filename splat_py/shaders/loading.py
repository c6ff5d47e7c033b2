"""The caller's own Slang: files and text as modules, types in them that kernels are linked with, and radiance
fields evaluated at single places, outside the volume renderer."""

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import slangpy as spy
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.base.files import reason, temporary_files
from splat_py.gpu.device import Device, compiler_options, slang_device
from splat_py.gpu.kernels import UserType
from splat_py.gpu.messages import first_error
from splat_py.gpu.sources import shader_folder
from splat_py.shaders.declarations import BUILT_IN, MOST_NUMBERS, constant_in, fields_of, types_of
from splat_py.shaders.functions import ShaderModule, library, public_types

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
    text = text.removeprefix("\ufeff").encode(errors="replace").decode()
    with temporary_files():
        path = Path(_folder().name) / f"source_{hashlib.sha256(text.encode()).hexdigest()[:16]}.slang"
        path.write_text(text, encoding="utf-8")
    try:
        return load(path)
    except SplatError as error:
        raise SplatError(str(error).replace(str(path), "the source")) from error


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="splat_py-", ignore_cleanup_errors=True)


# Adapters: a type that implements one of these interfaces is wrapped in a generic type, which kernels accept.
_ADAPTERS = {"IFalloff3D": "Falloff3DAdapter", "IFalloff2D": "Falloff2DAdapter", "ISplatColor": "SplatColorHits"}


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


# Kernels index the parameters of several replicas with 32 bits.
MOST_PARAMS = 1 << 26


def params_of(kind: UserType) -> int:
    """The number of a field function's parameters, PARAMS in its source."""
    count = constant_in(kind, "PARAMS")
    if not isinstance(count, int) or not 1 <= count <= MOST_PARAMS:
        raise SplatError(
            f"{kind.name} has PARAMS = {count}; say how many numbers it reads, 1 to {MOST_PARAMS:,}: "
            "static const int PARAMS = 100;"
        )
    return count


def first_values(kind: UserType, seed: int) -> NDArray[np.float32]:
    """Initial parameters [PARAMS], from `first` in the source."""
    count = params_of(kind)
    random = np.random.default_rng(seed).uniform(0, 1, count).astype(np.float32)
    first = built_in("field_function").firstOf[source(kind.text)]
    values = np.asarray(first(np.arange(count, dtype=np.uint32), random), np.float32).reshape(count)
    if not np.isfinite(values).all():
        raise SplatError(f"{kind.name}.first is not finite for number {int(np.argmin(np.isfinite(values)))}")
    return values


# A field function with its parameters in a SlangPy tensor.
_QUERIES = """
import slangpy;
import splat.field;
import splat.field_function;

struct TensorWeights : IFieldWeights
{
    Tensor<float, 1> numbers;
    AtomicTensor<float, 1> gradients;

    float load(uint index)
    {
        return numbers[index];
    }

    float[N] loadRow<let N : int>(uint first)
    {
        float found[N];
        for (int i = 0; i < N; i++)
            found[i] = numbers[first + i];
        return found;
    }

    void add(uint index, float v)
    {
        gradients.add(vector<uint, 1>(index), v);
    }

    void addRow<let N : int>(uint first, float v[N])
    {
        for (int i = 0; i < N; i++)
            add(first + i, v[i]);
    }
}

public float4 queryAt<Function : IFieldFunction>(
    Tensor<float, 1> numbers, AtomicTensor<float, 1> gradients, float3 place, float3 direction)
{
    TensorWeights weights = { numbers, gradients };
    return queryOf<Function, TensorWeights>(weights, place, direction);
}

public QueryGradient queryAt_bwd<Function : IFieldFunction>(
    Tensor<float, 1> numbers, AtomicTensor<float, 1> gradients, float3 place, float3 direction, float4 v)
{
    TensorWeights weights = { numbers, gradients };
    return queryOf_bwd<Function, TensorWeights>(weights, place, direction, v);
}
"""


class FieldQueries:
    """Values and gradients of a field function at places and in directions. `module` declares a type that implements
    `IFieldFunction`, or is the name of a built-in one."""

    def __init__(self, module: ShaderModule | str) -> None:
        queries = source(_QUERIES)
        self._handle = queries.device.handle
        self._query, self._query_bwd = queries.queryAt[module], queries.queryAt_bwd[module]

    def values(self, params: NDArray, place: NDArray, direction: NDArray) -> NDArray[np.float64]:
        """Return density and rgb [N, 4], for params [P], place [N, 3] and direction [N, 3]."""
        numbers, gradients = self._tensor(params), self._tensor(np.zeros(1))
        return np.asarray(self._query(numbers, gradients, _f32(place), _f32(direction)), np.float64)

    def gradients(
        self, params: NDArray, place: NDArray, direction: NDArray, v: NDArray
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Return the gradients of Σ v · values by params [P], place and direction [N, 3]."""
        numbers, gradients = self._tensor(params), self._tensor(np.zeros(len(params)))
        found = self._query_bwd(numbers, gradients, _f32(place), _f32(direction), _f32(v))
        return gradients.to_numpy(), np.asarray(found["place"]), np.asarray(found["direction"])

    def _tensor(self, values: NDArray) -> Any:
        return spy.Tensor.from_numpy(self._handle, _f32(values))


def _f32(values: NDArray) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, np.float32)
