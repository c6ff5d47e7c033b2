"""A full disk: one sentence, the older file untouched, and nothing left behind.

Files may not grow beyond a limit of the process, so a write fails as on a full disk. Kernels are compiled before, as the limit
would apply to their cache, too.
"""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from splat_py import Gaussians
from splat_py.base.errors import SplatError
from splat_py.base.files import require_writable, save_tensors, write_json
from splat_py.demo.scene import write_demo_scene
from splat_py.gpu.compile_cache import CompileCache
from splat_py.scene.pictures import write_image, write_video
from splat_py.shaders import functions, loading
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.trainer import Trainer
from tests.commands.program import refusal, splat
from tests.faults.forks import ROOT
from tests.faults.test_kills_in_writes import a_field
from tests.refusals import refused

pytestmark = pytest.mark.skipif(platform.system() == "Windows", reason="processes there have no limit of a file's size")

RANDOM = np.random.default_rng(0)
STEPS, CHECKPOINT_EVERY = 12, 4


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


WRITERS: dict[str, Callable[[Path], None]] = {
    "tensors.safetensors": lambda path: save_tensors(path, "splat_py", {}, {"x": np.ones(50_000, np.float32)}),
    "metrics.json": lambda path: write_json(path, list(range(50_000))),
    "render.png": lambda path: write_image(path, RANDOM.uniform(size=(200, 200, 3))),
    "render.jpg": lambda path: write_image(path, RANDOM.uniform(size=(400, 400, 3))),
    "scene.ply": lambda path: Gaussians.from_points(RANDOM.normal(size=(2000, 3)), np.ones((2000, 3)), 0).save_ply(path),
    "field.safetensors": lambda path: a_field(0, 8).save(path),
    "field.npz": lambda path: a_field(0, 8).save(path),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("most_bytes", [0, 5_000])
def test_a_full_disk_is_a_sentence_and_the_older_file_stays(name: str, most_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("older")
    with full_disk(most_bytes), pytest.raises(SplatError, match=r"^cannot write .*; free some space") as error:
        WRITERS[name](path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert path.read_text() == "older" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [".mp4", ".gif", ".webm"])
def test_a_disk_that_fills_with_a_video(suffix: str, tmp_path: Path) -> None:
    """The limit holds for ffmpeg's process, too."""
    path, noise = tmp_path / f"film{suffix}", (RANDOM.uniform(size=(64, 64, 3)) for _ in range(20))
    with full_disk(4096):
        refused(f"cannot write a video to {path}", write_video, path, noise)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_demo_scene(tmp_path / "demo", views=4, size=24)
    command = ("train", "demo", "--steps", STEPS, "--checkpoint-every", CHECKPOINT_EVERY, "--sh-degree", 0, "--test-every", 0)
    assert splat(*command, "--out", "whole", cwd=tmp_path).returncode == 0

    save, checkpoint = Trainer.save_checkpoint, tmp_path / "run" / "checkpoint.safetensors"

    def save_once(trainer: Trainer, path: Path) -> None:
        with full_disk(50_000 if path.exists() else 1 << 40):
            save(trainer, path)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save_checkpoint", save_once)
        message = refusal(*command, "--out", "run", cwd=tmp_path)
    assert message.startswith("splat: cannot write run/checkpoint.safetensors: ")
    assert Checkpoint.load(checkpoint).step == CHECKPOINT_EVERY
    assert not list(checkpoint.parent.glob(".checkpoint*"))

    assert splat("train", "demo", "--out", "run", "--resume", "--test-every", 0, cwd=tmp_path).returncode == 0
    assert Checkpoint.load(checkpoint).step == STEPS


def test_pipes_and_links_to_devices_stay_what_they_are(tmp_path: Path) -> None:
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
    link = tmp_path / "nowhere.json"
    link.symlink_to(os.devnull)
    write_json(link, {})
    assert link.is_symlink()
    assert Path(os.devnull).is_char_device()


WRITER = """
import sys, time
from pathlib import Path
from splat_py.base.files import atomic_folder, atomic_path
with atomic_path("out/scene.ply") as file, atomic_folder(Path("out/cells")) as folder:
    file.write_bytes(b"half")
    (folder / "cell").touch()
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_killed_writer_leaves_nothing_for_long(tmp_path: Path) -> None:
    """The next process that writes to the folder removes the files of dead processes, and those of no other."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".notes").touch()
    command, environment = [sys.executable, "-c", WRITER], {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
        writers[0].kill()
        writers[0].wait()
        write_json(tmp_path / "out" / "metrics.json", {})
        left = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert [name for name in left if ".splat_py-" not in name] == [".notes", "metrics.json"] and len(left) == 4
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"as it was")
    for path, message in (
        (tmp_path, "is a folder; name a file"),
        (tmp_path / "file" / "scores.json", "cannot write .*: Not a directory|File exists"),
        (Path("/proc/scores.json"), "cannot write /proc/scores.json"),
    ):
        if path.parent.is_dir() or path.parent.is_file():
            refused(message, require_writable, path)
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
    refused(r"cannot write .*full\.json: No space left", write_json, link, {})


def test_a_folder_for_temporary_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr(functions, "_folder", functions._folder.__wrapped__)
    says = "temporary files cannot be written (.*); free some space, or name another folder in TMPDIR"
    refused(says, loading.source, "public float f(float x) { return x; }")
    refused(says, write_json, os.devnull, {})
    with pytest.warns(UserWarning, match="cannot be used, because temporary files cannot be written"):
        assert CompileCache(tmp_path / "kernels").folder is None
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "kernels").mkdir()
    content = bytes(5000)
    (tmp_path / "kernels" / f"kernels-{hashlib.sha256(content).hexdigest()[:32]}.mdb").write_bytes(content)
    with full_disk(1000):
        refused(says, loading.source, "// " + "x" * 5000)
        with pytest.warns(UserWarning, match="cannot be used, because temporary files cannot be written"):
            assert CompileCache(tmp_path / "kernels").folder is None
    assert not list(tmp_path.glob("splat_py-kernels-*"))
