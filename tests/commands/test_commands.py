"""The command line as a user meets it: from another folder, with good input and with bad."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import imageio.v3 as iio
import numpy as np
import pytest

from splat_py.commands import main as cli
from splat_py.demo.scene import write_demo_scene
from splat_py.scene import Gaussians


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def splat(*arguments: object, cwd: Path, **environment: str) -> Result:
    """Run a command in this process, which has torch and the device at hand already."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["splat", *map(str, arguments)])
        # Commands set these two.
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        patch.setenv("SPLAT_DEVICE", os.environ.get("SPLAT_DEVICE", ""))
        patch.setenv("COLUMNS", "200")
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Result(code, out.getvalue(), err.getvalue())


def refusal(*arguments: object, cwd: Path, **environment: str) -> str:
    """The one line that a refused command prints."""
    result = splat(*arguments, cwd=cwd, **environment)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("splat: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_runs_as_a_program_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "splat_py.commands.main", "eval", "nowhere"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("splat: nowhere")
    assert "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_scene(tmp_path_factory.mktemp("capture") / "demo", views=9, size=32)


@pytest.fixture(scope="module")
def run(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    result = splat("train", capture, "--steps", 20, "--out", "runs/small", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "PSNR" in result.stdout
    return folder / "runs" / "small"


def test_eval_agrees_with_training(run: Path) -> None:
    result = splat("eval", run, "--json", "scores.json", "--pictures", "pictures", cwd=run.parent)
    assert result.returncode == 0, result.stderr
    scores = json.loads((run.parent / "scores.json").read_text())
    trained = json.loads((run / "metrics.json").read_text())["held_out"]
    assert scores["psnr"] == pytest.approx(trained["psnr"], abs=1e-4)
    assert scores["ssim"] == pytest.approx(trained["ssim"], abs=1e-4)
    assert len(list((run.parent / "pictures").glob("*.png"))) == len(scores["views"]) == 2


def test_render_views_and_video(run: Path) -> None:
    result = splat("render", run, "--out", "views", "--video", "orbit.mp4", "--frames", 4, "--scale", 1.5, cwd=run.parent)
    assert result.returncode == 0, result.stderr
    views = sorted((run.parent / "views").glob("*.png"))
    assert [iio.imread(view).shape for view in views] == [(48, 48, 3)] * 2
    assert iio.imread(run.parent / "orbit.mp4").shape == (4, 48, 48, 3)


def test_export_writes_what_training_wrote(run: Path) -> None:
    result = splat("export", run, "again.ply", cwd=run.parent)
    assert result.returncode == 0, result.stderr
    assert (run.parent / "again.ply").read_bytes() == (run / "scene.ply").read_bytes()


def test_resume_goes_on(run: Path, capture: Path) -> None:
    assert "--resume" in refusal("train", capture, "--out", run, cwd=run.parent)
    result = splat("train", capture, "--out", run, "--resume", cwd=run.parent)
    assert result.returncode == 0, result.stderr


def test_a_ply_is_evaluated_against_any_capture(run: Path, capture: Path) -> None:
    result = splat("eval", run / "scene.ply", "--data", capture, cwd=run.parent)
    assert result.returncode == 0, result.stderr


def test_devices_says_what_is_taken_and_why(tmp_path: Path) -> None:
    result = splat("devices", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "→" in result.stdout
    assert "SPLAT_DEVICE" in result.stdout


def test_help_teaches(tmp_path: Path) -> None:
    for command in ("train", "render", "eval", "export", "fit-image", "fit-volume", "devices", "bench", "selftest", "demo"):
        result = splat(command, "--help", cwd=tmp_path)
        assert result.returncode == 0
        assert len(result.stdout.splitlines()) > 5


def test_bench_writes_medians(tmp_path: Path) -> None:
    result = splat("bench", "--gaussians", 500, "--side", 64, "--repeats", 2, "--out", "figures.json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    (times,) = figures["benchmarks"].values()
    assert times["forward_and_backward"] > times["forward"] > 0


def test_fit_image(tmp_path: Path) -> None:
    y, x = np.mgrid[:24, :40]
    iio.imwrite(tmp_path / "ramp.png", np.stack([x * 6, y * 10, 255 - x * 6], -1).astype(np.uint8))
    result = splat("fit-image", "ramp.png", "--blobs", 50, "--steps", 30, "--out", "fit", "--video", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert iio.imread(tmp_path / "fit" / "fit.png").shape == (24, 40, 3)
    assert (tmp_path / "fit" / "blobs.safetensors").exists()
    assert (tmp_path / "fit" / "fit.mp4").exists()
    assert "absent.png" in refusal("fit-image", "absent.png", "--out", "fit", cwd=tmp_path)
    assert "blobs" in refusal("fit-image", "ramp.png", "--blobs", 0, "--out", "none", cwd=tmp_path)
    (tmp_path / "text.png").write_text("not a picture")
    assert "text.png" in refusal("fit-image", "text.png", "--out", "fit", cwd=tmp_path)


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


# Bad input: one sentence, which names the culprit.


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["nowhere"], "nowhere"),
        (["capture", "--box", 0, 0, 0, 1, 0, 1], "box is degenerate"),
        (["capture", "--export", "field.ply"], "field.ply"),
        (["capture", "--frames", -1], "--frames"),
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


def test_bad_scenes(run: Path, capture: Path, tmp_path: Path) -> None:
    assert "--data" in refusal("eval", run / "scene.ply", cwd=tmp_path)
    assert "run.json" in refusal("eval", tmp_path, cwd=tmp_path)
    (tmp_path / "text.ply").write_text("not a PLY")
    assert "text.ply" in refusal("eval", "text.ply", "--data", capture, cwd=tmp_path)
    assert "absent.ply" in refusal("eval", "absent.ply", "--data", capture, cwd=tmp_path)
    assert "--out" in refusal("render", run, cwd=tmp_path)
    assert ".ply" in refusal("export", run, "scene.obj", cwd=tmp_path)


def test_an_empty_scene_renders_the_background(run: Path, capture: Path, tmp_path: Path) -> None:
    empty = Gaussians.load_ply(run / "scene.ply")
    for name in ("means", "quats", "log_scales", "logit_opacities", "sh"):
        setattr(empty, name, getattr(empty, name)[:0])
    empty.save_ply(tmp_path / "empty.ply")
    result = splat("render", "empty.ply", "--data", capture, "--out", "views", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for view in (tmp_path / "views").glob("*.png"):
        assert not np.any(iio.imread(view))


def test_unknown_device(tmp_path: Path) -> None:
    assert "abacus" in refusal("bench", "--device", "abacus", cwd=tmp_path)
    assert "abacus" in refusal("bench", cwd=tmp_path, SPLAT_DEVICE="abacus")
    assert "metal" in refusal("bench", "--device", "metal", cwd=tmp_path)
