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
from itertools import chain
from numbers import Integral, Real
from typing import Any, NamedTuple, Self, TypeAlias

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
    "float": ((np.dtype(np.float32),), 1),
    "float2": ((np.dtype(np.float32),), 2),
    "float4": ((np.dtype(np.float32),), 4),
    "uint": ((np.dtype(np.uint32),), 1),
    "uint2": ((np.dtype(np.uint32),), 2),
    "int": ((np.dtype(np.int32),), 1),
    # Four floats (kernels/cpu/fields.slang).
    "uint64_t2": ((np.dtype(np.float32),), 4),
    # Two floats, or four halves.
    "uint64_t": ((np.dtype(np.float32), np.dtype(np.uint32)), 2),
}


def _is_integer(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


# By a uniform's type: a test for values that fit, a description of them, and the value in a struct that is None.
SCALARS: dict[str, tuple[Callable[[Any], bool], str, Uniform]] = {
    "float": (lambda value: type(value) is float or (isinstance(value, Real) and not isinstance(value, bool)), "a number", 0),
    "uint": (lambda value: _is_integer(value) and 0 <= value < 1 << 32, "an integer from 0 to 2³² - 1", 0),
    "int": (lambda value: _is_integer(value) and -(1 << 31) <= value < 1 << 31, "an integer from -2³¹ to 2³¹ - 1", 0),
    "uint2": (lambda value: isinstance(value, spy.uint2), "a uint2", spy.uint2(0, 0)),
}


class _Part(NamedTuple):
    """A buffer or a number in an argument."""

    attributes: tuple[str, ...]  # lead to it from the argument's value
    name: str  # the global's, a field's after a dot
    flat: str  # the same as compilers flatten it: `struct_field`
    type: str  # a number's, or that of a buffer's elements
    dtypes: tuple[np.dtype, ...]  # a buffer's
    length: int  # a buffer has a multiple of it; 0 for a number
    fits: Callable[[Any], bool]  # a number
    unset: Uniform | None  # the value in a struct that is None


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
    def _arguments(self) -> dict[str, list[_Part]]:
        """All buffers and numbers by argument."""
        found: dict[str, list[_Part]] = {}
        for name, kind in (self.known.buffers | self.known.uniforms).items():
            argument, *attributes = (in_python(part) for part in name.split("."))
            dtypes, length = ELEMENTS[kind] if name in self.known.buffers else ((), 0)
            fits, _, unset = (bool, "", None) if length else SCALARS[kind]
            part = _Part(tuple(attributes), name, name.replace(".", "_"), kind, dtypes, length, fits, unset)
            found.setdefault(argument, []).append(part)
        return found

    @cached_property
    def _parts(self) -> dict[str, list[_Part]]:
        """`_arguments` without what the entry point does not need, which costs as much to bind."""
        needed = self.needed.buffers.keys() | self.needed.uniforms.keys()
        return {argument: [part for part in parts if part.name in needed] for argument, parts in self._arguments.items()}

    @cached_property
    def _needed_arguments(self) -> set[str]:
        return {argument for argument, parts in self._parts.items() if parts}

    def values(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Uniform], dict[str, Array]]:
        """Return the needed uniforms and buffers of a dispatch by their flattened names; BindingError if an argument is not
        known, is missing, lacks one, is not of the kernel's type, or has an array that its struct lacks."""
        uniforms: dict[str, Uniform] = {}
        buffers: dict[str, Array] = {}
        for argument, value in arguments.items():
            parts = self._parts.get(argument)
            if parts is None:
                if argument == "options":
                    # Here, `options` only sets `extern` names.
                    continue
                known = ", ".join(self._parts) or "none"
                raise BindingError(f"{self.kernel}: there is no argument {argument}; its arguments are {known}")
            for attributes, name, flat, kind, dtypes, length, fits, unset in parts:
                found = value
                for attribute in attributes:
                    if found is None:
                        found = unset
                        break
                    # Properties cost time: read each only once.
                    found = getattr(found, attribute, _LACKING)
                    if found is _LACKING:
                        given = type(value).__name__
                        raise BindingError(f"{self.kernel}: {argument} is a {given} without {attribute}, for {name}")
                if length:
                    if found is None:
                        continue
                    if found.dtype not in dtypes or found.size % length:
                        given = f"{found.dtype} {list(found.shape)}"
                        raise BindingError(f"{self.kernel}: buffer {name} is {given}; its elements are of type {kind}")
                    buffers[flat] = found
                else:
                    if not fits(found):
                        raise BindingError(f"{self.kernel}: uniform {name} is {found!r}; it must be {SCALARS[kind][1]}")
                    uniforms[flat] = found
            if (argument, type(value)) not in self._checked:
                self._check_fields(argument, type(value))
        if not self._needed_arguments <= arguments.keys():
            self._refuse_missing(arguments)
        return uniforms, buffers

    def _check_fields(self, argument: str, kind: type) -> None:
        """Check that a value's class has no array fields that its struct lacks."""
        arrays = {field.name for field in (fields(kind) if is_dataclass(kind) else ()) if field.type in ("Array", Array)}
        unknown = arrays - {part.attributes[0] for part in self._arguments[argument] if part.attributes}
        if unknown:
            raise BindingError(f"{self.kernel}: {argument} is a {kind.__name__}; its struct lacks {', '.join(sorted(unknown))}")
        self._checked.add((argument, kind))

    def _refuse_missing(self, arguments: Mapping[str, Any]) -> None:
        parts = [part for argument in sorted(self._needed_arguments - arguments.keys()) for part in self._parts[argument]]
        missing = (f"{'buffer' if part.length else 'uniform'} {part.name} ({part.type}) is missing" for part in parts)
        raise BindingError(f"{self.kernel}: {', '.join(missing)}; its arguments are {', '.join(self._parts)}")

    @cached_property
    def paths(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """By flattened name, the path to a buffer or a number: the global and its fields, and then the last field."""
        found = {}
        for part in chain.from_iterable(self._arguments.values()):
            *path, field = ["params", part.name] if part.name in self.known.block else part.name.split(".")
            found[part.flat] = tuple(path), field
        return found


def in_python(name: str) -> str:
    """A Slang name in Python's spelling: `isectOffsets` is isect_offsets, `finalT` is final_T."""
    return _WORD.sub(lambda word: "_" + (word[1].lower() if word[2] else word[1]), name)
