"""The viewer during training: it draws in a share of the time, and pauses the run."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from splat_py.base.errors import SplatError
from splat_py.viewer.opening import ViewedScene, look_of
from splat_py.viewer.page_server import LOOPBACK, PORT, address_of, page_server
from splat_py.viewer.viewer import Viewer

if TYPE_CHECKING:
    import viser

    from splat_py.train.trainer import StepReport, Trainer

# Share of the time for drawing during training; together with the page server at most a tenth.
DRAWING = 0.07
# Most seconds of work that idle time can save up, unless a single task takes longer.
_MOST_SAVED = 0.1
# Seconds between updates of the numbers, and the number of updates over which the speed is measured.
_TELL_EVERY, _SPEEDS = 0.5, 60
# A paused run continues after this many seconds without an open page; reloading a page takes less.
_GRACE = 5.0


class TimeBudget:
    """Limits work to `share` of the elapsed time of a clock in seconds. A task is expected to take as long as the one before;
    if it takes longer, later tasks wait."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._clock = share, clock
        self._saved, self._at = 0.0, clock()
        self._expected = 0.0

    @property
    def allows(self) -> bool:
        now = self._clock()
        self._saved = min(self._saved + self._share * (now - self._at), max(_MOST_SAVED, self._expected))
        self._at = now
        return self._saved >= self._expected

    @contextmanager
    def working(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._expected = self._clock() - began
            self._saved -= self._expected


class TrainingViewer:
    """The viewer of `splat train --viewer`; pages write their files into the run's `folder`."""

    def __init__(self, server: "viser.ViserServer", folder: Path) -> None:
        self._server, self._folder = server, folder
        self.address = address_of(server)
        self._share = TimeBudget(DRAWING)
        self._status = server.gui.add_markdown("training begins …")
        self._button = server.gui.add_button("Pause")
        self._button.on_click(lambda event: self._toggle())
        self._paused, self._paused_seconds = False, 0.0
        self._viewer: Viewer | None = None
        self._trainer: Trainer | None = None
        self._report: StepReport | None = None
        self._told, self._held_out = 0.0, ""
        self._speeds: deque[tuple[float, int]] = deque(maxlen=_SPEEDS)
        # The step whose Gaussians are shown, and True if the next task compares a held-out view.
        self._shown, self._scores_next = -1, False

    def on_start(self, trainer: "Trainer") -> None:
        """Compile the kernels for drawing, so that the first page need not wait for them, and start the viewer."""
        self._trainer = trainer
        dataset, config = trainer.dataset, trainer.config
        look = look_of(dataset, config.antialiased, None, trainer.device)
        scene = ViewedScene(look, trainer.gaussians(), dataset, self._folder, scored=not config.refine_cameras)
        first = scene.first_camera()
        assert scene.gaussians is not None
        look.draw(scene.gaussians, first.scaled(min(1.0, 64 / max(first.width, first.height))))
        # On a software device wall time includes other programs, so count processor time.
        self._share = TimeBudget(DRAWING, time.process_time if trainer.device.software else time.monotonic)
        self._viewer = Viewer(self._server, scene, self._may_take_long, 0.02)

    def on_step(self, report: "StepReport") -> None:
        self._report = report

    def between_steps(self, act_on_interrupt: Callable[[], None]) -> None:
        """Draw if a page is open and the time budget allows; do not return while the run is paused."""
        viewer = self._viewer
        if viewer is None or not viewer.requests.any_page:
            self._go_on()
            return
        if self._share.allows:
            with self._share.working():
                self._work(viewer)
        if self._paused:
            self._stay(viewer, act_on_interrupt)

    def close(self) -> None:
        if self._viewer is not None:
            self._viewer.close()

    def _work(self, viewer: Viewer) -> None:
        self._tell()
        job = viewer.requests.next_job()
        if job is not None:
            self._take_gaussians(viewer)
            job()
        elif viewer.frames.next_due() == 0:
            # A page has moved or is new.
            self._take_gaussians(viewer)
            viewer.draw()
        elif self._scores_next and viewer.score():
            self._scores_next = False
        else:
            self._take_gaussians(viewer)
            viewer.draw()
            self._scores_next = True
            psnr = None if viewer.cameras is None else viewer.cameras.mean_score
            if viewer.score_again() and psnr is not None and self._trainer is not None:
                self._held_out = f"{psnr:.2f} dB at step {self._trainer.step:,}"

    def _take_gaussians(self, viewer: Viewer) -> None:
        assert self._trainer is not None
        if self._trainer.step == self._shown:
            return
        gaussians, learnt = self._trainer.gaussians(), self._trainer.learnt_capture()
        scene, look = viewer.scene, viewer.scene.look
        if learnt.environment is not None:
            look = replace(look, background=learnt.environment)
        viewer.scene = replace(scene, look=look, gaussians=gaussians)
        viewer.frames.change(moving=False)
        self._shown = self._trainer.step

    def _stay(self, viewer: Viewer, act_on_interrupt: Callable[[], None]) -> None:
        """Serve pages until one of them continues the training or all are closed."""
        began = alone = time.monotonic()
        self._take_gaussians(viewer)
        self._tell(always=True)
        while self._paused:
            act_on_interrupt()
            now = time.monotonic()
            alone = now if viewer.requests.any_page else alone
            if now - alone > _GRACE:
                self._go_on()
            if not viewer.work():
                due = viewer.frames.next_due()
                viewer.requests.wait(_TELL_EVERY if due is None else min(due, _TELL_EVERY))
        self._paused_seconds += time.monotonic() - began

    def _tell(self, *, always: bool = False) -> None:
        """Update the table of numbers. No text from files gets into the page's markup."""
        now, report, trainer = time.monotonic(), self._report, self._trainer
        if trainer is None or report is None or (now - self._told < _TELL_EVERY and not always):
            return
        self._told = now
        self._speeds.append((now - self._paused_seconds, trainer.step))
        seconds, steps = (last - first for first, last in zip(self._speeds[0], self._speeds[-1], strict=True))
        total = trainer.config.steps
        remaining = str(timedelta(seconds=round((total - trainer.step) * seconds / steps))) if steps > 0 else "–"
        rows = {
            "step": f"{trainer.step:,} of {total:,}",
            "loss": f"{report.values.loss:.4f}",
            "PSNR, last photograph": f"{report.values.psnr:.2f} dB",
            "PSNR, held-out": self._held_out or "–",
            "Gaussians": f"{report.gaussians:,}",
            "remaining": "paused" if self._paused else remaining,
        }
        self._status.content = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])

    def _toggle(self) -> None:
        self._paused = not self._paused
        self._button.label = "Continue" if self._paused else "Pause"
        if self._viewer is not None:
            self._viewer.requests.wake()

    def _go_on(self) -> None:
        if self._paused:
            self._toggle()

    def _may_take_long(self) -> None:
        if not self._paused:
            raise SplatError("pause the training first: this would take too much of its time")


@contextmanager
def training_viewer(folder: Path) -> Iterator[TrainingViewer]:
    with page_server(LOOPBACK, PORT) as server, closing(TrainingViewer(server, folder)) as viewer:
        yield viewer
