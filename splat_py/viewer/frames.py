"""Which page gets a frame next, and how large: small while its camera moves, full when it rests, none when nothing changes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from splat_py.scene.camera import Camera
from splat_py.viewer.requests import Asked, Requests

# A camera rests when it has not moved for so many seconds.
REST = 0.2
# Seconds that a frame of a moving camera may take, the least share of the sides it has then, and the least rows.
_QUICK, _LEAST_SHARE, _LEAST_ROWS = 0.05, 0.125, 96
# A frame that would be nearly full is drawn full.
_NEARLY = 0.8
# Share of the last measurement that the estimate of a pixel's time keeps.
_SMOOTHING = 0.5


@dataclass
class _Shown:
    """What a page shows: the version of the scene, since when its camera was asked for, and whether at full size."""

    version: int
    since: float
    full: bool
    # When it was drawn.
    at: float


class Frames:
    """Frames of all pages.

    Args:
        requests: what they want to see.
        draw: draws a camera's frame and sends it to a page; `full` says whether it is more than a preview.
    """

    def __init__(self, requests: Requests, draw: Callable[[int, Camera, bool], None]) -> None:
        self._requests, self._draw = requests, draw
        self._shown: dict[int, _Shown] = {}
        self._version, self._changed = 0, -math.inf
        self._pixel_seconds = 1e-6
        # How many have been drawn.
        self.drawn = 0

    def change(self, *, moving: bool) -> None:
        """What is to be seen has changed: `moving` while it goes on changing, as under a slider, and small frames will do."""
        self._version += 1
        if moving:
            self._changed = time.monotonic()

    def next_due(self) -> float | None:
        """Seconds until a frame is to be drawn, 0 if now; None if all pages show what they are to."""
        waits = [wait for page, asked in self._requests.pages().items() if (wait := self._due(page, asked)) is not None]
        return min(waits, default=None)

    def draw_next(self) -> bool:
        """Draw the frame that is due for longest, if any is."""
        pages = self._requests.pages()
        self._shown = {page: shown for page, shown in self._shown.items() if page in pages}
        due = [page for page, asked in pages.items() if self._due(page, asked) == 0]
        if not due:
            return False
        page = min(due, key=lambda page: self._shown[page].at if page in self._shown else -math.inf)
        asked, version, began = pages[page], self._version, time.monotonic()
        share = 1.0 if began - self._moved(asked) >= REST else self._share(asked.camera)
        camera = asked.camera if share == 1 else asked.camera.scaled(share)
        # Before it is drawn: what cannot be drawn is not tried again and again.
        self._shown[page] = _Shown(version, asked.since, share == 1, began)
        self._draw(page, camera, share == 1)
        self.drawn += 1
        took = (time.monotonic() - began) / (camera.width * camera.height)
        self._pixel_seconds = _SMOOTHING * self._pixel_seconds + (1 - _SMOOTHING) * took
        return True

    def _moved(self, asked: Asked) -> float:
        return max(asked.since, self._changed)

    def _due(self, page: int, asked: Asked) -> float | None:
        shown = self._shown.get(page)
        if shown is None or (shown.version, shown.since) != (self._version, asked.since):
            return 0.0
        return None if shown.full else max(0.0, self._moved(asked) + REST - time.monotonic())

    def _share(self, camera: Camera) -> float:
        """Of the sides, such that a frame is quick."""
        share = math.sqrt(_QUICK / (self._pixel_seconds * camera.width * camera.height))
        share = max(share, _LEAST_SHARE, min(1.0, _LEAST_ROWS / camera.height))
        return 1.0 if share > _NEARLY else share
