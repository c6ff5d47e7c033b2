"""A share of the time: who has worked waits until the work was that share of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Share:
    """Lets work take at most `share` of the time, on average over each piece of work and the pause after it."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._free_at = 0.0

    @property
    def allows(self) -> bool:
        """Whether more work may be done now."""
        return time.monotonic() >= self._free_at

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around a piece of work."""
        began = time.monotonic()
        try:
            yield
        finally:
            now = time.monotonic()
            self._free_at = now + (now - began) * (1 / self._share - 1)
