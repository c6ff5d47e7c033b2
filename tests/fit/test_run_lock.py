"""The lock on a run's folder, and what killed processes leave in it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from splat_py.errors import SplatError
from splat_py.fit.run_lock import run_lock


def write_lock(folder: Path, pid: int, started: float, host: str | None = None) -> None:
    folder.mkdir(exist_ok=True)
    (folder / ".lock").write_text(json.dumps({"pid": pid, "started": started, "host": host or platform.node()}))


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
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_lock(tmp_path, process.pid, psutil.Process(process.pid).create_time())
    with pytest.raises(SplatError, match="in use"), run_lock(tmp_path):
        pass
    process.kill()
    process.communicate()
    with run_lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_another_process_has_by_now(tmp_path: Path) -> None:
    own = psutil.Process()
    write_lock(tmp_path, own.pid, own.create_time() - 3600)
    with run_lock(tmp_path):
        pass


def test_another_machine_keeps_it(tmp_path: Path) -> None:
    write_lock(tmp_path, 2**22 + 1, 0, "elsewhere")
    with pytest.raises(SplatError, match=r"if there is none, delete .*\.lock"), run_lock(tmp_path):
        pass


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"pid": "x", "started": 0}', b'{"pid": -1}'])
def test_a_damaged_lock(tmp_path: Path, content: bytes) -> None:
    """Another process may just be writing it; an old one is nobody's."""
    lock = tmp_path / ".lock"
    lock.write_bytes(content)
    with pytest.raises(SplatError, match="in use"), run_lock(tmp_path):
        pass
    os.utime(lock, (time.time() - 60,) * 2)
    with run_lock(tmp_path):
        pass


def test_folders_that_stay_empty_are_not_left(tmp_path: Path) -> None:
    with pytest.raises(SplatError, match="bad option"), run_lock(tmp_path / "deep" / "run"):
        raise SplatError("bad option")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with run_lock(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()


def test_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SplatError, match=r"cannot write to .*file/run"), run_lock(tmp_path / "file" / "run"):
        pass


def test_half_written_files_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "held-out").mkdir()
    lost = [".checkpoint-ab_12cde.safetensors", ".run-00000000.json", ".scene-abcdefgh.ply", "held-out/.r_0.1-abcdefgh.png"]
    kept = ["checkpoint.safetensors", ".gitignore", ".notes-12345678.txt", ".run-short.json", "held-out/view.png"]
    for name in lost + kept:
        (tmp_path / name).touch()
    with run_lock(tmp_path):
        left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*kept, ".lock"}
