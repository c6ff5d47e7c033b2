"""What pages ask for: it comes in viser's threads, and the thread that has the device takes the newest of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from splat_py.scene.camera import Camera
from splat_py.viewer.page_camera import same_view

Job = Callable[[], None]


@dataclass(frozen=True)
class Asked:
    """What a page wants to see, and since when."""

    camera: Camera
    # Of `time.monotonic`.
    since: float


class Requests:
    """The newest camera of each page, and work that buttons ask for, by name: pressed twice, it is done once."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._pages: dict[int, Asked] = {}
        self._jobs: dict[str, Job] = {}
        self._changed = False

    def move(self, page: int, camera: Camera) -> None:
        """A page's camera is there now. The same as before is no news."""
        with self._news:
            before = self._pages.get(page)
            if before is None or not same_view(before.camera, camera):
                self._pages[page] = Asked(camera, time.monotonic())
                self._notify()

    def forget(self, page: int) -> None:
        """A page was closed."""
        with self._news:
            self._pages.pop(page, None)
            self._notify()

    def post(self, name: str, job: Job) -> None:
        """Have something done in the thread that has the device."""
        with self._news:
            self._jobs[name] = job
            self._notify()

    def wake(self) -> None:
        """Something else has changed."""
        with self._news:
            self._notify()

    def pages(self) -> dict[int, Asked]:
        """What each page wants to see."""
        with self._news:
            return dict(self._pages)

    @property
    def any_page(self) -> bool:
        """Whether a page is open. Costs nothing, as it is asked between training steps."""
        return bool(self._pages)

    def next_job(self) -> Job | None:
        """The oldest of them, which is then no longer there."""
        with self._news:
            name = next(iter(self._jobs), None)
            return None if name is None else self._jobs.pop(name)

    def wait(self, seconds: float | None) -> None:
        """Until there are news, at most so long; None waits as long as it takes."""
        with self._news:
            if not self._changed:
                self._news.wait(seconds)
            self._changed = False

    def _notify(self) -> None:
        self._changed = True
        self._news.notify_all()
