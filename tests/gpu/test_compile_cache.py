"""Compiled kernels are kept between processes; a damaged or read-only cache costs compiling, but never fails a command."""

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import splat_py
from splat_py.gpu.compile_cache import CompileCache

# Id of a user without files, on Linux and macOS.
NOBODY = 65534


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the system's temporary folder; nothing runs at exit, and warnings are errors."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr("splat_py.gpu.compile_cache.atexit.register", lambda function: None)
    warnings.simplefilter("error")
    return folder


def database(cache: CompileCache) -> Path:
    assert cache.folder is not None
    return cache.folder / "rhi" / "data.mdb"


def kept(folder: Path, content: bytes) -> Path:
    """The file that a process leaves in `folder` after it compiled `content`."""
    cache = CompileCache(folder)
    database(cache).write_bytes(content)
    cache._close()
    (file,) = folder.iterdir()
    return file


def test_what_a_process_compiles_the_next_one_has(tmp_path: Path, temporary: Path) -> None:
    kept(tmp_path / "kept", b"one")
    file = kept(tmp_path / "kept", b"two")
    cache = CompileCache(tmp_path / "kept")
    assert database(cache).read_bytes() == b"two"
    written = file.stat().st_mtime_ns
    cache._close()
    assert file.stat().st_mtime_ns == written
    assert not list(temporary.iterdir())


def test_the_larger_of_two_copies_is_kept(tmp_path: Path) -> None:
    """Two processes compile at once; the one with fewer kernels stores none."""
    both = [CompileCache(tmp_path / "kept") for _ in range(2)]
    for cache, content in zip(both, (b"three kernels", b"two"), strict=True):
        database(cache).write_bytes(content)
        cache._close()
    (file,) = (tmp_path / "kept").iterdir()
    assert file.read_bytes() == b"three kernels"


@pytest.mark.parametrize("damage", [b"", b"tw", b"twp", b"two and more"])
def test_a_damaged_file_is_named_removed_and_made_anew(damage: bytes, tmp_path: Path) -> None:
    file = kept(tmp_path / "kept", b"two")
    file.write_bytes(damage)
    with pytest.warns(UserWarning, match=rf"{tmp_path / 'kept'}, is damaged: kernels are compiled again"):
        cache = CompileCache(tmp_path / "kept")
    assert not database(cache).exists() and not file.exists()
    assert kept(tmp_path / "kept", b"two").read_bytes() == b"two"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match=rf"{tmp_path / 'file' / 'kept'}, cannot be written"):
        cache = CompileCache(tmp_path / "file" / "kept")
    database(cache).write_bytes(b"works all the same")
    cache._close()


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a user who is not root. Root may write anywhere, and others may not enter the folders of root's tests."""
    with TemporaryDirectory(dir=None if os.geteuid() else "/tmp") as name:
        folder = Path(name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        root = os.geteuid() == 0
        if root:
            os.chown(folder, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders on Windows are not read-only")
def test_a_read_only_folder_is_read(unprivileged: Path) -> None:
    folder = unprivileged / "kept"
    file = kept(folder, b"two")
    folder.chmod(0o500)
    cache = CompileCache(folder)
    assert database(cache).read_bytes() == b"two"
    database(cache).write_bytes(b"three")
    with pytest.warns(UserWarning, match="cannot be written"):
        cache._close()
    assert [path.read_bytes() for path in folder.iterdir()] == [b"two"] and file.exists()
    folder.chmod(0o700)


def test_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.warns(UserWarning, match="cannot be used"):
        assert CompileCache(tmp_path / "kept").folder is None


def test_a_killed_process_has_kept_its_kernels_and_its_copy_goes(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CompileCache(tmp_path / "kept")
    database(cache).write_bytes(b"one")
    cache.kernel_is_due()
    assert not list((tmp_path / "kept").iterdir())
    monkeypatch.setattr("splat_py.gpu.compile_cache._KEEP_EVERY_SECONDS", -1.0)
    cache.kernel_is_due()
    assert [file.read_bytes() for file in (tmp_path / "kept").iterdir()] == [b"one"]
    (abandoned,) = temporary.iterdir()
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    abandoned.rename(temporary / f"splat_py-kernels-{process.pid}-x")
    alive = CompileCache(tmp_path / "kept")
    CompileCache(tmp_path / "kept")
    assert len(list(temporary.iterdir())) == 2 and alive.folder in temporary.iterdir()


def test_a_forked_child_leaves_its_parents_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CompileCache(tmp_path / "kept")
    database(cache).write_bytes(b"one")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    cache._close()
    assert database(cache).exists() and not list((tmp_path / "kept").iterdir())


def test_old_folders_go(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / "kept" / str(number)
        kept(folder, b"one")
        os.utime(folder, (number, number))
    CompileCache(tmp_path / "kept" / "3")
    assert {folder.name for folder in (tmp_path / "kept").iterdir()} == {"3", "15", "16", "17", "18", "19"}


_SORT = """if True:
    import numpy as np
    from splat_py import get_device
    from splat_py.gpu.sorting import Pairs, RadixSort
    device = get_device()
    array = device.memory.array
    recorder = device.record()
    keys = array(np.arange(9, dtype=np.uint32)[::-1].copy())
    pairs = Pairs(keys, array(np.arange(9, dtype=np.uint32)))
    RadixSort(device, 9).record(recorder, pairs, array(np.array([9], np.uint32)), bits=32)
    recorder.submit()
    print(keys.numpy().tolist())
"""


def test_a_device_opens_with_a_cache_that_is_cut_off(tmp_path: Path) -> None:
    """SlangPy maps its database into memory; a file cut short ended the process (SIGBUS)."""
    folders = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    environment = os.environ | folders | {"PYTHONPATH": str(Path(splat_py.__file__).parents[1])}

    def sort() -> str:
        command = [sys.executable, "-c", _SORT]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == 0, result.stderr
        assert str(list(range(9))) in result.stdout
        return result.stderr

    assert not sort()
    files = list(tmp_path.rglob("kernels-*.mdb"))
    for file in files:
        with file.open("r+b") as content:
            content.truncate(file.stat().st_size // 2)
    assert "is damaged" in sort()
    assert not sort()
    assert len(list(tmp_path.rglob("kernels-*.mdb"))) == 1
