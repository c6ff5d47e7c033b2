"""Slang modules and functions as Python objects that take and return NumPy arrays: numbers, arrays, and dicts for structs."""

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import slangpy as spy
from numpy.typing import NDArray
from slangpy.reflection import StructType

from splat_py.base.errors import SplatError
from splat_py.base.files import temporary_files
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import UserType
from splat_py.gpu.sources import shader_folder
from splat_py.shaders.declarations import SlangSource, types_of

# A number, anything that NumPy makes an array of, a dict of these for a struct, or one of SlangPy's own objects.
Value: TypeAlias = Any

_SCALAR = re.compile("float|half|double|uint|int|bool")
_DTYPES: dict[str, Any] = {"float": np.float32, "half": np.float16, "double": np.float64}
_DTYPES |= {"uint": np.uint32, "int": np.int32, "bool": np.bool_}


def products(slang_type: Any, path: str = "") -> Iterator[str]:
    """Yield the products of all numbers in result_ with those in v_, in Slang."""
    if isinstance(slang_type, StructType):
        for name, field in slang_type.fields.items():
            yield from products(field.type, f"{path}.{name}")
    else:
        for index in np.ndindex(*slang_type.shape):
            element = path + "".join(f"[{i}]" for i in index)
            yield f"result_{element} * v_{element}"


def dtype_of(slang_type: Any) -> np.dtype:
    """The NumPy type of a number, or of the numbers in a vector, matrix or array."""
    scalar = _SCALAR.search(slang_type.full_name)
    if scalar is None:
        raise SplatError(f"Slang's {slang_type.full_name} has no NumPy equivalent; use the function's `.slangpy`")
    return np.dtype(_DTYPES[scalar.group()])


def bind(slang_type: Any, value: Value, what: str, leaf: Callable[[NDArray], Any], *, partial: bool = False) -> Any:
    """Convert a value for SlangPy: `leaf` of each array, in dicts for structs; `partial` fills missing fields with zeros."""
    if _is_slangpys(value):
        return value
    if not isinstance(slang_type, StructType):
        return leaf(np.array(value, dtype_of(slang_type), order="C"))
    fields = slang_type.fields
    if not isinstance(value, dict) or not (partial or set(fields) <= set(value)) or set(value) - set(fields):
        given = f"a dict of {', '.join(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
        raise SplatError(f"{what} is {given}; give a dict of {', '.join(sorted(fields))}")

    filled: dict[str, Value] = dict(value)
    for name in fields.keys() - value.keys():
        kind = fields[name].type
        filled[name] = {} if isinstance(kind, StructType) else np.zeros(tuple(kind.shape))
    return {name: bind(f.type, filled[name], f"{name} of {what}", leaf, partial=partial) for name, f in fields.items()}


def _is_slangpys(value: Value) -> bool:
    """True if a value is a SlangPy tensor, buffer or the like, which is passed on unchanged."""
    return type(value).__module__.startswith("slangpy")


def constant(array: NDArray) -> Any:
    # SlangPy does not accept arrays without dimensions.
    return array if array.ndim else array.item()


def gradient(value: Value, bound: Any) -> Any:
    """Return the gradient that `.bwds` stored with `bound`, which `value` was bound to."""
    if isinstance(bound, dict):
        fields = {name: gradient(value[name], field) for name, field in bound.items()}
        return None if fields and all(field is None for field in fields.values()) else fields
    if value is bound or not hasattr(bound, "grad"):
        return None
    return bound.grad.to_numpy().reshape(np.shape(value))


def batch_shapes(slang_type: Any, value: Value) -> Iterator[tuple[int, ...]]:
    """Yield the leading dimensions of every array in a value."""
    if _is_slangpys(value):
        return
    if isinstance(slang_type, StructType):
        for name in value:
            yield from batch_shapes(slang_type.fields[name].type, value[name])
    else:
        shape = np.shape(value)
        yield shape[: len(shape) - len(slang_type.shape)]


