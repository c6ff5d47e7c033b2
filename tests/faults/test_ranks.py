"""Processes that train together find what one process finds. If one ends, all end, with one sentence and a checkpoint from
which any number of processes goes on."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from splat_py import load_dataset
from splat_py.base.errors import RankLostError
from splat_py.commands.main import main
from splat_py.fit.distributed import Ranks
from splat_py.fit.process import Interrupted, Launch, launch_of
from splat_py.gpu.device import get_device
from splat_py.scene.data_options import DataOptions
from splat_py.train import run
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.run import RunFolder
from splat_py.train.trainer import StepReport, Trainer
from tests.faults.forks import SMALL
from tests.refusals import refused
from tests.train.refinement import assert_same_bits

# Five photographs for training: two processes leave one over in each epoch.
CAPTURE = 6, 32
# Refines after step 5, and prunes after steps 11 and 15.
CONFIG = replace(SMALL, steps=20, batch=2, init_num_pts=150, densify_every=6, prune_contribution=0.01, exposure=True)
# Two processes go on after step JOIN; the second one is killed in step KILL.
JOIN, KILL = 3, 13


def test_one_process_then_two_then_one_again(capture: Path, tmp_path: Path) -> None:
    """The result equals one process's. The lists of one of the two do not fit at first, and then that process is killed."""
    straight = Trainer(load_dataset(capture), CONFIG)
    straight.fit()
    assert straight.parameters.count > 150 and straight.removals[0].after < straight.removals[0].before

    def stop(report: StepReport) -> None:
        if report.step == JOIN - 1:
            os.kill(os.getpid(), signal.SIGINT)

    out = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run.train(DataOptions(capture), CONFIG, out.root, on_step=stop)
    assert Checkpoint.load(out.checkpoint).step == JOIN

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"}
    command = [*torchrun, __file__, "train", capture, "--resume", "--out", out.root]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    printed = result.stdout + result.stderr
    assert result.returncode != 0
    assert printed.count("initial Gaussians") == 1, printed
    (sentence,) = re.findall(r"^splat: (.*)$", printed, re.MULTILINE)
    assert sentence == (
        "another process of this training has ended, and the training with it; "
        f"{out.checkpoint} is safe: continue from it with --resume"
    )
    # The only traceback is torchrun's own.
    assert printed.count("Traceback (most recent call last)") == 1 and "ChildFailedError" in printed, printed
    assert Checkpoint.load(out.checkpoint).step == KILL

    run.train(DataOptions(capture), replace(CONFIG, batch=0), out.root, resume=True)
    assert_same_bits(Checkpoint.load(out.checkpoint).state, straight.checkpoint().state)
    assert [point["step"] for point in out.metrics()["curve"]] == list(range(KILL, 20))


class Other(Ranks):
    """The second of two processes: it finds the same as the first one, and may receive a signal, or be gone."""

    signals: ClassVar[dict[int, int]] = {}
    calls: ClassVar[int] = 0

    def largest(self, values: list[int]) -> list[int]:  # type: ignore[override]
        type(self).calls += 1
        if self.calls in self.signals:
            number = self.signals[self.calls]
            if number == signal.SIGKILL:
                raise RankLostError("gone")
            return [values[0], number]
        return list(values)

    def total(self, values: list[float]) -> list[float]:  # type: ignore[override]
        return [2 * value for value in values]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Interrupted), (signal.SIGKILL, RankLostError)])
def test_all_stop_after_the_same_step(
    number: int, error: type[BaseException], capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process keeps the common state: with the step in which they agreed to stop, or without the lost one."""
    monkeypatch.setattr(Ranks, "_exchange", lambda *arguments: None)
    told = type("Told", (Other,), {"signals": {4: number}})
    trainer = Trainer(load_dataset(capture), CONFIG, distributed=told(0, 2))
    with pytest.raises(error):
        trainer.fit(checkpoint=tmp_path / "checkpoint.safetensors")
    assert Checkpoint.load(tmp_path / "checkpoint.safetensors").step == (4 if number == signal.SIGTERM else 3)


def test_processes_that_have_parted() -> None:
    class Parted(Ranks):
        def largest(self, values: list[int]) -> list[int]:  # type: ignore[override]
            return [max(value, 1) for value in values]

    says, array = "the processes have diverged after step 7: .* resume from the last checkpoint", np.ones((3, 2), np.float32)
    refused(says, Parted(0, 2).require_equal, [get_device().memory.array(array)], 7)


TORCHRUN = {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; it must be a whole number from 1 to 65536"),
        ({"RANK": ""}, "WORLD_SIZE is 4, but RANK is not set; start several processes with torchrun"),
        ({"RANK": "4"}, "RANK is '4'; it must be a whole number from 0 to 3"),
        ({"MASTER_ADDR": ""}, "WORLD_SIZE is 4, but MASTER_ADDR is not set"),
        ({"MASTER_PORT": "-1"}, "MASTER_PORT is '-1'"),
        ({"MASTER_PORT": "9" * 50}, "MASTER_PORT is '9999"),
    ],
)
def test_environments_that_contradict_themselves(changes: dict[str, str], says: str) -> None:
    refused(re.escape(says), launch_of, TORCHRUN | changes)


def test_what_torchrun_says_and_shares_of_a_batch() -> None:
    assert launch_of(TORCHRUN) == Launch(2, 4, 1, "here", 29500)
    assert launch_of({"WORLD_SIZE": "1"}) == launch_of({}) == Launch()
    ranks = [Ranks(rank, 3) for rank in range(3)]
    assert [list(range(6))[one.own(6)] for one in ranks] == [[0, 1], [2, 3], [4, 5]]
    assert [ranks[0].batch_of(batch) for batch in (0, 3, 9)] == [3, 3, 9] and Ranks().batch_of(0) == 1
    refused("batch is 4, which 3 processes cannot divide evenly", ranks[1].batch_of, 4)


@pytest.mark.parametrize("arguments", [("train", "nowhere", "--out", "run"), ("train", "--abacus"), ("render", "nowhere")])
@pytest.mark.parametrize("rank", range(2))
def test_what_all_would_say_one_says(
    rank: int, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in (TORCHRUN | {"RANK": str(rank)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["splat", *arguments])
    monkeypatch.setattr(Launch, "speaks", lambda self: self.rank == 0)
    monkeypatch.setattr("splat_py.commands.terminal.console.quiet", False)
    monkeypatch.setattr("warnings.showwarning", None)
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capfd.readouterr()
    assert stop.value.code and (rank == 0) == bool(out + err), out + err


def train_and_be_killed() -> None:
    """Run `splat`; the second process has too short lists, and is killed."""
    rank, submit, join = int(os.environ["RANK"]), Trainer._submit, Trainer.fit

    def submit_or_die(trainer: Trainer, step: int) -> int:
        if rank == 1 and step == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        return submit(trainer, step)

    def fit_in_little(trainer: Trainer, *arguments: object) -> object:
        if rank == 1:
            trainer._gradients.capacity = 8
        return join(trainer, *arguments)  # type: ignore[arg-type]

    Trainer._submit, Trainer.fit = submit_or_die, fit_in_little  # type: ignore[method-assign, assignment]
    main()


if __name__ == "__main__":
    train_and_be_killed()
