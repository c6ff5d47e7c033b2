"""A process killed while it writes a file, between two system calls or amid the bytes: the file is the older or the newer
one, and the next process that writes into the folder removes the half-written one.

Run as a program, this forks a process for each of these moments; no device is open there, and torch is imported once.
"""

import itertools
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from splat_py import Gaussians
from splat_py.base import files as writing
from splat_py.base.files import write_json
from splat_py.fit.run_folder import RunRecord
from splat_py.image.pictures import FitCheckpoint, ImageFit
from splat_py.scene.data_options import DataOptions
from splat_py.scene.pictures import write_image, write_video
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.volume.config import VolumeConfig
from splat_py.volume.fitting import VolumeCheckpoint
from splat_py.volume.grid import RadianceField
from tests.faults.forks import forked, output_of

pytestmark = pytest.mark.skipif(platform.system() == "Windows", reason="processes there cannot be forked")

# Writers of files call these in Python; a process may be killed before and after each of them.
CALLS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("open", "close", "mkdir", "fsync", "replace", "rmdir")),
    *((Path, name) for name in ("mkdir", "open")),
)
# Shares of the newer file's bytes after which the process is killed.
AMID = (0.0, 0.5, 0.99)


def a_field(value: int, side: int = 4) -> RadianceField:
    cube = torch.full((side,) * 3, float(value + 1))
    return RadianceField(cube, torch.ones(*cube.shape, 1, 3), np.array([[0, 0, 0], [1, 1, 1.0]]), np.zeros(3, np.float32))


def tensors(value: int, *names: str) -> dict[str, np.ndarray]:
    return {name: np.full((9, 20), value, np.float32) for name in names}


# File name → writer of two versions of it, 0 and 1.
WRITERS: dict[str, Callable[[Path, int], None]] = {
    "splats/checkpoint.safetensors": lambda path, value: Checkpoint(value, TrainConfig(), tensors(value, "a"), 9).save(path),
    "volume/checkpoint.safetensors": lambda p, n: VolumeCheckpoint(n, VolumeConfig(), tensors(n, "grid", "m", "v")).save(p),
    "image/checkpoint.safetensors": lambda p, n: FitCheckpoint(n, 9, "", **tensors(n, "params", "m", "v")).save(p),
    "blobs.safetensors": lambda path, value: ImageFit(**tensors(value, "params"), width=4, height=4, psnr=20.0).save(path),
    "scene.ply": lambda path, value: Gaussians.from_points(np.full((20, 3), value), np.ones((20, 3)), 0).save_ply(path),
    "run.json": lambda path, value: RunRecord(DataOptions(Path("a")), TrainConfig(steps=value + 1)).save(path),
    "metrics.json": lambda path, value: write_json(path, {"steps": value}),
    "report/run.json": lambda path, value: write_json(path, [value] * 9000),
    "held-out/view 1.png": lambda path, value: write_image(path, np.full((20, 20, 3), value * 0.5)),
    "fit.png": lambda path, value: write_image(path, np.full((20, 20, 3), value * 0.5)),
    "field.safetensors": lambda path, value: a_field(value).save(path),
    "field.npz": lambda path, value: a_field(value).save(path),
    "turntable.mp4": lambda path, value: write_video(path, [np.full((16, 16, 3), value * 0.5)]),
}
# Cases with an older file; without one, the folder is absent, too, which only concerns `atomic_path`.
CASES = [*((name, True) for name in WRITERS), ("splats/checkpoint.safetensors", False), ("metrics.json", False)]


@dataclass
class Killed:
    moments: list[str] = field(default_factory=list)
    # Kills that left a half-written file, and kills after which the newer file was there.
    left: int = 0
    newer: int = 0
    problems: list[str] = field(default_factory=list)


