"""A run that is killed, again and again, wherever it is: files are whole or absent, and `--resume` comes to the same end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from splat_py.demo.scene import write_demo_scene
from splat_py.scene import Gaussians
from splat_py.scene.options import DataOptions
from splat_py.splats import densification
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.config import TrainConfig
from splat_py.splats.run import train
from splat_py.splats.run_folder import RunFolder
from splat_py.splats.trainer import Trainer

# Every second step adapts, and gradients add up in a fixed order.
CONFIG = TrainConfig(
    steps=40,
    sh_degree=0,
    init="random",
    init_num_pts=80,
    checkpoint_every=3,
    densify_every=2,
    densify_start=1,
    accumulate="pair",
)
KILLS = 20

# Forks children that train, each of which kills itself at one of the moments that are counted: before a step, and before and
# after each call to the system by which a file is written. Forking saves twenty imports of torch.
_PROGRAM = """
import os, signal, sys
from pathlib import Path
import numpy as np
from splat_py.scene.options import DataOptions
from splat_py.splats import run, trainer
from tests.faults.test_kills import CONFIG, KILLS

capture, out = map(Path, sys.argv[1:])
moments = 0

def dying(function, limit):
    def die_or_go_on(*arguments, **options):
        for when in range(2):
            global moments
            moments += 1
            if moments == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            if when == 0:
                result = function(*arguments, **options)
        return result
    return die_or_go_on

def child(limit):
    for owner, name in ((os, "replace"), (os, "fsync"), (os, "close"), (Path, "chmod"), (trainer.Trainer, "advance")):
        setattr(owner, name, dying(getattr(owner, name), limit))
    run.train(DataOptions(capture), CONFIG, out, resume=(out / "checkpoint.safetensors").exists())

rng = np.random.default_rng(0)
kills = runs = 0
while True:
    # The first ones early, in the writing of run.json and of the first checkpoint; at last none.
    limit = int(rng.integers(1, 12 if kills < 8 else 40)) if kills < KILLS else 0
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(limit)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    runs += 1
    for path in [path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".")]:
        print(path.relative_to(out), flush=True)
        assert path.stat().st_size > 0
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        kills += 1
    else:
        assert status == 0, status
        break
print("kills", kills)
"""


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_scene(tmp_path_factory.mktemp("capture") / "demo", views=4, size=24)


@pytest.fixture(scope="module")
def straight(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    out = tmp_path_factory.mktemp("straight") / "run"
    train(DataOptions(capture), CONFIG, out)
    return out


def assert_same_result(out: Path, straight: Path) -> None:
    resumed, expected = (Checkpoint.load(RunFolder(folder).checkpoint) for folder in (out, straight))
    assert resumed.step == expected.step == CONFIG.steps
    for name, values in expected.state.items():
        np.testing.assert_array_equal(resumed.state[name], values, err_msg=name)
    assert (out / "scene.ply").read_bytes() == (straight / "scene.ply").read_bytes()
    names = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in (out, straight)]
    assert names[0] == names[1]


@pytest.mark.slow
def test_kills(capture: Path, straight: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", _PROGRAM, str(capture), str(out)]
    environment = {**os.environ, "PYTHONPATH": root}
    process = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    kills = int(process.stdout.split()[-1])
    assert kills >= KILLS // 2, "killed often enough before the end"
    assert_same_result(out, straight)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_densification_drops_nothing(
    number: int, capture: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one within a step repeat it."""
    out, came = tmp_path / "run", []
    samples, submit = densification._samples, Trainer._submit

    def signal_once(moment: str) -> None:
        if moment not in came:
            came.append(moment)
            os.kill(os.getpid(), number)

    def samples_and_signal(*arguments: object) -> object:
        signal_once("densification")
        return samples(*arguments)  # type: ignore[arg-type]

    def submit_and_signal(trainer: Trainer, step: int) -> int:
        submission = submit(trainer, step)
        if step == 22:
            signal_once("step")
        return submission

    monkeypatch.setattr(densification, "_samples", samples_and_signal)
    monkeypatch.setattr(Trainer, "_submit", submit_and_signal)
    steps = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(DataOptions(capture), CONFIG, out, resume=bool(steps))
        steps.append(Checkpoint.load(RunFolder(out).checkpoint).step)
    assert came == ["densification", "step"] and steps[1] == 23 and steps[0] % 2 == 0
    train(DataOptions(capture), CONFIG, out, resume=True)
    assert len(Gaussians.load_ply(out / "scene.ply")) > 0
    assert_same_result(out, straight)