def to_numpy(slang_type: Any, result: Any) -> Any:
    """Convert a result of SlangPy to numbers, arrays and dicts of them."""
    if result is None:
        return None
    if hasattr(result, "cursor"):
        # SlangPy's own `to_numpy` shows structs as bytes and reads bools with the wrong stride.
        layout = result.cursor().element_type_layout
        size = int(np.prod(result.shape)) * layout.stride
        rows = result.storage.to_numpy().view(np.uint8)[:size].reshape(*result.shape, layout.stride)
        return _from_bytes(slang_type, layout, rows)
    if isinstance(result, dict):
        return {name: to_numpy(slang_type.fields[name].type, value) for name, value in result.items()}
    if np.isscalar(result):
        return result
    return np.array(result.to_numpy() if hasattr(result, "to_numpy") else result, dtype_of(slang_type))


def _from_bytes(slang_type: Any, layout: Any, rows: NDArray[np.uint8]) -> Any:
    """Read the values [batch, …] at the beginning of `rows` [batch, bytes]."""
    if isinstance(slang_type, StructType):
        types = {name: field.type for name, field in slang_type.fields.items()}
        return {
            field.name: _from_bytes(types[field.name], field.type_layout, rows[..., field.offset :]) for field in layout.fields
        }
    shape = tuple(slang_type.shape)
    values = np.ascontiguousarray(rows[..., : layout.size])
    if dtype_of(slang_type) == np.bool_:
        return values.reshape(*rows.shape[:-1], *shape, -1).any(axis=-1)
    return values.view(dtype_of(slang_type)).reshape(*rows.shape[:-1], *shape)


_PUBLIC_FUNCTION = re.compile(r"^(?:\[\w+\] )*public [\w<>\[\], ]+? (\w+)(<[^()\n]*>)?\(", re.MULTILINE)
_PUBLIC_TYPE = re.compile(r"^public (?:struct|typealias) (\w+)", re.MULTILINE)
_IMPORT = re.compile(r"^(?:__exported )?import ([\w.]+);", re.MULTILINE)


