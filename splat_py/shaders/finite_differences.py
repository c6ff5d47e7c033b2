"""Derivatives of functions, such as those of a shader, against central differences."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError

# Arguments by name, [S, ...] for S samples.
Inputs = dict[str, NDArray[np.floating]]

# The share of samples that may be off, because functions may have kinks.
KINKS = 0.02


def compare(
    what: str,
    function: Callable[[Inputs], NDArray],
    derivative: Callable[[NDArray, Inputs], Inputs],
    inputs: Inputs,
    *,
    names: Mapping[str, Sequence[str]] | None = None,
    results: Sequence[str] = (),
    limits: Mapping[str, tuple[float, float]] | None = None,
    steps: Mapping[str, float] | None = None,
    kinks: float = KINKS,
) -> None:
    """Compare the derivative of each number of a function's result by each number of its inputs with central differences,
    which have errors from their steps and from the precision of the numbers.

    Args:
        function: returns [S, ...] for inputs [S, ...].
        derivative: returns the gradients of Σ v · function by its inputs, for v like the result; inputs that it leaves out
            are not checked.
        names: names of an input's numbers in messages; further numbers are not checked.
        results: names of the result's numbers in messages.
        limits: an input's least and largest value, which the differences do not pass.
        steps: an input's step; by default, for float32, a hundredth of its value.
        kinks: the share of samples that may be off.

    Raises:
        SplatError: the result is not finite, or a derivative is wrong; with its place, and both values.
    """
    names, limits, steps = names or {}, limits or {}, steps or {}
    value = function(inputs)
    bad = ~np.isfinite(value).reshape(len(value), -1).all(1)
    if bad.any():
        raise SplatError(f"{what} is not finite at {place_of(inputs, int(np.argmax(bad)))}")
    precision = max(float(np.finfo(numbers.dtype).eps) for numbers in (value, *inputs.values()) if numbers.dtype.kind == "f")
    own_step = 2 * np.cbrt(precision)
    tolerance = min(own_step, 0.025)
    # A cotangent other than 1 shows own derivatives that forget to multiply by it.
    rng = np.random.default_rng(1)
    cotangent = (rng.uniform(0.5, 2, len(value)) * rng.choice([-1, 1], len(value))).astype(value.dtype)
    found: list[Inputs] = []
    for k in range(value[0].size):
        v = np.zeros((len(value), value[0].size), value.dtype)
        v[:, k] = cotangent
        found.append(derivative(v.reshape(value.shape), inputs))
    results = results or labels_of(what, value)
    for name, values in inputs.items():
        if any(name not in gradients for gradients in found):
            continue
        for number, label in enumerate(names.get(name, labels_of(name, values))):
            at = values.reshape(len(values), -1)[:, number].astype(np.float64)
            low, high = limits.get(name, (-np.inf, np.inf))
            step = steps.get(name) or own_step * np.maximum(np.abs(at), 0.1)
            step = np.minimum(step, 0.1 * np.minimum(at - low, high - at).clip(0))
            (above, upper), (below, lower) = (_moved(function, inputs, name, number, at + s) for s in (step, -step))
            # A place on a limit has no two neighbours.
            some = above > below
            if not some.any():
                continue
            width = (above - below)[some]
            for k, gradients in enumerate(found):
                expected = (upper[:, k] - lower[:, k])[some] / width
                # Plus 0, which takes the sign from 0.
                actual = (gradients[name].reshape(values.shape[0], -1)[:, number] / cotangent.astype(np.float64))[some] + 0.0
                # A small difference of large numbers has the rounding errors of those numbers.
                noise = 8 * precision * np.abs(upper[:, k])[some] / width
                worst = worst_of(actual, expected, noise, kinks, tolerance)
                if worst is not None:
                    where = place_of(inputs, int(np.flatnonzero(some)[worst]), names)
                    raise SplatError(
                        f"the derivative of {results[k]} by {label} is {actual[worst]:.4g} at {where}, where finite "
                        f"differences have {expected[worst]:.4g}; is every function in it [Differentiable], and no bare scalar "
                        "left of a vector?"
                    )


def _moved(
    function: Callable[[Inputs], NDArray], inputs: Inputs, name: str, number: int, to: NDArray
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A number of an input moved, as it is stored, [S]; and the numbers of the result there [S, K]."""
    moved = inputs[name].copy()
    numbers = moved.reshape(len(moved), -1)
    numbers[:, number] = to
    return numbers[:, number].astype(np.float64), function(inputs | {name: moved}).reshape(len(moved), -1).astype(np.float64)


def worst_of(actual: NDArray, expected: NDArray, noise: NDArray, kinks: float, tolerance: float = 0.01) -> int | None:
    """The index of the worst derivative, if more than the share `kinks` is wrong."""
    error = np.abs(actual - expected) - 2 * tolerance * np.abs(expected)
    wrong = ~(error <= 2 * tolerance * np.sqrt(np.mean(expected**2)) + 0.01 * tolerance + noise)
    return int(np.argmax(np.where(np.isfinite(error), error, np.inf))) if np.mean(wrong) > kinks else None


def labels_of(name: str, values: NDArray) -> list[str]:
    """Names of an array's numbers [S, ...] in each sample."""
    return [name + "".join(f"[{i}]" for i in index) for index in np.ndindex(values.shape[1:])]


def place_of(inputs: Inputs, i: int, names: Mapping[str, Sequence[str]] | None = None) -> str:
    """Describe a sample's inputs in a few numbers; arrays of zeros are left out."""
    parts = []
    for name, values in inputs.items():
        numbers = np.ravel(values[i])[: len((names or {}).get(name, values[i].flat))]
        if len(numbers) and (np.any(numbers) or values.ndim == 1):
            shown = ", ".join(f"{x:.3g}" for x in numbers[:6]) + (", …" if len(numbers) > 6 else "")
            parts.append(f"{name} = {shown if values.ndim == 1 else f'({shown})'}")
    return ", ".join(parts)
