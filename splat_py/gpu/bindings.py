"""The bindings of a kernel, and checks of a dispatch's arguments against them.

A kernel's globals are buffers, numbers, and structs of both. A struct's value is a Python object, most often a dataclass, with
the struct's fields as attributes: `viewmats` of `uniform Cameras cameras` is `cameras.viewmats`. Slang's names have Python's
spelling: `isectOffsets` is `isect_offsets`. An attribute that is None leaves its buffers unbound, for specialisations that do
not read them. A struct that is None has zeros for its numbers, too.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Self, TypeAlias

import numpy as np
import slangpy as spy

from splat_py.base.errors import BindingError
from splat_py.gpu.arrays import Array
from splat_py.gpu.sources import Globals, declared, mentioned

Uniform: TypeAlias = int | float | spy.uint2

# Distinct from None, which is a valid value.
_LACKING = object()

# The beginning of another word in a Slang name.
_WORD = re.compile(r"(?<=[a-z0-9])([A-Z])(?=([a-z])?)")

# By a buffer's element type: an array's dtypes, and the multiple that its size must be.
ELEMENTS = {
    "float": ((np.float32,), 1),
    "float2": ((np.float32,), 2),
    "float4": ((np.float32,), 4),
    "uint": ((np.uint32,), 1),
    "uint2": ((np.uint32,), 2),
    "int": ((np.int32,), 1),
    # Four floats (kernels/cpu/fields.slang).
    "uint64_t2": ((np.float32,), 4),
    # Two floats, or four halves.
    "uint64_t": ((np.float32, np.uint32), 2),
}


def _is_integer(value: Any, low: int, high: int) -> bool:
    is_integer = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    return is_integer and low <= value <= high


# By a uniform's type: a test for values that fit, and a description of them.
SCALARS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "float": (lambda value: type(value) is float or (isinstance(value, Real) and not isinstance(value, bool)), "a number"),
    "uint": (lambda value: _is_integer(value, 0, (1 << 32) - 1), "an integer from 0 to 2³² - 1"),
    "int": (lambda value: _is_integer(value, -(1 << 31), (1 << 31) - 1), "an integer from -2³¹ to 2³¹ - 1"),
    "uint2": (lambda value: isinstance(value, spy.uint2), "a uint2"),
}


@dataclass(frozen=True)
class Bindings:
    """The buffers and uniforms of an entry point. A dispatch may give the module's other globals too, so that entry points can
    be given alike. A buffer that a specialisation switches off is bound to None."""

    kernel: str  # its name in errors
    known: Globals  # all globals of its modules
    needed: Globals  # the globals that it refers to
    _checked: set[tuple[str, type]] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, module: str, entry: str, constants: Mapping[str, Any] | None = None) -> Self:
        """The bindings that an entry point of slang/kernels/<module>.slang declares."""
        path = f"kernels/{module}"
        types = tuple(sorted(value for value in (constants or {}).values() if isinstance(value, str)))
        return cls(f"{module}.{entry}", declared(path), mentioned(path, entry, types))

    @cached_property
    def _arguments(self) -> dict[str, list[tuple[tuple[str, ...], str, bool]]]:
        """By argument: the attributes that lead to each buffer and number in it, the global's name, and True for a buffer."""
        found: dict[str, list[tuple[tuple[str, ...], str, bool]]] = {}
        for name in (*self.known.buffers, *self.known.uniforms):
            argument, *attributes = (in_python(part) for part in name.split("."))
            found.setdefault(argument, []).append((tuple(attributes), name, name in self.known.buffers))
        return found

    @cached_property
    def _parts(self) -> dict[str, list[tuple[tuple[str, ...], str, bool]]]:
        """`_arguments` without what the entry point does not need, which costs as much to bind."""
        needed = self.needed.buffers.keys() | self.needed.uniforms.keys()
        return {argument: [part for part in parts if part[1] in needed] for argument, parts in self._arguments.items()}

    def values(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Uniform], dict[str, Array | None]]:
        """Return the needed uniforms and buffers of a dispatch by their names; BindingError if an argument lacks one, or has an
        array that its struct lacks."""
        uniforms: dict[str, Uniform] = {}
        buffers: dict[str, Array | None] = {}
        for argument, value in arguments.items():
            if argument == "options" and argument not in self._arguments:
                # Here, `options` only sets `extern` names.
                continue
            if argument not in self._arguments:
                known = ", ".join(self._arguments) or "none"
                raise BindingError(f"{self.kernel}: there is no argument {argument}; its arguments are {known}")
            for attributes, name, is_buffer in self._parts[argument]:
                found = value
                for attribute in attributes:
                    if found is None:
                        break
                    # Properties cost time: read each only once.
                    found = getattr(found, attribute, _LACKING)
                    if found is _LACKING:
                        kind = type(value).__name__
                        raise BindingError(f"{self.kernel}: {argument} is a {kind} without {attribute}, for {name}")
                if is_buffer:
                    buffers[name] = found
                elif found is not None or (value is None and attributes):
                    uniforms[name] = 0 if found is None else found
            self._check_fields(argument, type(value))
        return uniforms, buffers

    def _check_fields(self, argument: str, kind: type) -> None:
        """Check once per class of a value that the struct has all its array fields."""
        if (argument, kind) in self._checked:
            return
        arrays = {field.name for field in (fields(kind) if is_dataclass(kind) else ()) if field.type in ("Array", Array)}
        unknown = arrays - {attributes[0] for attributes, *_ in self._arguments[argument] if attributes}
        if unknown:
            raise BindingError(f"{self.kernel}: {argument} is a {kind.__name__}; its struct lacks {', '.join(sorted(unknown))}")
        self._checked.add((argument, kind))

    @cached_property
    def flat(self) -> dict[str, str]:
        """The names of buffers and numbers as compilers flatten them: `struct_field`."""
        return {name: name.replace(".", "_") for name in (*self.known.buffers, *self.known.uniforms)}

    @cached_property
    def paths(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """By flattened name, the path to a buffer or a number: the global and its fields, and then the last field."""
        found = {}
        for name, flat in self.flat.items():
            *path, field = ["params", name] if name in self.known.block else name.split(".")
            found[flat] = tuple(path), field
        return found

    def check(self, uniforms: Mapping[str, Uniform], buffers: Mapping[str, Array | None]) -> None:
        """Raise BindingError if a buffer or a uniform is not known, is missing, or is not of the kernel's type."""
        self._check_names("uniform", uniforms, self.known.uniforms, self.needed.uniforms)
        self._check_names("buffer", buffers, self.known.buffers, self.needed.buffers)
        for name, value in uniforms.items():
            fits, what = SCALARS[self.known.uniforms[name]]
            if not fits(value):
                raise BindingError(f"{self.kernel}: uniform {name} is {value!r}; it must be {what}")
        for name, array in buffers.items():
            if array is not None:
                element = self.known.buffers[name]
                dtypes, length = ELEMENTS[element]
                if array.dtype not in dtypes or array.size % length:
                    given = f"{array.dtype} {list(array.shape)}"
                    raise BindingError(f"{self.kernel}: buffer {name} is {given}; its elements are of type {element}")

    def _check_names(self, what: str, given: Mapping[str, Any], known: dict[str, str], needed: dict[str, str]) -> None:
        names = given.keys()
        if needed.keys() <= names <= known.keys():
            return
        unknown, missing = names - known.keys(), needed.keys() - names
        mistakes = [f"there is no {what} {name}" for name in sorted(unknown)]
        mistakes += [f"{what} {name} ({needed[name]}) is missing" for name in sorted(missing)]
        raise BindingError(f"{self.kernel}: {', '.join(mistakes)}; its {what}s are {', '.join(known) or 'none'}")


def in_python(name: str) -> str:
    """A Slang name in Python's spelling: `isectOffsets` is isect_offsets, `finalT` is final_T."""
    return _WORD.sub(lambda word: "_" + (word[1].lower() if word[2] else word[1]), name)