class ShaderFunction:
    """A Slang function that takes and returns NumPy arrays."""

    def __init__(self, module: "ShaderModule", name: str, parameters: str = "") -> None:
        self._module = module
        self.name = name
        # A generic's parameters as in the source, "<let K : int>", until it has arguments.
        self._parameters = parameters

    def __repr__(self) -> str:
        return f"{self._module.name}.{self.name}{self._parameters}"

    def __getitem__(self, arguments: Any) -> "ShaderFunction":
        """Give a generic function its arguments: `shColor[16]` is Slang's `shColor<16>`.

        A type is the name of a built-in one, your own module that declares one, or the type of a scene, such as
        `Gaussians.splat`, that is trusted.
        """
        given = arguments if isinstance(arguments, tuple) else (arguments,)
        parameters = self._parameters.strip("<>").split(",")
        names, theirs = [], []
        for argument, parameter in zip_longest(given, parameters[: len(given)], fillvalue=""):
            if isinstance(argument, SlangSource):
                raise SplatError(
                    f"{argument.name} is source from a file, not trusted yet; call trust_source() of what it belongs to"
                )
            if isinstance(argument, ShaderModule | UserType):
                interface = re.match(r"\s*\w+ : (\w+)", parameter)
                if interface is None:
                    raise SplatError(f"{self!r} takes a number where {argument.name} is given")
                argument, path = _type_in(argument, interface[1])
                theirs.append(path)
            names.append(str(argument))
        several = ", ".join(names)
        return ShaderFunction(self._module.importing(several, tuple(theirs)), f"{self.name}<{several}>")

    @property
    def slangpy(self) -> spy.Function:
        """SlangPy's function object."""
        self._require_arguments()
        return self._module.slangpy.require_function(self.name)

    @property
    def reflection(self) -> Any:
        """SlangPy's description of the parameters and of the result."""
        self._require_arguments()
        found = self._module.slangpy.layout.find_function_by_name(self.name)
        if found is None:
            raise SplatError(f"{self._module.name} has no function {self.name}; the arguments in brackets do not fit")
        return found

    def __call__(self, *arguments: Value) -> Any:
        """Call the function: return [batch, …] as an array, a struct's dict, or a number; `out` arrays are set."""
        result = to_numpy(self.reflection.return_type, self.slangpy(*self._bind(arguments, constant)))
        if isinstance(result, bool):
            # SlangPy reads a lone bool as false, but one in a batch correctly.
            *others, last = arguments
            batch = (
                {name: np.asarray(v)[None] for name, v in last.items()} if isinstance(last, dict) else np.asarray(last)[None]
            )
            return self(*others, batch)[0]
        return result

    def gradients(self, v_output: Value, *arguments: Value) -> tuple[Any, ...]:
        if not self.reflection.differentiable:
            raise SplatError(f"{self!r} has no gradients: it is not marked [Differentiable]")
        handle, result = self._module.device.handle, self.reflection.return_type
        differentiated = [p.type for p in self.reflection.parameters if p.type.differentiable and not p.no_diff]
        if any("double" in kind.full_name for kind in (result, *differentiated)):
            raise SplatError(f"{self!r} takes or returns double, which SlangPy does not differentiate; use float")
        weights = bind(result, v_output, f"v_output of {self!r}", constant, partial=True)
        bound = self._bind(arguments, lambda array: spy.Tensor.from_numpy(handle, np.atleast_1d(array)).with_grads())
        shapes = list(batch_shapes(result, weights))
        for parameter, value in zip(self.reflection.parameters, arguments, strict=True):
            shapes += batch_shapes(parameter.type, value)
        batch = np.broadcast_shapes(*shapes) or 1
        # SlangPy may write the value, so it needs its own memory.
        one, value = (spy.Tensor.from_numpy(handle, fill(batch, np.float32)) for fill in (np.ones, np.zeros))
        product = value.with_grads(grad_in=one, zero=False)
        self._module.inner_product(self.name).bwds(*bound, weights, product)
        return tuple(gradient(*pair) for pair in zip(arguments, bound, strict=True))

    def _bind(self, arguments: Sequence[Value], leaf: Callable[[NDArray], Any]) -> list[Any]:
        parameters = self.reflection.parameters
        if len(arguments) != len(parameters):
            names = ", ".join(parameter.name for parameter in parameters)
            raise SplatError(f"{self!r} takes {len(parameters)} arguments ({names}), not {len(arguments)}")
        bound = []
        for parameter, value in zip(parameters, arguments, strict=True):
            convert = leaf if parameter.type.differentiable and not parameter.no_diff else constant
            what, is_out = f"argument {parameter.name} of {self!r}", parameter.io_type.name == "out"
            bound.append(value if is_out else bind(parameter.type, value, what, convert))
        return bound

    def _require_arguments(self) -> None:
        if self._parameters:
            raise SplatError(f"{self!r} is generic; give its arguments in brackets: {self.name}[…]")


class ShaderModule:
    """A Slang module; its public functions are attributes."""

    def __init__(
        self, device: Device, path: Path, session: spy.SlangSession | None = None, types: tuple[Path, ...] = ()
    ) -> None:
        self.device = device
        self.session = session or device.handle
        self.path = path
        self.name = path.stem
        self._unique_name = re.sub(r"\W", "_", "_".join((path.as_posix(), *(file.stem for file in types))))
        self.text = source = path.read_text(encoding="utf-8")
        self._functions: dict[str, str] = dict(_PUBLIC_FUNCTION.findall(source))
        # SlangPy generates code that names the parameters' types, so it must see the module's imports.
        self._files = list(dict.fromkeys([path, *_imported(source), *types]))
        self._imports = "".join(f'__exported import "{file.as_posix()}";\n' for file in self._files)
        self.slangpy = self._compile("", "")
        self._inner_products: dict[str, spy.Function] = {}
        self._importing: dict[tuple[Path, ...], ShaderModule] = {(): self}

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._functions]

    def __repr__(self) -> str:
        return f"{self.name}: {', '.join(name + generic for name, generic in self._functions.items())}"

    def __getattr__(self, name: str) -> ShaderFunction:
        if name.startswith("_") or name not in self._functions:
            raise AttributeError(f"no public function {name} in {self!r}")
        return ShaderFunction(self, name, self._functions[name])

    def type_of(self, interface: str) -> str:
        """The name of the type that implements an interface."""
        return _only_type(self.text, interface, "the source" if self.name.startswith("source_") else self.name)

    def importing(self, arguments: str, files: tuple[Path, ...] = ()) -> "ShaderModule":
        """The module with more imports: `files`, and the built-in types that a generic's arguments name."""
        named = set(re.findall(r"[A-Za-z]\w*", arguments))
        types = files + tuple(
            file for file in (library() if named else ()) if file not in self._files and named & public_types(file)
        )
        if types not in self._importing:
            self._importing[types] = ShaderModule(self.device, self.path, self.session, types)
        return self._importing[types]

    def inner_product(self, name: str) -> spy.Function:
        """⟨f(x), v⟩ as a function of x and v, with the derivative v·∂f/∂x.

        It also differentiates functions that return structs, for which SlangPy itself accepts no gradient.
        """
        if name not in self._inner_products:
            function = self.slangpy.layout.find_function_by_name(name)
            parameters = [
                f"{'no_diff ' if parameter.no_diff else ''}{parameter.type.full_name} {parameter.name}"
                for parameter in function.parameters
            ]
            names = ", ".join(parameter.name for parameter in function.parameters)
            result = function.return_type.full_name
            source = f"""
                [Differentiable]
                public float innerProduct({", ".join(parameters)}, no_diff {result} v_)
                {{
                    {result} result_ = {name}({names});
                    return {" + ".join(products(function.return_type))};
                }}"""
            self._inner_products[name] = self._compile(f"_{name}", source).require_function("innerProduct")
        return self._inner_products[name]

    def _compile(self, suffix: str, source: str) -> spy.Module:
        name = f"shaders{self._unique_name}{suffix}"
        return spy.Module(self.session.load_module_from_source(name, self._imports + source))


