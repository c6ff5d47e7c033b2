"""Field functions (slang/splat/field_function.slang): their parameters, and values and gradients at single places, outside the
volume renderer."""

from typing import Any

import numpy as np
import slangpy as spy
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.gpu.kernels import UserType
from splat_py.shaders.declarations import constant_in
from splat_py.shaders.functions import ShaderModule
from splat_py.shaders.loading import built_in, source

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
