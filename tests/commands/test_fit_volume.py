"""`splat fit-volume`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.commands.program import refusal, splat


def test_fit_volume(capture: Path, tmp_path: Path) -> None:
    options = ["--resolutions", 6, 12, "--steps-per-resolution", 5, "--sh-degree", 0, "--frames", 2]
    result = splat("fit-volume", capture, *options, "--out", "runs/fit", "--export", "field.npz", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "held-out views: PSNR" in result.stdout
    names = {path.name for path in (tmp_path / "runs" / "fit").iterdir()}
    assert {"field.safetensors", "checkpoint.safetensors", "metrics.json", "held-out", "turntable.mp4"} <= names
    with np.load(tmp_path / "field.npz") as field:
        assert max(field["density"].shape) == 12
    resumed = splat("fit-volume", capture, "--out", "runs/fit", "--resume", "--frames", 0, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["nowhere"], "nowhere"),
        (["capture", "--box", 0, 0, 0, 1, 0, 1], "box is degenerate"),
        (["capture", "--export", "field.ply"], "field.ply"),
        (["capture", "--frames", -1], "--frames"),
        (["capture", "--frames", 10**20], "--frames"),
        (["capture", "--resume"], "checkpoint.safetensors does not exist"),
    ],
)
def test_fit_volume_refuses(capture: Path, tmp_path: Path, arguments: list[object], culprit: str) -> None:
    (tmp_path / "capture").symlink_to(capture)
    assert culprit in refusal("fit-volume", *arguments, "--out", "run", cwd=tmp_path)
    assert not (tmp_path / "run").exists()


def test_fit_volume_keeps_an_existing_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"precious")
    assert "--resume" in refusal("fit-volume", "nowhere", "--out", "run", cwd=tmp_path)
    assert "damaged" in refusal("fit-volume", "nowhere", "--out", "run", "--resume", cwd=tmp_path)
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == b"precious"
