"""A run that is killed many times, at any point: files are whole or absent, and `--resume` reaches the same result."""

import atexit
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest

from splat_py import Gaussians
from splat_py.fit.process import signals_as_interrupts
from splat_py.fit.run_folder import RunRecord
from splat_py.gpu.arrays import Array
from splat_py.gpu.kernels import Recorder
from splat_py.scene.data_options import DataOptions
from splat_py.train import density, run
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.parameters import Parameters
from splat_py.train.run import RunFolder
from splat_py.train.trainer import Trainer
from tests.faults.forks import SMALL, children_seconds, die_at, do_and_exit, forked, killed_after, output_of
from tests.train.refinement import assert_same_bits

CAPTURE = 4, 24
# Every second step adapts.
CONFIG = replace(SMALL, steps=24, init_num_pts=80, checkpoint_every=2, densify_every=2)
# Kills in total, and runs at the same time; `make soak` sets SOAK_STEPS.
KILLS, AT_ONCE = 400 if "SOAK_STEPS" in os.environ else 24, 2
# The calls of a run, in order: it is killed before and after the first call of each. Other kills are spread over its time.
CALLS: tuple[tuple[Any, str], ...] = (
    (RunRecord, "load_dataset"),
    (Trainer, "__init__"),
    (RunRecord, "save"),
    (Trainer, "advance"),
    (Trainer, "_refine"),
    (Trainer, "save_checkpoint"),
    (Gaussians, "save_ply"),
    (run, "evaluate"),
    (run, "write_json"),
)
# Torch is imported once if a process may be forked and then open a device; Apple's frameworks forbid that.
FORKS = platform.system() == "Linux"


@dataclass
class Kills:
    """Runs that are killed, each in its own process. This process opens no device."""

    capture: Path
    root: Path
    part: int = 0
    runs: int = 0

    @property
    def out(self) -> Path:
        return self.root / f"run {self.part}.{self.runs}"

    def begin_another(self) -> None:
        if list(self.out.glob(".splat_py-*")):
            # The run was killed after its last file was complete. Temporary folders are removed once they are a second old.
            time.sleep(1.1)
            assert os.waitpid(self.begin(), 0)[1] == 0
        assert_same_result(self.out, self.root / "straight")
        self.runs += 1

    def check_files(self) -> None:
        """Check that files under their final names can be read."""
        folder = RunFolder(self.out)
        for path in (path for path in self.out.rglob("*") if path.is_file() and not path.name.startswith(".")):
            readers = {".json": lambda path: json.loads(path.read_text()), ".png": iio.imread}
            readers |= {".safetensors": Checkpoint.load, ".ply": Gaussians.load_ply}
            readers[path.suffix](path)
        assert not folder.metrics_file.exists() or folder.checkpoint.exists()

    def begin(self, call: int = -1, late: int = 0, out: Path | None = None) -> int:
        """Start or resume the run, to be killed at one of the calls, if any; return the process id."""
        out = out or self.out
        if not FORKS:
            arguments = map(str, (self.capture, out, call, late))
            return os.posix_spawn(sys.executable, [sys.executable, "-m", "tests.faults.test_kills", *arguments], os.environ)
        return forked(lambda: train(self.capture, out, call, late))

    def was_killed(self, status: int) -> bool:
        """True if the process was killed, False if it ended well; check that every file is whole."""
        self.check_files()
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL, status
            return True
        assert status == 0, status
        return False

    def kill_at(self, call: int, late: int) -> bool:
        return self.was_killed(os.waitpid(self.begin(call, late), 0)[1])

    def kill_after(self, seconds: float) -> bool:
        return self.was_killed(killed_after(seconds, self.begin()))


def train(capture: Path, out: Path, call: int, late: int) -> None:
    if call >= 0:
        die_at(*CALLS[call], late)
    run.train(DataOptions(capture), CONFIG, out, resume=RunFolder(out).checkpoint.exists())
    atexit._run_exitfuncs()


