"""Steps in flight on a device that only counts: submissions, waits, repeats and reports; and their photographs."""

from threading import Event, current_thread
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from splat_py.base.errors import SplatError
from splat_py.fit import steps
from splat_py.fit.steps import AHEAD, Overflow, Photographs, StepsInFlight, views_at
from splat_py.gpu.arrays import Bridge
from splat_py.gpu.device import Device, get_device


class CountingFit(StepsInFlight):
    """Runs a step when it is submitted: the step counts unless its lists or those of an earlier step did not fit."""

    def __init__(self, bridge: Bridge, steps_ahead: int, needed: dict[int, int], first: int = 0) -> None:
        self.needed = needed
        self.capacity = 1
        # Steps that counted, reported steps, submissions waited for, and the most steps ever in flight.
        self.counted: list[int] = []
        self.told: list[int] = []
        self.waited = self.sent = self.most_in_flight = 0
        device = SimpleNamespace(
            tuning=SimpleNamespace(steps_ahead=steps_ahead),
            handle=SimpleNamespace(wait_for_idle=lambda: self._wait(self.sent)),
            memory=SimpleNamespace(bridge=bridge, array=self._array),
            wait=self._wait,
        )
        super().__init__(cast(Device, device), first)

    def run(self, steps: int, finish_at: tuple[int, ...] = ()) -> None:
        while self.step < steps:
            step = self.step
            self.advance()
            if step in finish_at:
                self.finish()
                assert self.step == step + 1
        self.finish()

    def _array(self, values: np.ndarray) -> SimpleNamespace:
        self._write(values)
        return SimpleNamespace(numpy=lambda: self.written, write=self._write)

    def _write(self, values: np.ndarray) -> None:
        self.written = values.copy()

    def _wait(self, submission: int) -> None:
        self.waited = max(self.waited, submission)

    def _submit(self, step: int) -> int:
        self.sent += 1
        self.most_in_flight = max(self.most_in_flight, self.sent - self.waited)
        if self.written[0] == 0 and self.needed.get(step, 1) > self.capacity:
            self.written[:] = self.needed[step], step, 7
        if self.written[0] == 0:
            self.counted.append(step)
        return self.sent

    def _reserve_lists(self, overflow: Overflow) -> None:
        assert overflow == (self.needed[overflow.step], overflow.step, 7)
        self.capacity = overflow.isect_count

    def _on_done(self, step: int) -> None:
        assert step in self.counted
        self.told.append(step)


CASES = [{}, {0: 3}, {5: 3}, {5: 3, 6: 9}, {31: 2, 33: 4, 70: 8}, {99: 5}]


@pytest.mark.parametrize("needed", CASES, ids=str)
@pytest.mark.parametrize(("bridge", "steps_ahead"), [(Bridge.ALIAS, 0), (Bridge.ALIAS, 2), (Bridge.COPY, 2), (Bridge.CUDA, 3)])
def test_every_step_counts_once_and_in_order(bridge: Bridge, steps_ahead: int, needed: dict[int, int]) -> None:
    fit = CountingFit(bridge, steps_ahead, needed)
    fit.run(100)
    assert fit.step == 100 and fit.counted == list(range(100))
    assert fit.told == list(range(0, 100, 1 if bridge is Bridge.ALIAS else 32))
    assert fit.most_in_flight == steps_ahead + 1


@pytest.mark.parametrize("needed", CASES, ids=str)
def test_finish_in_between_leaves_no_step_undone(needed: dict[int, int]) -> None:
    """This holds also if the step itself was undone, as densification waits for it."""
    fit = CountingFit(Bridge.COPY, 2, needed)
    fit.run(100, finish_at=(5, 34, 66, 99))
    assert fit.counted == list(range(100))


def test_a_resumed_fit_begins_at_its_step() -> None:
    fit = CountingFit(Bridge.ALIAS, 1, {12: 4}, first=10)
    fit.run(20)
    assert fit.counted == fit.told == list(range(10, 20))


def test_an_interrupted_step_leaves_nothing_running() -> None:
    """The fit's arrays are free afterwards, and the next one writes to them."""

    class Interrupted(CountingFit):
        def _submit(self, step: int) -> int:
            super()._submit(step)
            raise KeyboardInterrupt

    fit = Interrupted(Bridge.ALIAS, 2, {})
    with pytest.raises(KeyboardInterrupt):
        fit.advance()
    assert fit.waited == fit.sent == 1


def test_photographs_stay_up_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []

    def load(view: int) -> np.ndarray:
        loaded.append(view)
        return np.full(25, view, np.uint32)

    monkeypatch.setattr(steps, "_BUDGET", 250)
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
