"""Rows of `Parameters` moved and checked on the device (kernels/gaussian_rows.slang)."""

from __future__ import annotations

import numpy as np

from splat_py.fit.finiteness import check_finite
from splat_py.gpu.arrays import Array
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.splats.parameters import MOMENTS, Parameters, groups_of

# Floats a thread.
_CHECK_RUN = constant("kernels/gaussian_rows", "RUN")


def record_moved(recorder: Recorder, parameters: Parameters, origins: Array) -> Parameters:
    """Other parameters whose rows come from those given; statistics start anew, and what all Gaussians share is the same array.

    Args:
        origins: [M] uint32, the row that each comes from; with the highest bit set where it is new and has no moments yet.
    """
    old, count, memory = parameters.arrays, origins.size, parameters.device.memory
    arrays: dict[str, Array] = {}
    for name in groups_of(old):
        names = [name, *(f"{name}.{moment}" for moment in MOMENTS)]
        new = [memory.empty((count, *old[name].shape[1:])) for _ in names]
        arrays |= zip(names, new, strict=True)
        recorder.dispatch(
            "gaussian_rows",
            "moveRows",
            linear_groups(count),
            {"rows": count, "row": old[name].size // parameters.count},
            {
                "origins": origins,
                **dict(zip(("parameters", "firstMoments", "secondMoments"), (old[n] for n in names), strict=True)),
                **dict(zip(("newParameters", "newFirstMoments", "newSecondMoments"), new, strict=True)),
            },
        )
    for name in Parameters.STATISTICS:
        arrays[name] = memory.empty(count)
        recorder.clear(arrays[name])
    return Parameters(parameters.device, {**old, **arrays})


def record_relocation(recorder: Recorder, parameters: Parameters, origins: Array, copies: Array) -> None:
    """In place: each row becomes a copy of its origin; rows with copies lose their moments. No origin has another itself.

    Args:
        origins: [N] uint32.
        copies: [N] uint32, how often a row is the origin of others.
    """
    for name in groups_of(parameters.arrays):
        array = parameters.arrays[name]
        recorder.dispatch(
            "gaussian_rows",
            "relocateRows",
            linear_groups(parameters.count),
            {"rows": parameters.count, "row": array.size // parameters.count},
            {
                "origins": origins,
                "copies": copies,
                "newParameters": array,
                "newFirstMoments": parameters.arrays[f"{name}.m"],
                "newSecondMoments": parameters.arrays[f"{name}.v"],
            },
        )


def check_parameters(parameters: Parameters, step: int) -> None:
    """Raise a SplatError that names the first array which holds NaN or infinity after `step` steps."""
    found = parameters.device.memory.array(np.zeros(1, np.uint32))
    recorder = parameters.device.record()
    for array in parameters.arrays.values():
        recorder.dispatch(
            "gaussian_rows",
            "findNotFinite",
            linear_groups(-(-array.size // _CHECK_RUN)),
            {"count": array.size},
            {"parameters": array, "notFinite": found},
        )
    recorder.submit()
    if found.numpy()[0]:
        check_finite(parameters.state(), step)
