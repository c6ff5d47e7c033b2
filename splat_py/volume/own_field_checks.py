"""Checks of a user's own radiance field, for `splat_py.shaders.check`: its values, and derivatives by its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import slangpy as spy
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.gpu.kernels import UserType
from splat_py.shaders import ShaderModule
from splat_py.user_types import source
from splat_py.volume.own_field import first_values

Inputs = dict[str, NDArray[np.float32]]

_PLACES = 400
# Numbers whose derivatives are compared, each at a few places that depend on it.
_NUMBERS = 200
# The numbers in a tensor of SlangPy's.
_QUERIES = """
import slangpy;
import splat.field;
import splat.field_function;

struct TensorWeights : IFieldWeights
{
    Tensor<float, 1> numbers;
    AtomicTensor<float, 1> gradients;

    static int toInteger(float whole)
    {
        return int(whole);
    }

    float3 locate(float3 position)
    {
        return position;
    }

    float3 locate_bwd(float3 position, float3 v)
    {
        return v;
    }

    float unitDensity()
    {
        return 1.0;
    }

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
    """A function with its numbers, asked at places and along directions; and its gradients.

    Args:
        module: declares a type that implements `IFieldFunction`; or the name of a built-in one.
    """

    def __init__(self, module: ShaderModule | str) -> None:
        queries = source(_QUERIES)
        self._handle = queries.device.handle
        self._query, self._query_bwd = queries.queryAt[module], queries.queryAt_bwd[module]

    def values(self, params: NDArray, places: NDArray, directions: NDArray) -> NDArray[np.float64]:
        """Density and rgb, [N, 4], of params [P], places [N, 3] and directions [N, 3]."""
        numbers, gradients = self._tensor(params), self._tensor(np.zeros(1))
        return np.asarray(self._query(numbers, gradients, _f32(places), _f32(directions)), np.float64)

    def gradients(
        self, params: NDArray, places: NDArray, directions: NDArray, v: NDArray
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Of Σ v · values by params [P], places and directions [N, 3]."""
        numbers, gradients = self._tensor(params), self._tensor(np.zeros(len(params)))
        found = self._query_bwd(numbers, gradients, _f32(places), _f32(directions), _f32(v))
        return gradients.to_numpy(), np.asarray(found["place"]), np.asarray(found["direction"])

    def _tensor(self, values: NDArray) -> Any:
        return spy.Tensor.from_numpy(self._handle, _f32(values))


def check_numbers(queries: FieldQueries, params: NDArray, places: NDArray, directions: NDArray) -> None:
    """Raise SplatError unless the derivatives by the numbers are those of finite differences."""
    rng = np.random.default_rng(2)
    v = rng.normal(size=(len(places), 4)).astype(np.float32)
    found = queries.gradients(params, places, directions, v)[0]
    if not np.isfinite(found).all():
        raise SplatError(f"the derivative of query by number {int(np.argmin(np.isfinite(found)))} is not finite")
    some = rng.choice(len(params), min(_NUMBERS, len(params)), replace=False)
    expected, noise = np.zeros(len(some)), np.zeros(len(some))
    for i, number in enumerate(some):
        ends, moved = [], params.copy()
        for sign in (1, -1):
            moved[number] = params[number] + sign * 1e-2 * max(abs(params[number]), 0.1)
            ends.append((float(moved[number]), queries.values(moved, places, directions)))
        (above, high), (below, low) = ends
        expected[i] = ((high - low) * v).sum() / (above - below)
        noise[i] = 1e-6 * np.linalg.norm(high * v) / (above - below)
    actual = found[some]
    scale = np.sqrt(np.mean(expected**2))
    error = np.abs(actual - expected) - 0.02 * np.abs(expected)
    wrong = ~(error <= 0.02 * scale + 1e-4 + noise)
    if wrong.mean() > 0.02:
        worst = int(np.argmax(np.where(np.isfinite(error), error, np.inf)))
        raise SplatError(
            f"the derivative of query by number {int(some[worst])} is {actual[worst]:.4g}, summed over {len(places)} places, "
            f"where finite differences have {expected[worst]:.4g}; is it read by weightAt, rowAt or networkAt, and is every "
            "function [Differentiable]?"
        )


def inputs_of(linked: UserType | str) -> tuple[NDArray[np.float32], Inputs]:
    """The numbers that a function begins with, and places and directions to ask it at."""
    rng = np.random.default_rng(0)
    params = first_values(linked, 0) if isinstance(linked, UserType) else np.full(4, 0.5, np.float32)
    directions = rng.normal(size=(_PLACES, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return params, {"place": _f32(rng.uniform(0.02, 0.98, (_PLACES, 3))), "direction": _f32(directions)}


def _f32(values: NDArray) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, np.float32)
