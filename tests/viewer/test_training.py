"""The viewer of a run while it trains."""

import threading
import time
from pathlib import Path

import pytest

from splat_py import Dataset, Gaussians
from splat_py.fit.process import Interrupted
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer
from splat_py.viewer.page_server import page_server
from splat_py.viewer.training import TimeBudget, TrainingViewer
from tests.viewer.conftest import FakePage


class Training:
    """A run with its viewer, in the test's thread; a page acts in another thread."""

    def __init__(self, dataset: Dataset, folder: Path, steps: int) -> None:
        self.trainer = Trainer(dataset, TrainConfig(steps=steps, sh_degree=0))
        self.folder, self.dataset = folder, dataset

    def run(self, act: object = None) -> tuple[Gaussians, TrainingViewer]:
        with page_server("127.0.0.1", 0) as server:
            viewer = TrainingViewer(server, self.folder)
            viewer.on_start(self.trainer)
            ended = threading.Event()
            thread = threading.Thread(target=self._act, args=(act, server.get_port(), viewer, ended))
            if act is not None:
                thread.start()
            try:
                gaussians = self.trainer.fit(viewer.on_step, between_steps=viewer.between_steps)
            finally:
                ended.set()
                if act is not None:
                    thread.join(timeout=30)
                viewer.close()
        return gaussians, viewer

    def _act(self, act: object, port: int, viewer: TrainingViewer, ended: threading.Event) -> None:
        page = FakePage(port)
        page.look(self.dataset.views[0].camera.resized(64, 64))
        act(page, viewer, ended)  # type: ignore[operator]
        page.close()


def test_training_is_the_same_with_and_without_a_viewer(dataset: Dataset, tmp_path: Path) -> None:
    plain = Trainer(dataset, TrainConfig(steps=12, sh_degree=0, accumulate="pair")).fit()
    training = Training(dataset, tmp_path, 12)
    training.trainer = Trainer(dataset, TrainConfig(steps=12, sh_degree=0, accumulate="pair"))
    shown, viewer = training.run()
    assert (plain.means == shown.means).all()
    assert viewer._viewer is not None and viewer._viewer.frames.drawn == 0


def test_a_page_sees_numbers_and_frames_and_can_pause(dataset: Dataset, tmp_path: Path) -> None:
    training = Training(dataset, tmp_path, 10**6)
    seen: dict[str, object] = {}

    def act(page: FakePage, viewer: TrainingViewer, ended: threading.Event) -> None:
        def until(condition: object) -> None:
            # A first frame that took long to compile delays the next ones tenfold.
            began = time.monotonic()
            while not condition() and not ended.is_set() and time.monotonic() - began < 150:  # type: ignore[operator]
                time.sleep(0.02)

        until(lambda: len(page.frames) > 2 and "remaining" in viewer._status.content)
        seen["frames"], seen["status"] = len(page.frames), viewer._status.content
        page.press("Render to MP4")
        until(lambda: any("pause the training" in str(m) for m in page.messages))
        seen["refused"] = any("pause the training" in str(m) for m in page.messages)
        until(lambda: "dB at step" in viewer._status.content)
        seen["held out"] = viewer._status.content
        page.press("Pause")
        until(lambda: "paused" in viewer._status.content)
        step = training.trainer.step
        # A paused run draws on request, without a limit.
        page.look(dataset.views[1].camera.resized(64, 64))
        count = len(page.frames)
        until(lambda: len(page.frames) > count)
        seen["paused"] = training.trainer.step == step and len(page.frames) > count
        page.press("Pause")
        until(lambda: training.trainer.step > step + 2)
        seen["went on"] = training.trainer.step > step + 2
        page.press("Pause")
        until(lambda: viewer._paused)
        seen["interrupted"] = True

    def stop() -> None:
        if seen.get("interrupted"):
            raise Interrupted(2)

    training.trainer.fit = lambda on_step, between_steps: _loop(training.trainer, on_step, between_steps, stop)  # type: ignore
    with pytest.raises(Interrupted):
        training.run(act)
    assert all(word in str(seen["status"]) for word in ("step", "loss", "PSNR", "remaining", "1,000,000"))
    assert int(str(seen["frames"])) > 2
    assert "dB at step" in str(seen["held out"])
    assert seen["refused"] and seen["paused"] and seen["went on"]


def _loop(trainer: Trainer, on_step: object, between_steps: object, stop: object) -> Gaussians:
    """Like `Trainer.fit`, without its signals."""
    while True:
        stop()  # type: ignore[operator]
        between_steps(stop)  # type: ignore[operator]
        trainer.advance()
        trainer._report(on_step)  # type: ignore[arg-type]


def test_a_pause_ends_when_the_page_is_closed(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splat_py.viewer.training._GRACE", 0.3)
    training = Training(dataset, tmp_path, 60)

    def act(page: FakePage, viewer: TrainingViewer, ended: threading.Event) -> None:
        while not page.frames and not ended.is_set():
            time.sleep(0.01)
        page.press("Pause")

    gaussians, viewer = training.run(act)
    assert len(gaussians) and training.trainer.step == 60 and not viewer._paused


def test_work_takes_its_share() -> None:
    now = [0.0]
    share, worked = TimeBudget(0.1, lambda: now[0]), 0.0
    for tick in range(10_000):
        now[0] += 0.01
        if share.allows:
            with share.working():
                took = 0.003 * (1 + tick % 7) if tick < 9000 else 2.0
                now[0] += took
                worked += took
        # The share of work is bounded at any time, except for work that took longer than expected.
        assert worked <= 0.1 * now[0] + (0.03 if tick < 9000 else 2.0)
    assert worked / now[0] > 0.09
    # Time without work is saved, but only up to a limit.
    now[0] += 1e6
    pieces = 0
    while share.allows:
        pieces += 1
        with share.working():
            now[0] += 0.1
    assert pieces < 10
