"""Steps that run on the device while the host records the next ones, and the retry of those whose lists did not fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from splat_py.fit.capacity import Overflow
from splat_py.gpu.arrays import Bridge
from splat_py.gpu.device import Device

# How often the host reads the status where that costs a copy.
_STATUS_EVERY = 32

Submit = Callable[[int], int]
Reserve = Callable[[Overflow], None]
OnDone = Callable[[int], None]


class StepsInFlight:
    """Sends steps to the device in order, `Tuning.steps_ahead` of them ahead of the one it waits for.

    A step whose lists did not fit changes nothing, nor does any after it. As soon as the host notices, it reserves more
    and goes back to that step: the result is that of lists which always fitted.

    The functions of a fit come with every call, as a cycle of references would keep its arrays alive after it:
        submit: sends a step and returns the number of its submission.
        reserve: makes the lists large enough for what did not fit.
        on_done: told of every step that is done and counts; of every 32nd where reading from the device costs a copy.
    """

    def __init__(self, device: Device, step: int) -> None:
        # The next one to send.
        self.step = step
        # See capacity.py.
        self.status = device.memory.array(np.zeros(3, np.uint32))
        self._device = device
        self._every = 1 if device.memory.bridge is Bridge.ALIAS else _STATUS_EVERY
        self._submissions: deque[tuple[int, int]] = deque()
        # Steps that have ever been sent.
        self._sent = step

    def send(self, submit: Submit, reserve: Reserve, on_done: OnDone | None = None) -> None:
        """Send the next step, and wait until no more than `steps_ahead` are in flight."""
        self._submissions.append((self.step, submit(self.step)))
        self.step += 1
        self._sent = max(self._sent, self.step)
        self._retire(self._device.tuning.steps_ahead, reserve, on_done)

    def finish(self, submit: Submit, reserve: Reserve, on_done: OnDone | None = None) -> None:
        """Wait until every step that was sent is done, and repeat those that do not count."""
        self._retire(0, reserve, on_done)
        while self.step < self._sent:
            self.send(submit, reserve, on_done)
            if self.step == self._sent:
                self._retire(0, reserve, on_done)

    def _retire(self, allowed: int, reserve: Reserve, on_done: OnDone | None) -> None:
        """Wait until no more than `allowed` steps are in flight, and look after the status."""
        done = []
        while len(self._submissions) > allowed:
            step, submission = self._submissions[0]
            self._device.wait(submission)
            self._submissions.popleft()
            done.append(step)
        watched = [step for step in done if step % self._every == 0]
        if allowed and not watched:
            return
        overflow = Overflow.read(self.status)
        if overflow:
            self._device.handle.wait_for_idle()
            self._submissions.clear()
            self.status.write(np.zeros(3, np.uint32))
            reserve(overflow)
            self.step = overflow.step
        for step in watched:
            if on_done is not None and step < self.step:
                on_done(step)
