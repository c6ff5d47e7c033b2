"""The viewer of a run while it trains: between steps, with a share of the time, and none while no page is open."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from splat_py.errors import SplatError
from splat_py.splats.render_modes import Look
from splat_py.viewer.opening import ViewedScene
from splat_py.viewer.share import Share
from splat_py.viewer.viewer import Viewer

if TYPE_CHECKING:
    import viser

    from splat_py.splats.trainer import StepReport, Trainer

# Of the time, for all that is drawn while training goes on: with the server of the page a tenth at most.
DRAWING = 0.07
# Seconds between two updates of the numbers, and so many of them are what speed is taken from.
_TELL_EVERY, _SPEEDS = 0.5, 60
# A paused run goes on when no page has been open for so many seconds: a page that is loaded again comes back sooner.
_GRACE = 5.0
_WARMING_UP = 64
# Share of the time of one core, for photographs on the page.
_READING = 0.02


class TrainingViewer:
    """What `splat train --viewer` shows.

    Args:
        server: of the pages.
        folder: of the run, where pages may have files written.
    """

    def __init__(self, server: viser.ViserServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._share = Share(DRAWING)
        self._status = server.gui.add_markdown("training begins …")
        self._button = server.gui.add_button("Pause")
        self._button.on_click(lambda event: self._toggle())
        self._paused, self._paused_seconds = False, 0.0
        self._viewer: Viewer | None = None
        self._trainer: Trainer | None = None
        self._report: StepReport | None = None
        self._told, self._held_out = 0.0, ""
        self._speeds: deque[tuple[float, int]] = deque(maxlen=_SPEEDS)
        # The step whose Gaussians are shown, and whether a held-out view is compared next.
        self._shown, self._scores_next = -1, False

    def on_start(self, trainer: Trainer) -> None:
        """Compile what draws, so that the first page need not wait for it, and let pages in."""
        self._trainer = trainer
        dataset, config = trainer.dataset, trainer.config
        look = Look(dataset.background, dataset.scene_scale, config.antialiased, dataset.near, trainer.device)
        scene = ViewedScene(look, trainer.gaussians(), dataset, self._folder, scored=not config.refine_cameras)
        first = scene.first_camera()
        assert scene.gaussians is not None
        look.draw(scene.gaussians, first.scaled(min(1.0, _WARMING_UP / max(first.width, first.height))))
        # Where a processor draws, other programs may have it half of the time.
        self._share = Share(DRAWING, time.process_time if trainer.device.software else time.monotonic)
        self._viewer = Viewer(self._server, scene, self._may_film, _READING)

    def on_step(self, report: StepReport) -> None:
        """Of a finished step."""
        self._report = report

    def between_steps(self, act_on_interrupt: Callable[[], None]) -> None:
        """Draw if a page is open and the share allows; stay here while the run is paused."""
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
        """After training."""
        if self._viewer is not None:
            self._viewer.close()

    def _work(self, viewer: Viewer) -> None:
        self._tell()
        job = viewer.requests.next_job()
        if job is not None:
            self._take_gaussians(viewer)
            job()
        elif viewer.frames.next_due() == 0:
            # A page moves, or is new.
            self._take_gaussians(viewer)
            viewer.draw()
        elif self._scores_next and viewer.score():
            self._scores_next = False
        else:
            self._take_gaussians(viewer)
            viewer.draw()
            self._scores_next = True
            if viewer.score_again():
                self._tell_scores(viewer)

    def _take_gaussians(self, viewer: Viewer) -> None:
        """As they are now."""
        assert self._trainer is not None
        if self._trainer.step == self._shown:
            return
        gaussians, learnt = self._trainer.gaussians(), self._trainer.learnt_capture()
        scene, look = viewer.scene, viewer.scene.look
        if learnt.environment is not None:
            look = Look(learnt.environment, look.scene_scale, look.antialiased, look.near, look.device)
        viewer.show(ViewedScene(look, gaussians, scene.dataset, scene.folder, scored=scene.scored))
        self._shown = self._trainer.step

    def _stay(self, viewer: Viewer, act_on_interrupt: Callable[[], None]) -> None:
        """Work for pages until one of them lets training go on, or all are closed."""
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

    def _tell_scores(self, viewer: Viewer) -> None:
        assert self._trainer is not None
        psnr = None if viewer.cameras is None else viewer.cameras.mean_score
        if psnr is not None:
            self._held_out = f"{psnr:.2f} dB at step {self._trainer.step:,}"

    def _tell(self, *, always: bool = False) -> None:
        """The numbers. All of them are ours: nothing of a file gets into the page's markup."""
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

    def _may_film(self) -> None:
        if not self._paused:
            raise SplatError("pause the training first: a video would take more than its share of the time")


@contextmanager
def training_viewer(folder: Path, host: str, port: int) -> Iterator[tuple[TrainingViewer, str]]:
    """The viewer of a run, and the address of its page.

    Raises:
        SplatError: as `page_server`.
    """
    from splat_py.viewer.page_server import address_of, page_server

    with page_server(host, port) as server:
        viewer = TrainingViewer(server, folder)
        try:
            yield viewer, address_of(server)
        finally:
            viewer.close()
