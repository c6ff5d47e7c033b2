"""Photographs on the device, and which of them a step compares with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from splat_py.gpu.arrays import Array, Memory

# Photographs stay on the device up to so many bytes, where nobody says another number.
_BUDGET = 1 << 30
# Of the others, how many are loaded before their step.
AHEAD = 4


class Photographs:
    """Photographs on the device, by view. Those that come first stay, up to a limit; the others are streamed.

    Each epoch takes all of them in a new order. Of a share f of them that stays, f of the steps find theirs; of as many that
    were used last, far fewer would.

    Args:
        load: reads one, in any thread.
        limit_bytes: of those that stay.
    """

    def __init__(self, memory: Memory, load: Callable[[int], NDArray], limit_bytes: int | None = None) -> None:
        self._memory, self._load = memory, load
        self._limit = _BUDGET if limit_bytes is None else limit_bytes
        self._resident: dict[int, Array] = {}
        self._bytes = 0
        self._ahead: dict[int, Future[NDArray]] = {}
        self._wanted: list[int] = []
        self._pool: ThreadPoolExecutor | None = None

    def __getitem__(self, view: int) -> Array:
        if view in self._resident:
            return self._resident[view]
        ahead = self._ahead.pop(view, None)
        if ahead is None and view in self._wanted:
            self._wanted.remove(view)
        self._load_ahead()
        array = self._memory.array(self._load(view) if ahead is None else ahead.result())
        if self._bytes + array.nbytes <= self._limit:
            self._resident[view] = array
            self._bytes += array.nbytes
        return array

    def prefetch(self, views: Iterable[int]) -> None:
        """Load those of these that are not there, in other threads and in this order, `AHEAD` of them ahead at most."""
        self._wanted = list(views)
        self._load_ahead()

    def _load_ahead(self) -> None:
        while self._wanted and len(self._ahead) < AHEAD:
            view = self._wanted.pop(0)
            if view not in self._resident and view not in self._ahead:
                # Its threads end with it.
                self._pool = self._pool or ThreadPoolExecutor(AHEAD, "photographs")
                self._ahead[view] = self._pool.submit(self._load, view)


def views_at(step: int, count: int, each: int, seed: int) -> list[int]:
    """The `each` of `count` views that a step takes: a new random order every epoch, a function of step and seed alone."""
    epoch, position = divmod(step, count // each)
    order = np.random.default_rng((seed, epoch)).permutation(count)
    return [int(view) for view in order[position * each : (position + 1) * each]]
