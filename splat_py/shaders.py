"""The functions of `slang/splat` and `slang/parallel`, one at a time, on NumPy arrays: for notebooks and unit tests.

A Slang module is an attribute of this one, compiled when it is first asked for, and has its public functions:

    from splat_py import shaders

    R = shaders.gaussian.quatToRotation(quats)  # [N, 4] → [N, 3, 3]

    # A generic's arguments stand in brackets.
    rgb = shaders.spherical_harmonics.shColor[16](directions, sh)

    # Structs are dicts.
    gaussians = {"mean": means, "quat": quats, "scale": scales, "opacity": opacities}
    splats = shaders.projection.projectGaussian["Pinhole"](gaussians, camera, image, settings)

    # The gradient of Σ depth for every argument.
    v_gaussians, v_camera, _, _ = shaders.gradients(
        shaders.projection.projectGaussian["Pinhole"], {"depth": 1.0}, gaussians, camera, image, settings)

Any argument may have leading batch dimensions, which broadcast; what a batch shares gets the batch's sum as
its gradient. `dir(shaders.projection)` lists what there is. `load` serves a Slang file of your own, which
may import `splat.projection` and the others. SlangPy does the work: `shaders.gaussian.sigmoid.slangpy`
is its function object, with `.bwds`, `.map` and all the rest. Nothing here is fast: a call copies its arrays
to the device and back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import slangpy as spy
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import reason
from splat_py.gpu.compiler_messages import first_error
from splat_py.gpu.device import Device, slang_device
from splat_py.gpu.sources import shader_folder
from splat_py.shader_values import Value, batch_shapes, bind, constant, gradient, products, to_numpy, variable

_PUBLIC_FUNCTION = re.compile(r"^(?:\[\w+\] )*public [\w<>\[\], ]+? (\w+)(<[^()\n]*>)?\(", re.MULTILINE)
_PUBLIC_STRUCT = re.compile(r"^public struct (\w+)", re.MULTILINE)
_IMPORT = re.compile(r"^(?:__exported )?import ([\w.]+);", re.MULTILINE)
_REFERENCE = re.compile(r'(?:\bimport|\b__include|\bimplementing|#\s*include)\s*(?:"([^"\n]+)"|([\w.]+)\s*;)')
# Where the modules lie that are attributes of this one.
_FOLDERS = ("splat", "parallel")

# Modules, by device and file, and the content that they were made from; of what could not be compiled, why.
_loaded: dict[tuple[Device, Path], tuple[dict[Path, bytes], ShaderModule | str]] = {}


class ShaderFunction:
    """A Slang function that takes and returns NumPy arrays."""

    def __init__(self, module: ShaderModule, name: str, parameters: str = "") -> None:
        self._module = module
        self._name = name
        # Of a generic that has no arguments yet, as the source has them: "<let K : int>".
        self._parameters = parameters

    def __repr__(self) -> str:
        return f"{self._module.name}.{self._name}{self._parameters}"

    def __getitem__(self, arguments: Any) -> ShaderFunction:
        """A generic function with its arguments: `shColor[16]` is Slang's `shColor<16>`.

        Types are named, of any of our modules, or given as a module of yours that declares one.
        """
        given = arguments if isinstance(arguments, tuple) else (arguments,)
        parameters = self._parameters.strip("<>").split(",")
        names, theirs = [], []
        for argument, parameter in zip_longest(given, parameters[: len(given)], fillvalue=""):
            if isinstance(argument, ShaderModule):
                interface = re.match(r"\s*\w+ : (\w+)", parameter)
                if interface is None:
                    raise SplatError(f"{self!r} takes a number where {argument.name} is given")
                theirs.append(argument.path)
                argument = argument.type_of(interface[1])
            names.append(str(argument))
        several = ", ".join(names)
        return ShaderFunction(self._module.importing(several, tuple(theirs)), f"{self._name}<{several}>")

    @property
    def slangpy(self) -> spy.Function:
        """SlangPy's function object."""
        self._require_arguments()
        return self._module.slangpy.require_function(self._name)

    @property
    def reflection(self) -> Any:
        """SlangPy's description of the parameters and of the result."""
        self._require_arguments()
        found = self._module.slangpy.layout.find_function_by_name(self._name)
        if found is None:
            raise SplatError(f"{self._module.name} has no function {self._name}; what stands in brackets does not fit")
        return found

    def __call__(self, *arguments: Value) -> Any:
        """The result [batch, …]: an array, a struct's dict, or a number; `out` arrays are set.

        Raises:
            SplatError: the arguments are too few or too many, or a struct lacks a field or has one too many.
        """
        result = to_numpy(self.reflection.return_type, self.slangpy(*self._bind(arguments, constant)))
        if isinstance(result, bool):
            # SlangPy reads a lone bool as false, but one in a batch as it is.
            *others, last = arguments
            batch = (
                {name: np.asarray(v)[None] for name, v in last.items()} if isinstance(last, dict) else np.asarray(last)[None]
            )
            return self(*others, batch)[0]
        return result

    def _bind(self, arguments: Sequence[Value], leaf: Callable[[NDArray], Any]) -> list[Any]:
        parameters = self.reflection.parameters
        if len(arguments) != len(parameters):
            names = ", ".join(parameter.name for parameter in parameters)
            raise SplatError(f"{self!r} takes {len(parameters)} arguments ({names}), not {len(arguments)}")
        bound = []
        for parameter, value in zip(parameters, arguments, strict=True):
            differentiated = parameter.type.differentiable and not parameter.no_diff
            what = f"argument {parameter.name} of {self!r}"
            if parameter.io_type.name == "out":
                bound.append(value)
            else:
                bound.append(bind(parameter.type, value, what, leaf if differentiated else constant))
        return bound

    def gradients(self, v_output: Value, *arguments: Value) -> tuple[Any, ...]:
        """See `gradients` of this Python module."""
        if not self.reflection.differentiable:
            raise SplatError(f"{self!r} has no gradients: it is not marked [Differentiable]")
        handle = self._module.device.handle
        result = self.reflection.return_type
        weights = bind(result, v_output, f"v_output of {self!r}", constant, partial=True)
        bound = self._bind(arguments, lambda array: variable(handle, array))
        batch = np.broadcast_shapes(
            *batch_shapes(result, weights),
            *(
                shape
                for parameter, value in zip(self.reflection.parameters, arguments, strict=True)
                for shape in batch_shapes(parameter.type, value)
            ),
        )
        one = spy.Tensor.from_numpy(handle, np.ones(batch or 1, np.float32))
        # SlangPy may write the value, so that needs memory of its own.
        product = spy.Tensor.from_numpy(handle, np.zeros(batch or 1, np.float32))
        product = product.with_grads(grad_in=one, zero=False)
        self._module.inner_product(self._name).bwds(*bound, weights, product)
        return tuple(gradient(*pair) for pair in zip(arguments, bound, strict=True))

    def _require_arguments(self) -> None:
        if self._parameters:
            raise SplatError(f"{self!r} is generic; give its arguments in brackets: {self._name}[…]")


