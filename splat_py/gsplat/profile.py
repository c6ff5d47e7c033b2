"""Seconds that parts of a script take, by name, if the environment variable TIMEIT is 1."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

# Seconds so far.
profiler: dict[str, float] = {}


class timeit:
    """A block's or a function's seconds, added up in `profiler`.

    with timeit("backward"): ...

    @timeit()
    def step(): ...
    """

    def __init__(self, name: str = "unnamed") -> None:
        self.name = name
        self.enabled = os.environ.get("TIMEIT", "0") == "1"
        self.start_time: float | None = None

    def __enter__(self) -> None:
        if self.enabled:
            _synchronize()
            self.start_time = perf_counter()

    def __exit__(self, *error: object) -> None:
        if self.enabled and self.start_time is not None:
            _synchronize()
            profiler[self.name] = profiler.get(self.name, 0.0) + perf_counter() - self.start_time

    def __call__(self, f: Callable[P, R]) -> Callable[P, R]:
        @wraps(f)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with timeit(f.__name__):
                return f(*args, **kwargs)

        return timed


def _synchronize() -> None:
    """Wait for what torch has sent to its GPU; our own functions wait themselves."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