def _type_in(own: ShaderModule | UserType, interface: str) -> tuple[str, Path]:
    """The name of the type that implements an interface in one's own Slang, and its file."""
    if isinstance(own, ShaderModule):
        return own.type_of(interface), own.path
    adapts = re.compile(rf"^public struct {own.adapter}<.*> : {interface}\b", re.MULTILINE)
    if own.adapter and any(adapts.search(file.read_text(encoding="utf-8")) for file in library()):
        name = f"{own.adapter}<{own.name}>"
    else:
        name = own.name if own.name in types_of(own.text, interface) else _only_type(own.text, interface, "the source")
    return name, source_file(own.text)


def _only_type(text: str, interface: str, name: str) -> str:
    names = types_of(text, interface)
    if len(names) != 1:
        found = f"{len(names)} types ({', '.join(names)})" if names else "no type"
        mine = f"struct Mine : {interface.split()[0]}"
        raise SplatError(f"{name} has {found} that implements {interface}; declare one: {mine}")
    return names[0]


def source_file(text: str) -> Path:
    """A temporary file with a source, the same one for the same text."""
    text = text.removeprefix("\ufeff").encode(errors="replace").decode()
    with temporary_files():
        path = Path(_folder().name) / f"source_{hashlib.sha256(text.encode()).hexdigest()[:16]}.slang"
        path.write_text(text, encoding="utf-8")
    return path


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="splat_py-", ignore_cleanup_errors=True)


def gradients(function: ShaderFunction, v_output: Value, *arguments: Value) -> tuple[Any, ...]:
    """Return dL/d(argument) for every argument of a differentiable function, from `v_output` = dL/d(result).

    Args:
        function: for example `shaders.projection.projectGaussian`.
        v_output: [batch, …] like the result; missing fields in a struct's dict count as zero.
        arguments: the function's arguments.

    Returns:
        One gradient for each argument, with its shape: an array, a dict for a struct, None if it is not differentiated.

    Raises:
        SplatError: the function is not differentiable, or the arguments do not fit it.
    """
    return function.gradients(v_output, *arguments)


def library() -> list[Path]:
    """The files of splat_py's modules."""
    return [file for folder in ("splat", "parallel") for file in sorted((shader_folder() / folder).glob("*.slang"))]


def public_types(file: Path) -> set[str]:
    """The names of a file's public types."""
    return set(_PUBLIC_TYPE.findall(file.read_text(encoding="utf-8")))


def _imported(source: str) -> Iterator[Path]:
    """Yield splat_py's files that a source imports, directly or not."""
    for name in _IMPORT.findall(source):
        file = shader_folder() / f"{name.replace('.', '/')}.slang"
        if file.is_file():
            yield file
            yield from _imported(file.read_text(encoding="utf-8"))
