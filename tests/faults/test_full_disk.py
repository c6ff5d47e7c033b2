"""A disk that takes no more bytes: a sentence, the older file untouched, and nothing left behind.

Files may not grow beyond a limit of the process, which fails a write as a full disk does. Kernels are compiled before, as their
cache would be limited, too.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py.demo.scene import write_demo_scene
from splat_py.errors import SplatError
from splat_py.files import save_tensors, write_json
from splat_py.scene import Gaussians
from splat_py.scene.pictures import write_image
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.trainer import Trainer
from splat_py.volume.field import RadianceField
from tests.commands.program import refusal, splat

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


def a_field() -> RadianceField:
    cube = torch.ones(8, 8, 8)
    return RadianceField(cube, torch.ones(8, 8, 8, 1, 3), np.array([[0, 0, 0], [1, 1, 1.0]]), np.zeros(3, np.float32))


WRITERS: dict[str, Callable[[Path], None]] = {
    "tensors.safetensors": lambda path: save_tensors(path, "splat_py", {}, {"x": np.ones(50_000, np.float32)}),
    "metrics.json": lambda path: write_json(path, list(range(50_000))),
    "render.png": lambda path: write_image(path, RANDOM.uniform(size=(200, 200, 3))),
    "render.jpg": lambda path: write_image(path, RANDOM.uniform(size=(400, 400, 3))),
    "scene.ply": lambda path: Gaussians.from_points(RANDOM.normal(size=(2000, 3)), np.ones((2000, 3)), 0).save_ply(path),
    "field.safetensors": lambda path: a_field().save(path),
    "field.npz": lambda path: a_field().save(path),
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


def test_a_disk_that_fills_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last checkpoint is whole, and the run goes on from it once there is space."""
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
