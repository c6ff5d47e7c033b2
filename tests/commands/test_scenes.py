"""What reads a scene: `splat eval`, `splat render`, `splat export`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from splat_py.scene import Gaussians
from tests.commands.program import refusal, splat


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


def test_a_ply_is_evaluated_against_any_capture(run: Path, capture: Path) -> None:
    result = splat("eval", run / "scene.ply", "--data", capture, cwd=run.parent)
    assert result.returncode == 0, result.stderr


def test_bad_scenes(run: Path, capture: Path, tmp_path: Path) -> None:
    assert "--data" in refusal("eval", run / "scene.ply", cwd=tmp_path)
    assert "run.json" in refusal("eval", tmp_path, cwd=tmp_path)
    (tmp_path / "text.ply").write_text("not a PLY")
    assert "text.ply" in refusal("eval", "text.ply", "--data", capture, cwd=tmp_path)
    assert "absent.ply" in refusal("eval", "absent.ply", "--data", capture, cwd=tmp_path)
    assert "--out" in refusal("render", run, cwd=tmp_path)
    assert "--frames is 1000000" in refusal("render", run, "--video", "a.mp4", "--frames", 1_000_000, cwd=tmp_path)
    assert "name a file" in refusal("eval", run, "--json", tmp_path, cwd=tmp_path)
    assert "--scale is 1e+308" in refusal("render", run, "--out", "views", "--scale", "1e308", cwd=tmp_path)
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


def test_a_run_described_by_an_older_version(run: Path, tmp_path: Path) -> None:
    """run.json as it was before the configuration got the field's names."""
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    content = json.loads(path.read_text())
    content["config"] = {"steps": 20, "random_points": 10, "ssim_share": 0.2, "rate_means": 1.6e-4, "densify_gradient": 2e-4}
    path.write_text(json.dumps(content))
    result = splat("eval", "run", "--json", "scores.json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    trained = json.loads((run / "metrics.json").read_text())["held_out"]
    assert json.loads((tmp_path / "scores.json").read_text())["psnr"] == pytest.approx(trained["psnr"], abs=1e-4)


def test_a_damaged_description(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    content = json.loads(path.read_text())
    for damaged in (path.read_text()[:-9], "[]", json.dumps({**content, "config": {"abacus": 1}}), json.dumps({"data": {}})):
        path.write_text(damaged)
        assert "run.json is damaged" in refusal("eval", "run", cwd=tmp_path)
