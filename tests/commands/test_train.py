"""`splat train`, with good input and with bad."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.commands.program import refusal, splat


def test_resume_goes_on(run: Path, capture: Path) -> None:
    assert "--resume" in refusal("train", capture, "--out", run, cwd=run.parent)
    result = splat("train", capture, "--out", run, "--resume", cwd=run.parent)
    assert result.returncode == 0, result.stderr


# Bad input: one sentence, which names the culprit.


def test_missing_folder(tmp_path: Path) -> None:
    assert "nowhere" in refusal("train", "nowhere", "--out", "run", cwd=tmp_path)
    assert not (tmp_path / "run").exists()


def test_folder_without_a_capture(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty" in refusal("train", "empty", "--out", "run", cwd=tmp_path)


def test_no_photograph_left(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "transforms.json").write_bytes((capture / "transforms.json").read_bytes())
    assert "bare" in refusal("train", "bare", "--out", "run", cwd=tmp_path)


def test_damaged_photograph(capture: Path, tmp_path: Path) -> None:
    shutil.copytree(capture, tmp_path / "damaged")
    victim = sorted((tmp_path / "damaged" / "images").iterdir())[0]
    victim.write_bytes(victim.read_bytes()[:100])
    assert victim.name in refusal("train", "damaged", "--steps", 5, "--out", "run", cwd=tmp_path)


def test_pose_that_is_not_finite(capture: Path, tmp_path: Path) -> None:
    shutil.copytree(capture, tmp_path / "nan")
    path = tmp_path / "nan" / "transforms.json"
    content = json.loads(path.read_text())
    content["frames"][0]["transform_matrix"][0][3] = float("nan")
    path.write_text(json.dumps(content))
    refusal("train", "nan", "--out", "run", cwd=tmp_path)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--downscale", 0),
        ("--downscale", 1000),
        ("--steps", 0),
        ("--sh-degree", 4),
        ("--ssim-lambda", 2),
        ("--test-every", 1),
        ("--init-num-pts", 0),
    ],
)
def test_bad_option(flag: str, value: object, capture: Path, tmp_path: Path) -> None:
    sentence = refusal("train", capture, flag, value, "--out", "run", cwd=tmp_path)
    assert flag.strip("-").replace("-", "_") in sentence
    assert not (tmp_path / "run").exists()


def test_out_that_cannot_be_written(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in refusal("train", capture, "--steps", 1, "--out", "file/run", cwd=tmp_path)


def test_damaged_checkpoint(run: Path, capture: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    whole = (run / "checkpoint.safetensors").read_bytes()
    (out / "checkpoint.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "checkpoint.safetensors" in refusal("train", capture, "--out", out, "--resume", cwd=tmp_path)
    assert "does not exist" in refusal("train", capture, "--out", tmp_path / "new", "--resume", cwd=tmp_path)
