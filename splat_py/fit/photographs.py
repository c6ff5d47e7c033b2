"""Photographs on the device, and which of them a step compares with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from splat_py.gpu.arrays import Array, Memory

# Photographs stay on the device up to so many bytes; others are uploaded for each step.
_BUDGET = 1 << 30


class Photographs:
    """Photographs on the device, by view. `load` reads one that is not there."""

    def __init__(self, memory: Memory, load: Callable[[int], NDArray]) -> None:
        self._memory, self._load = memory, load
        self._resident: dict[int, Array] = {}
        self._bytes = 0

    def __getitem__(self, view: int) -> Array:
        if view in self._resident:
            return self._resident[view]
        array = self._memory.array(self._load(view))
        if self._bytes + array.nbytes <= _BUDGET:
            self._resident[view] = array
            self._bytes += array.nbytes
        return array


def views_at(step: int, count: int, each: int, seed: int) -> list[int]:
    """The `each` of `count` views that a step takes: a new random order every epoch, a function of step and seed alone."""
    epoch, position = divmod(step, count // each)
    order = np.random.default_rng((seed, epoch)).permutation(count)
    return [int(view) for view in order[position * each : (position + 1) * each]]