def die_at(limit: int, pipe: int) -> None:
    """Kill this process at its `limit`-th moment, and write the moment's name to the pipe."""
    moments = itertools.count(1)

    def at(name: str) -> None:
        if next(moments) == limit:
            os.write(pipe, name.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            at(f"before {name}")
            try:
                return function(*arguments, **options)
            finally:
                at(f"after {name}")

        return call

    for owner, name in CALLS:
        setattr(owner, name, dying(name, getattr(owner, name)))


def die_amid(most_bytes: int, pipe: int) -> None:
    """Have the kernel kill this process, in any library, once a file reaches so many bytes."""
    import resource

    os.write(pipe, b"amid bytes")
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


def killed_at(prepare: Callable[[int, int], None], limit: int, write: Callable[[Path, int], None], path: Path) -> str | None:
    """The name of the moment at which the writer was killed; None if it finished."""
    reading, writing = os.pipe()
    pid = forked(lambda: (prepare(limit, writing), write(path, 1)))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        name = pipe.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXFSZ), status
        return name
    assert status == 0, f"{path}: the writer failed"
    return None


def kills(name: str, root: Path, has_older: bool) -> Killed:
    """Kill the writer of a file at every moment, each time in a new folder."""
    killed, write = Killed(), WRITERS[name]
    versions = []
    for value in range(2):
        write(root / "versions" / str(value) / name, value)
        versions.append((root / "versions" / str(value) / name).read_bytes())
    older, newer = versions
    assert older != newer
    ends = [(die_amid, int(part * len(newer))) for part in AMID if not name.endswith(".mp4")]
    for number, (prepare, limit) in enumerate(itertools.chain(ends, zip(itertools.repeat(die_at), itertools.count(1)))):
        path = root / str(number) / name
        if has_older:
            path.parent.mkdir(parents=True)
            path.write_bytes(older)
        moment = killed_at(prepare, limit, write, path)
        if moment is None:
            assert path.read_bytes() == newer
            return killed
        killed.moments.append(moment)
        if path.suffix == ".mp4":
            wait_for_ffmpeg(path.parent)
        check(killed, path, older if has_older else None, newer)
    raise AssertionError


def check(killed: Killed, path: Path, older: bytes | None, newer: bytes) -> None:
    what = f"{killed.moments[-1]} ({len(killed.moments)})"
    content = path.read_bytes() if path.exists() else None
    if content not in (older, newer):
        killed.problems.append(f"{what}: neither the older file nor the newer one")
    killed.newer += content == newer
    # Pictures of held-out views have a folder inside that of the run.
    run = path.parent.parent if path.parent.name == "held-out" else path.parent
    run.mkdir(parents=True, exist_ok=True)
    files = [file for file in run.rglob("*") if file.is_file() and file != path]
    killed.left += bool(files)
    # The next process that writes there removes what is left; it waits until that is a second old.
    for left in path.parent.glob(".splat_py-*"):
        os.utime(left, (0, 0))
    writing._cleaned.clear()
    write_json(path.parent / "next", 1)
    (path.parent / "next").unlink()
    files = [file for file in run.rglob("*") if file.is_file() and file != path]
    if files:
        killed.problems.append(f"{what}: {[file.name for file in files]} left")


def wait_for_ffmpeg(folder: Path) -> None:
    """Wait until ffmpeg ends, shortly after the process that started it."""
    while any(str(folder) in word for process in psutil.process_iter() for word in _command(process)):
        time.sleep(0.01)


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        if process.name().startswith("ffmpeg"):
            return process.cmdline()
    return []


def main(root: Path) -> None:
    for name, has_older in CASES:
        killed = kills(name, root / name.replace("/", " ") / str(has_older), has_older)
        print(json.dumps([name, has_older, vars(killed)]), flush=True)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Killed]:
    printed = output_of("tests.faults.test_kills_in_writes", tmp_path_factory.mktemp("writes"))
    return {(name, older): Killed(**killed) for name, older, killed in map(json.loads, printed.splitlines())}


@pytest.mark.parametrize(("name", "has_older"), CASES)
def test_a_kill_within_a_write(name: str, has_older: bool, reports: dict[tuple[str, bool], Killed]) -> None:
    killed = reports[name, has_older]
    assert not killed.problems
    # It was killed everywhere, and both outcomes occurred.
    assert {f"{when} {call}" for _, call in CALLS for when in ("before", "after")} <= set(killed.moments)
    assert killed.left > 5 and 2 < killed.newer < len(killed.moments) / 2


if __name__ == "__main__":
    main(Path(sys.argv[1]))
