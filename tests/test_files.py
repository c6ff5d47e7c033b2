"""What is written to something that is no file."""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path

import pytest

from splat_py.errors import SplatError
from splat_py.files import require_writable, write_json

pytestmark = pytest.mark.skipif(platform.system() == "Windows", reason="there are no pipes with names there")


def test_a_pipe_gets_the_bytes_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "scores.json"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_json(pipe, {"psnr": 30})
    reader.join(5)
    assert b"".join(read) == b'{\n  "psnr": 30\n}\n'
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_to_a_device_stays_what_it_is(tmp_path: Path) -> None:
    link = tmp_path / "nowhere.json"
    link.symlink_to(os.devnull)
    write_json(link, {})
    assert link.is_symlink()
    assert Path(os.devnull).is_char_device()


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"as it was")
    for path, message in (
        (tmp_path, "is a folder; name a file"),
        (tmp_path / "file" / "scores.json", "cannot write .*: Not a directory|File exists"),
        (Path("/proc/scores.json"), "cannot write /proc/scores.json"),
    ):
        if path.parent.is_dir() or path.parent.is_file():
            with pytest.raises(SplatError, match=message):
                require_writable(path)
    for path in (tmp_path / "file", tmp_path / "new" / "scores.json", Path(os.devnull)):
        require_writable(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "new"]
    assert (tmp_path / "file").read_bytes() == b"as it was"


def test_a_device_that_takes_nothing_is_named(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.is_char_device():
        pytest.skip("there is no device that is always full")
    link = tmp_path / "full.json"
    link.symlink_to(full)
    with pytest.raises(SplatError, match=r"cannot write .*full\.json: No space left"):
        write_json(link, {})
