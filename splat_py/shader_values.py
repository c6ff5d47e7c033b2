"""Between what Python gives a Slang function and what SlangPy binds: numbers, arrays, and dicts for structs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import slangpy as spy
from numpy.typing import NDArray
from slangpy.reflection import StructType

from splat_py.errors import SplatError

# A number, what NumPy makes an array of, for a struct a dict of these; or SlangPy's own objects.
Value: TypeAlias = Any

_SCALAR = re.compile("float|uint|int|bool")
_DTYPES = {"float": np.float32, "uint": np.uint32, "int": np.int32, "bool": np.bool_}


def products(slang_type: Any, path: str = "") -> Iterator[str]:
    """The products of all numbers in result_ with those in v_, as Slang."""
    if isinstance(slang_type, StructType):
        for name, field in slang_type.fields.items():
            yield from products(field.type, f"{path}.{name}")
    else:
        for index in np.ndindex(*slang_type.shape):
            element = path + "".join(f"[{i}]" for i in index)
            yield f"result_{element} * v_{element}"


def _dtype(slang_type: Any) -> np.dtype:
    """NumPy's type of a number, or of the numbers in a vector, matrix or array."""
    scalar = _SCALAR.search(slang_type.full_name)
    if scalar is None:
        raise SplatError(f"Slang's {slang_type.full_name} has no NumPy twin; use the function's `.slangpy`")
    return np.dtype(_DTYPES[scalar.group()])


def bind(slang_type: Any, value: Value, what: str, leaf: Callable[[NDArray], Any], *, partial: bool = False) -> Any:
    """What SlangPy is given for a value: `leaf` of its arrays, in dicts; `partial` fills in zeros."""
    if _is_slangpys(value):
        return value
    if not isinstance(slang_type, StructType):
        return leaf(np.array(value, _dtype(slang_type), order="C"))
    fields = slang_type.fields
    if not isinstance(value, dict) or not (partial or set(fields) <= set(value)) or set(value) - set(fields):
        given = f"a dict of {', '.join(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
        raise SplatError(f"{what} is {given}; give a dict of {', '.join(sorted(fields))}")

    def zeros(field_type: Any) -> Value:
        return {} if isinstance(field_type, StructType) else np.zeros(tuple(field_type.shape))

    return {
        name: bind(
            field.type,
            value[name] if name in value else zeros(field.type),
            f"{name} of {what}",
            leaf,
            partial=partial,
        )
        for name, field in fields.items()
    }


def _is_slangpys(value: Value) -> bool:
    """Whether a value is a tensor, a buffer or the like, which is passed on as it is."""
    return type(value).__module__.startswith("slangpy")


def constant(array: NDArray) -> Any:
    # SlangPy takes no arrays without dimensions.
    return array if array.ndim else array.item()


def variable(device: spy.Device, array: NDArray) -> spy.Tensor:
    return spy.Tensor.from_numpy(device, np.atleast_1d(array)).with_grads()


def gradient(value: Value, bound: Any) -> Any:
    """The gradient that `.bwds` left with what `value` was bound to."""
    if isinstance(bound, dict):
        fields = {name: gradient(value[name], field) for name, field in bound.items()}
        return None if all(field is None for field in fields.values()) else fields
    if value is bound or not hasattr(bound, "grad"):
        return None
    return bound.grad.to_numpy().reshape(np.shape(value))


def batch_shapes(slang_type: Any, value: Value) -> Iterator[tuple[int, ...]]:
    """The leading dimensions of every array in a value."""
    if _is_slangpys(value):
        return
    if isinstance(slang_type, StructType):
        for name in value:
            yield from batch_shapes(slang_type.fields[name].type, value[name])
    else:
        shape = np.shape(value)
        yield shape[: len(shape) - len(slang_type.shape)]


def to_numpy(slang_type: Any, result: Any) -> Any:
    """What SlangPy returned, as numbers, arrays and dicts of them."""
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
    return np.array(result.to_numpy() if hasattr(result, "to_numpy") else result, _dtype(slang_type))


def _from_bytes(slang_type: Any, layout: Any, rows: NDArray[np.uint8]) -> Any:
    """The values [batch, …] that lie at the beginning of `rows` [batch, bytes]."""
    if isinstance(slang_type, StructType):
        types = {name: field.type for name, field in slang_type.fields.items()}
        return {
            field.name: _from_bytes(types[field.name], field.type_layout, rows[..., field.offset :]) for field in layout.fields
        }
    shape = tuple(slang_type.shape)
    values = np.ascontiguousarray(rows[..., : layout.size])
    if _dtype(slang_type) == np.bool_:
        return values.reshape(*rows.shape[:-1], *shape, -1).any(axis=-1)
    return values.view(_dtype(slang_type)).reshape(*rows.shape[:-1], *shape)
