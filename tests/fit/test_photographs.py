"""Photographs on the device, and the order in which steps take them."""

from __future__ import annotations

import numpy as np
import pytest

from splat_py.fit import photographs
from splat_py.fit.photographs import Photographs, views_at
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
