"""Unit tests of your own shaders: any Slang function's derivatives, at random arguments, against finite differences.

from splat_py import shaders, testing

mine = shaders.load("mine.slang")

def test_my_falloff():
    testing.check_function(mine.falloff, sigma=(0.0, 9.0), beta=(0.5, 2.0))

With `pytest_plugins = ["splat_py.testing"]` in a conftest.py, tests take the fixture `slang`:

def test_square(slang):
    square = slang("[Differentiable] public float square(float x) { return x * x; }").square
    testing.check_function(square, x=(-1.0, 1.0))
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from slangpy.reflection import StructType

from splat_py.base.errors import SplatError
from splat_py.base.fields import shown
from splat_py.scene.camera import Camera
from splat_py.shaders.finite_differences import Inputs, compare, labels_of
from splat_py.shaders.functions import ShaderFunction, ShaderModule, Value, dtype_of
from splat_py.shaders.loading import source

__all__ = ["camera_struct", "check_function"]

_SAMPLES = 500

# Only tests need pytest.
with suppress(ImportError):
    import pytest

    @pytest.fixture(scope="session")
    def slang() -> Callable[[str], ShaderModule]:
        """`shaders.source`, which compiles Slang text, once for each text."""
        return cache(source)


def check_function(function: ShaderFunction, /, **arguments: Value) -> None:
    """Compare each derivative of a Slang function with central differences at 500 random arguments, always the same ones.

    Each number of the result is differentiated by each number of the arguments. Derivatives may be off at a fiftieth of the
    arguments, because functions have kinks. Steps and tolerances follow from the types: 2 % for float, 5 % for half. SlangPy
    differentiates no double.

    Args:
        function: a differentiable function of a module, such as `shaders.load("mine.slang").falloff`; a generic one with its
            arguments in brackets.
        arguments: each by its name in Slang: a range (least, largest) in a tuple, or a fixed value as an array, a list or a
            number; for a struct a dict of these, or a `Camera` for the shaders' camera. Differences stay inside a range.

    Raises:
        SplatError: a derivative is wrong, or a result not finite, with the place and both values; or the arguments do not fit.
    """
    parameters = function.reflection.parameters
    types = {parameter.name: parameter.type for parameter in parameters}
    if types.keys() != arguments.keys():
        raise SplatError(f"{function!r} takes {', '.join(types) or 'nothing'}; {', '.join(arguments) or 'nothing'} is given")
    if any(parameter.io_type.name != "inn" for parameter in parameters):
        raise SplatError(f"{function!r} has an out parameter; return a struct instead")
    rng = np.random.default_rng(0)
    inputs: Inputs = {}
    limits: dict[str, tuple[float, float]] = {}
    for name, kind in types.items():
        for path, leaf, given in _leaves(kind, arguments[name], name):
            inputs[path] = _sampled(leaf, given, path, rng)
            if isinstance(given, tuple) and given[0] < given[1]:
                limits[path] = given
    returned = function.reflection.return_type

    def values(inputs: Inputs) -> list[Value]:
        return [_gathered(kind, inputs, name) for name, kind in types.items()]

    def value_of(inputs: Inputs) -> NDArray:
        numbers = [value.reshape(_SAMPLES, -1) for _, _, value in _leaves(returned, function(*values(inputs)), "")]
        return np.concatenate(numbers, 1)

    def derivative(v: NDArray, inputs: Inputs) -> Inputs:
        shapes = [(path, tuple(leaf.shape)) for path, leaf, _ in _leaves(returned, None, "")]
        columns = np.split(v, np.cumsum([int(np.prod(shape)) for _, shape in shapes])[:-1], 1)
        parts = {path: part.reshape(_SAMPLES, *shape) for (path, shape), part in zip(shapes, columns, strict=True)}
        found: Inputs = {}
        gradients = function.gradients(_gathered(returned, parts, ""), *values(inputs))
        for (name, kind), v_argument in zip(types.items(), gradients, strict=True):
            found |= {path: leaf for path, _, leaf in _leaves(kind, v_argument, name) if leaf is not None}
        return found

    name = function.name.partition("<")[0]
    results = [
        label for path, leaf, _ in _leaves(returned, None, name) for label in labels_of(path, np.empty((0, *leaf.shape)))
    ]
    compare(name, value_of, derivative, inputs, results=results, limits=limits)


def _leaves(kind: Any, value: Value, path: str) -> Iterator[tuple[str, Any, Value]]:
    """Yield the path, the type and the value of each number, vector, matrix or array in a value of a Slang type; None for each
    value of None."""
    if not isinstance(kind, StructType):
        yield path, kind, value
        return
    value = camera_struct(value) if isinstance(value, Camera) else value
    fields = kind.fields
    if value is not None and (not isinstance(value, Mapping) or value.keys() != fields.keys()):
        given = f"a dict of {', '.join(value)}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
        raise SplatError(f"{path} is {given}; give a dict of {', '.join(sorted(fields))}")
    for name, field in fields.items():
        yield from _leaves(field.type, None if value is None else value[name], f"{path}.{name}" if path else name)


def _gathered(kind: Any, leaves: Inputs, path: str) -> Value:
    """A value of a Slang type from its leaves."""
    if not isinstance(kind, StructType):
        return leaves[path]
    return {name: _gathered(f.type, leaves, f"{path}.{name}" if path else name) for name, f in kind.fields.items()}


def _sampled(kind: Any, given: Value, path: str, rng: np.random.Generator) -> NDArray:
    """Random values in a range, or the given one, for each sample."""
    dtype, shape = dtype_of(kind), (_SAMPLES, *kind.shape)
    if not isinstance(given, tuple):
        try:
            return np.broadcast_to(np.asarray(given, dtype), shape).copy()
        except (TypeError, ValueError) as error:
            what = f"{kind.full_name}, of shape {list(kind.shape)}" if kind.shape else kind.full_name
            raise SplatError(f"{path} is {shown(given)}; give a {what}, or a range (least, largest)") from error
    numbers = len(given) == 2 and all(isinstance(x, int | float) and np.isfinite(x) for x in given)
    if not numbers or given[0] > given[1]:
        raise SplatError(f"{path} is {shown(given)}; give its least and its largest value, such as (0.0, 1.0)")
    if dtype.kind == "f":
        return rng.uniform(given[0], given[1], shape).astype(dtype)
    return rng.integers(int(given[0]), int(given[1]), shape, endpoint=True).astype(dtype)


def camera_struct(camera: Camera) -> dict[str, NDArray[np.float32]]:
    """A camera as the struct `Camera` of the shaders (slang/splat/camera.slang): world → camera `rotation` [3, 3] and
    `translation` [3]; `focal` [2] and `principal` [2] in pixels; the lens's `radial` [3] k1 to k3, `radialMore` [3] k4 to k6,
    `tangential` [2] and `thinPrism` [4], zeros without a lens; with a model of your own its `params`, in this order."""
    coefficients = np.zeros(12)
    coefficients[: len(camera.coefficients)] = camera.coefficients
    fields = {
        "rotation": camera.viewmat[:3, :3],
        "translation": camera.viewmat[:3, 3],
        "focal": np.diag(camera.K)[:2],
        "principal": camera.K[:2, 2],
        "radial": coefficients[:3],
        "radialMore": coefficients[3:6],
        "tangential": coefficients[6:8],
        "thinPrism": coefficients[8:],
    }
    return {name: np.asarray(value, np.float32) for name, value in fields.items()}
