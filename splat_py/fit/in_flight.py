"""Steps that run on the device while the host records the next ones, and the retry of those whose lists did not fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from splat_py.gpu.arrays import Bridge
from splat_py.gpu.device import Device

# How often the host reads the status where that costs a copy.
_STATUS_EVERY = 32


class Overflow(NamedTuple):
    """What the lists of the first step that did not fit needed, as kernels/status.slang writes it; all 0 if all fitted."""

    isect_count: int
    step: int
    max_tile_count: int


Submit = Callable[[int], int]
Reserve = Callable[[Overflow], None]
OnDone = Callable[[int], None]


class StepsInFlight:
    """Sends steps to the device in order, `Tuning.steps_ahead` of them ahead of the one that it waits for.

    A step whose lists did not fit changes nothing, nor does any after it. Once the host notices, it reserves more and goes
    back to that step, so that the result is that of lists which always fitted.

    The functions of a fit come with each call, as references in a cycle would keep its arrays alive after it:
        submit: sends a step and returns the number of its submission.
        reserve: makes lists large enough for what did not fit.
        on_done: told of every step that is done and counts; of every 32nd where reading from the device costs a copy.
    """

    def __init__(self, device: Device, step: int) -> None:
        # The next one to send, and how many have ever been sent.
        self.step = self._sent = step
        # An `Overflow`, [3] uint32, on the device.
        self.status = device.memory.array(np.zeros(3, np.uint32))
        self._device = device
        self._every = 1 if device.memory.bridge is Bridge.ALIAS else _STATUS_EVERY
        self._submissions: deque[tuple[int, int]] = deque()

    def send(self, submit: Submit, reserve: Reserve, on_done: OnDone = lambda step: None) -> None:
        """Send the next step, and wait until no more than `steps_ahead` are in flight."""
        self._submissions.append((self.step, submit(self.step)))
        self.step += 1
        self._sent = max(self._sent, self.step)
        self._retire(self._device.tuning.steps_ahead, reserve, on_done)

    def finish(self, submit: Submit, reserve: Reserve, on_done: OnDone = lambda step: None) -> None:
        """Wait until every step that was sent is done, and repeat those that do not count."""
        self._retire(0, reserve, on_done)
        while self.step < self._sent:
            self.send(submit, reserve, on_done)
            if self.step == self._sent:
                self._retire(0, reserve, on_done)

    def _retire(self, allowed: int, reserve: Reserve, on_done: OnDone) -> None:
        """Wait until no more than `allowed` steps are in flight."""
        done = []
        while len(self._submissions) > allowed:
            self._device.wait(self._submissions[0][1])
            done.append(self._submissions.popleft()[0])
        if allowed and not any(step % self._every == 0 for step in done):
            return
        overflow = Overflow(*map(int, self.status.numpy()))
        if overflow.isect_count:
            self._device.handle.wait_for_idle()
            done += [step for step, _ in self._submissions]
            self._submissions.clear()
            self.status.write(np.zeros(3, np.uint32))
            reserve(overflow)
            self.step = overflow.step
        for step in done:
            if step < self.step and step % self._every == 0:
                on_done(step)