def main(capture: Path, root: Path) -> None:
    kills = Kills(capture, root)
    assert os.waitpid(kills.begin(out=root / "straight"), 0)[1] == 0
    before = children_seconds()
    assert os.waitpid(kills.begin(out=root / "timed"), 0)[1] == 0
    seconds = children_seconds() - before

    calls = [(call, late) for call in range(len(CALLS)) for late in range(2)]
    moments = np.random.default_rng(0).permutation(np.linspace(0, seconds, KILLS - len(calls)))
    if not FORKS:
        kill(kills, calls, moments)
        return
    parts = ((replace(kills, part=part), calls[part::AT_ONCE], moments[part::AT_ONCE]) for part in range(AT_ONCE))
    pids = [forked(partial(kill, *part)) for part in parts]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * AT_ONCE


def kill(kills: Kills, calls: Sequence[tuple[int, int]], moments: Sequence[float]) -> None:
    for call, late in calls:
        name = CALLS[call][1]
        assert kills.kill_at(call, late), f"{name} was not called"
        print("killed", ("before", "after")[late], name, flush=True)
    for moment in moments:
        # A resumed run may end before that; a new one hardly does.
        for _ in range(2):
            killed = kills.kill_after(moment)
            if killed:
                print(f"killed after {moment:.2f} s", flush=True)
                break
            kills.begin_another()
    kills.was_killed(os.waitpid(kills.begin(), 0)[1])
    kills.begin_another()
    print("runs", kills.runs, flush=True)


@pytest.fixture(scope="module")
def straight(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "run"
    run.train(DataOptions(capture), CONFIG, out)
    return out


def assert_same_result(out: Path, straight: Path) -> None:
    resumed, expected = (Checkpoint.load(RunFolder(folder).checkpoint) for folder in (out, straight))
    assert resumed.step == expected.step == CONFIG.steps
    assert_same_bits(resumed.state, expected.state)
    assert (out / "scene.ply").read_bytes() == (straight / "scene.ply").read_bytes()
    names = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in (out, straight)]
    assert names[0] == names[1]


@pytest.mark.skipif(platform.system() == "Windows", reason="processes there are not killed by signals")
def test_kills(capture: Path, tmp_path: Path) -> None:
    # No other process changes this folder of compiled kernels.
    printed = output_of("tests.faults.test_kills", capture, tmp_path / "runs", XDG_CACHE_HOME=str(tmp_path / "cache"))
    print(printed)
    assert printed.count("killed") >= 0.9 * KILLS


@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGTERM, 2)])
def test_a_signal_within_densification_drops_nothing(
    number: int, times: int, capture: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, came = tmp_path / "run", []
    moved, submit = density.record_moved, Trainer._submit

    def signal_once(moment: str) -> None:
        if moment not in came:
            came.append(moment)
            for _ in range(times):
                os.kill(os.getpid(), number)

    def move_and_signal(recorder: Recorder, parameters: Parameters, origins: Array) -> Parameters:
        # Only a permutation in space leaves the count unchanged.
        if origins.size != parameters.count:
            signal_once("densification")
        return moved(recorder, parameters, origins)

    def submit_and_signal(trained: Trainer, step: int) -> int:
        submission = submit(trained, step)
        if step == 22:
            signal_once("step")
        return submission

    monkeypatch.setattr(density, "record_moved", move_and_signal)
    monkeypatch.setattr(Trainer, "_submit", submit_and_signal)
    steps, checkpoint = [], RunFolder(out).checkpoint
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), signals_as_interrupts():
            run.train(DataOptions(capture), CONFIG, out, resume=checkpoint.exists())
        # The first densification comes before the first checkpoint, and a second signal leaves none of half a step.
        steps.append(Checkpoint.load(checkpoint).step if checkpoint.exists() else 0)
    assert bool(steps[0]) is (times == 1)
    assert came == ["densification", "step"] and steps[0] % 2 == 0
    # A second signal does not wait for the end of the step, so the checkpoint before it stays.
    assert steps[1] == (23 if times == 1 else 22)
    run.train(DataOptions(capture), CONFIG, out, resume=True)
    assert len(Gaussians.load_ply(out / "scene.ply")) > 0
    assert_same_result(out, straight)


if __name__ == "__main__":
    folders = map(Path, sys.argv[1:3])
    if sys.argv[3:]:
        do_and_exit(lambda: train(*folders, *map(int, sys.argv[3:])))
    main(*folders)
