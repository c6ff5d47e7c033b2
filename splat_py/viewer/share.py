"""A share of the time: work is done once enough time has gone by for it, so that it never takes more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Seconds of work that time without any is good for at most, if a piece of work is not longer.
_MOST_SAVED = 0.1


class Share:
    """Lets work take `share` of the time since the beginning. A piece of work is taken to last as long as the one before it;
    what it lasts longer, later ones wait for.

    Args:
        clock: what time is taken from, in seconds.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._clock = share, clock
        self._saved, self._at = 0.0, clock()
        self._expected = 0.0

    @property
    def allows(self) -> bool:
        """Whether more work may be done now."""
        now = self._clock()
        self._saved = min(self._saved + self._share * (now - self._at), max(_MOST_SAVED, self._expected))
        self._at = now
        return self._saved >= self._expected

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around a piece of work."""
        began = self._clock()
        try:
            yield
        finally:
            self._expected = self._clock() - began
            self._saved -= self._expected