class ShaderModule:
    """A Slang module; its public functions are attributes."""

    def __init__(
        self, device: Device, path: Path, session: spy.SlangSession | None = None, types: tuple[Path, ...] = ()
    ) -> None:
        self.device = device
        self._session = session or device.handle
        self.path = path
        self.name = path.stem
        self._unique_name = re.sub(r"\W", "_", "_".join((path.as_posix(), *(file.stem for file in types))))
        self.text = source = path.read_text(encoding="utf-8")
        self._functions: dict[str, str] = dict(_PUBLIC_FUNCTION.findall(source))
        # SlangPy generates code with the parameters' types in it, so that must see what the module imports.
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
        """The name of the type that implements an interface.

        Raises:
            SplatError: there is none, or more than one.
        """
        names = types_of(self.text, interface)
        if len(names) != 1:
            found = f"{len(names)} types ({', '.join(names)})" if names else "no type"
            mine = f"struct Mine : {interface.split()[0]}"
            name = "the source" if self.name.startswith("source_") else self.name
            raise SplatError(f"{name} has {found} that implements {interface}; declare one: {mine}")
        return names[0]

    def importing(self, arguments: str, files: tuple[Path, ...] = ()) -> ShaderModule:
        """The module, with files and the types that a generic's arguments name and that it does not import itself."""
        named = set(re.findall(r"[A-Za-z]\w*", arguments))
        types = files + tuple(
            file
            for file in (_library() if named else ())
            if file not in self._files and named & set(_PUBLIC_STRUCT.findall(file.read_text(encoding="utf-8")))
        )
        if types not in self._importing:
            self._importing[types] = ShaderModule(self.device, self.path, self._session, types)
        return self._importing[types]

    def inner_product(self, name: str) -> spy.Function:
        """⟨f(x), v⟩ as a function of x and v, with the derivative v·∂f/∂x.

        Through it a struct result can be differentiated as well, of which SlangPy itself takes no gradient.
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
            module = self._compile(f"_{name}", source)
            self._inner_products[name] = module.require_function("innerProduct")
        return self._inner_products[name]

    def _compile(self, suffix: str, source: str) -> spy.Module:
        name = f"shaders{self._unique_name}{suffix}"
        return spy.Module(self._session.load_module_from_source(name, self._imports + source))


def gradients(function: ShaderFunction, v_output: Value, *arguments: Value) -> tuple[Any, ...]:
    """dL/d(argument) of every argument of a differentiable function, from `v_output` = dL/d(result).

    Args:
        function: for example `shaders.projection.projectGaussian`.
        v_output: [batch, …] like the result; in a struct's dict what is left out counts as zero.
        arguments: the function's.

    Returns:
        One for each argument, of its shape, as arrays, dicts for structs, None for what is not differentiated.

    Raises:
        SplatError: the function is not differentiable, or as for a call.
    """
    return function.gradients(v_output, *arguments)


def types_of(source: str, interface: str) -> list[str]:
    """The names of the types that implement an interface in a source."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    return re.findall(rf"\bstruct\s+(\w+)\s*:[^{{;]*\b{interface}\b", code)


def load(path: str | Path) -> ShaderModule:
    """A Slang file of your own, which may import all of `splat.…`; its public functions become attributes.

    The same file is the same module, until the file or one that it imports has another content: then it is compiled again.

    Raises:
        SplatError: the file cannot be read or compiled; the message says why.
    """
    device, file = slang_device(), Path(path).resolve()
    if not file.is_file():
        raise SplatError(f"{path} does not exist or is not a file; name a Slang file")
    if file.suffix != ".slang":
        # The compiler would look for another file, of this name and that ending.
        raise SplatError(f"{path} does not end in .slang; rename it")
    try:
        content = _content(file)
        known = _loaded.get((device, file))
        if known is None or known[0] != content:
            # The compiler reads a file once a session, and takes one that it has refused, or not found, for good the next time.
            own = known is not None or _imports_others(content)
            session = device.handle.create_slang_session(device.compiler_options) if own else None
            known = _loaded[device, file] = content, _compiled(device, file, session)
    except (OSError, ValueError) as error:
        raise SplatError(f"{path} cannot be read: {reason(error)}; name a Slang file") from error
    if isinstance(known[1], str):
        raise SplatError(f"{path} cannot be compiled: {known[1]}")
    return known[1]


def _compiled(device: Device, file: Path, session: spy.SlangSession | None) -> ShaderModule | str:
    """The module, or why it cannot be compiled."""
    try:
        return ShaderModule(device, file, session)
    except (OSError, ValueError):
        raise
    except Exception as error:  # SlangPy's own, which has another name in each version
        return first_error(str(error))


def __getattr__(name: str) -> Any:
    if name == "source":
        return import_module("splat_py.user_types").source
    if name == "check":
        return import_module("splat_py.user_type_checks").check
    for path in _library():
        if path.stem == name:
            return load(path)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "source", "check", *(file.stem for file in _library())]


def _library() -> list[Path]:
    return [file for folder in _FOLDERS for file in sorted((shader_folder() / folder).glob("*.slang"))]


def _content(file: Path) -> dict[Path, bytes]:
    """A file, and all that it imports or includes and that lies beside it or among ours."""
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
    """Of each import and include of a source, the names that its file may have."""
    for quoted, name in _REFERENCE.findall(content.decode(errors="replace")):
        yield {quoted} if quoted else {f"{name.replace('.', '/').replace('_', dash)}.slang" for dash in "_-"}


def _imports_others(content: dict[Path, bytes]) -> bool:
    """Whether a source refers to files that are not ours, or that are nowhere."""
    ours = shader_folder()
    wanted = [names for text in content.values() for names in _references(text)]
    return any(not any((ours / name).is_file() for name in names) for names in wanted)


@cache
def library_types() -> frozenset[str]:
    """The names of all public types of ours."""
    return frozenset(name for file in _library() for name in _PUBLIC_STRUCT.findall(file.read_text(encoding="utf-8")))


def _imported(source: str) -> Iterator[Path]:
    """The files of ours that a source imports, and those that these import."""
    for name in _IMPORT.findall(source):
        file = shader_folder() / f"{name.replace('.', '/')}.slang"
        if file.is_file():
            yield file
            yield from _imported(file.read_text(encoding="utf-8"))
