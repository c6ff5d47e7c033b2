"""Photographs on the device, and the order in which steps take them."""

from __future__ import annotations

from threading import Event, current_thread

import numpy as np
import pytest

from splat_py.errors import SplatError
from splat_py.fit import photographs
from splat_py.fit.photographs import AHEAD, Photographs, views_at
from splat_py.gpu.device import get_device


def test_photographs_stay_up_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []

    def load(view: int) -> np.ndarray:
        loaded.append(view)
        return np.full(25, view, np.uint32)

    monkeypatch.setattr(photographs, "_BUDGET", 250)
    resident = Photographs(get_device().memory, load)
    for view in (4, 7, 9, 4, 7, 9, 9):
        np.testing.assert_array_equal(resident[view].numpy(), np.full(25, view))
    assert loaded == [4, 7, 9, 9, 9]


@pytest.mark.parametrize(("count", "each"), [(5, 1), (7, 3), (4, 4)])
def test_an_epoch_takes_no_view_twice(count: int, each: int) -> None:
    steps = count // each
    epochs = [[view for step in range(steps) for view in views_at(epoch * steps + step, count, each, 3)] for epoch in range(20)]
    for views in epochs:
        assert len(views) == len(set(views)) == steps * each and set(views) <= set(range(count))
    assert len(set(map(tuple, epochs))) > 1
    assert views_at(steps, count, each, 3) == views_at(steps, count, each, 3)
    assert any(views_at(step, count, each, 3) != views_at(step, count, each, 4) for step in range(10))


def test_photographs_are_loaded_before_their_step_and_an_error_is_raised_in_it() -> None:
    begun, may_go_on = [Event() for _ in range(6)], Event()
    threads: set[str] = set()

    def load(view: int) -> np.ndarray:
        threads.add(current_thread().name)
        begun[view].set()
        may_go_on.wait(10)
        if view == 2:
            raise SplatError("002.png cannot be read")
        return np.full(25, view, np.uint32)

    streamed = Photographs(get_device().memory, load, limit_bytes=0)
    streamed.prefetch([0, 1, 0, 2, 3, 4, 5])
    assert all(event.wait(10) for event in begun[:AHEAD])
    assert not begun[4].is_set(), "no more than AHEAD at once"
    may_go_on.set()
    for view in (0, 1, 3):
        np.testing.assert_array_equal(streamed[view].numpy(), np.full(25, view))
    assert current_thread().name not in threads
    with pytest.raises(SplatError, match=r"002\.png"):
        streamed[2]
