"""The lock on a run's folder, and the files that killed processes leave in it."""

import errno
import os
import platform
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import splat_py.fit.run_folder as run_lock_module
from splat_py.base.errors import SplatError
from splat_py.fit.run_folder import run_lock
from tests.faults.forks import die_at, forked
from tests.refusals import refused

# The calls of `run_lock`, in order.
CALLS: tuple[tuple[Any, str], ...] = (
    (Path, "mkdir"),
    (os, "open"),
    (run_lock_module, "_lock"),
    (os, "fstat"),
    (Path, "unlink"),
    (os, "close"),
    (Path, "rmdir"),
)


def hold(folder: Path) -> None:
    with run_lock(folder):
        pass


def test_one_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with run_lock(out):
        with pytest.raises(SplatError, match="in use by another run; wait for it or choose another --out"), run_lock(out):
            pytest.fail("held twice")
        assert (out / ".lock").exists()
    with run_lock(out):
        (out / "scene.ply").touch()
    assert [path.name for path in out.iterdir()] == ["scene.ply"]


def test_a_live_process_keeps_it_and_a_dead_one_does_not(tmp_path: Path) -> None:
    code = f"from splat_py.fit.run_folder import run_lock\nwith run_lock(__import__('pathlib').Path({str(tmp_path)!r})):\n"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code + " print(flush=True)\n input()"], **pipes)
    assert process.stdout.readline()
    refused("in use", hold, tmp_path)
    process.kill()
    process.communicate()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    hold(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(platform.system() == "Windows", reason="processes there cannot be forked")
@pytest.mark.parametrize("late", range(2))
@pytest.mark.parametrize("call", range(len(CALLS)), ids=[name for _, name in CALLS])
def test_a_kill_at_any_moment_leaves_a_folder_that_is_free_at_once(call: int, late: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    pid = forked(lambda: (die_at(*CALLS[call], late), hold(out)))
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    with run_lock(out):
        assert [path.name for path in out.iterdir()] == [".lock"]
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.skipif(platform.system() == "Windows", reason="processes there cannot be forked")
def test_of_many_processes_one_holds_it(tmp_path: Path) -> None:
    """Each process takes and releases the lock, or is killed with it, many times; two holders would create the same file."""
    out = tmp_path / "run"
    out.mkdir()

    def hold_often(number: int) -> None:
        held = 0
        while held < 100:
            with suppress(SplatError), run_lock(out):
                held += 1
                os.close(os.open(tmp_path / "holder", os.O_CREAT | os.O_EXCL))
                os.unlink(tmp_path / "holder")
                if held == 50 and number % 2:
                    os.kill(os.getpid(), signal.SIGKILL)

    pids = [forked(partial(hold_often, number)) for number in range(4)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, signal.SIGKILL] * 2
    hold(out)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"pid": 1, "started": 0, "host": "elsewhere"}'])
def test_what_is_in_the_file_does_not_matter(content: bytes, tmp_path: Path) -> None:
    """Older versions wrote the name of their process there."""
    (tmp_path / ".lock").write_bytes(content)
    hold(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(run_lock_module, "_lock", fail)
    with pytest.warns(UserWarning, match="is on a disk without file locks; let no other run write there"), run_lock(tmp_path):
        assert (tmp_path / ".lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_folders_that_stay_empty_are_not_left(tmp_path: Path) -> None:
    with pytest.raises(SplatError, match="bad option"), run_lock(tmp_path / "deep" / "run"):
        raise SplatError("bad option")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    hold(tmp_path / "mine")
    assert (tmp_path / "mine").is_dir()
    (tmp_path / "file").touch()
    refused("cannot write to .*file/run", hold, tmp_path / "file" / "run")
