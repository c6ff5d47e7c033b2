"""Scenes in other formats: `splat export`, `splat edit`, and what reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from splat_py.scene import Gaussians
from splat_py.scene.formats.endings import ENDINGS
from splat_py.scene.ply import write_gaussians
from tests.commands.program import refusal, splat


@pytest.fixture(scope="module")
def files(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run's scene in all formats."""
    folder = tmp_path_factory.mktemp("files")
    for ending in ENDINGS:
        result = splat("export", run, f"scene{ending}", cwd=folder)
        assert result.returncode == 0, result.stderr
        assert "20 steps" in result.stdout
        assert ("does not hold" in result.stderr) == (ending in (".splat", ".ksplat"))
    return folder


def test_every_format_is_scored_and_rendered(files: Path, capture: Path) -> None:
    scores = {}
    for ending in ENDINGS:
        result = splat("eval", f"scene{ending}", "--data", capture, "--json", "scores.json", cwd=files)
        assert result.returncode == 0, result.stderr
        scores[ending] = json.loads((files / "scores.json").read_text())["psnr"]
        assert abs(scores[ending] - scores[".ply"]) < 0.2
    result = splat("render", "scene.spz", "--data", capture, "--out", "views", cwd=files)
    assert result.returncode == 0 and list((files / "views").iterdir())


def test_a_file_becomes_one_of_another_format(files: Path, tmp_path: Path) -> None:
    for version in (2, 4):
        assert splat("export", files / "scene.glb", "again.spz", "--spz-version", version, cwd=tmp_path).returncode == 0
        assert len(Gaussians.load(tmp_path / "again.spz")) == len(Gaussians.load(files / "scene.ply"))
    assert "version of SPZ is 7" in refusal("export", files / "scene.glb", "x.spz", "--spz-version", 7, cwd=tmp_path)
    assert "version of SPZ is 0" in refusal("export", files / "scene.glb", "x.ply", "--spz-version", 0, cwd=tmp_path)
    assert not list(tmp_path.glob("x.*"))


def test_pages_are_written_from_runs_and_files(files: Path, run: Path, capture: Path, tmp_path: Path) -> None:
    for scene, options, known in (
        (run, (), True),
        (files / "scene.sog", ("--data", capture), True),
        (files / "scene.sog", (), False),
    ):
        result = splat("export", scene, "page.html", *options, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert ("no capture is known" in result.stdout) != known
        assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "--data is of pages" in refusal("export", run, "scene.spz", "--data", capture, cwd=tmp_path)


def test_edits_in_their_order(files: Path, tmp_path: Path) -> None:
    before = Gaussians.load(files / "scene.ply")
    half = float(before.means[:, 0].median())
    box = (-100, -100, -100, half, 100, 100)
    result = splat("edit", files / "scene.ply", "half.ply", "--crop", *box, "--scale", 2, "--rotate", 0, 0, 90, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    after = Gaussians.load(tmp_path / "half.ply")
    kept = before.means[before.means[:, 0] <= half].numpy()
    np.testing.assert_allclose(after.means, 2 * kept[:, [1, 0, 2]] * [-1, 1, 1], atol=1e-4)
    result = splat("edit", files / "scene.ply", "half.ply", "both.sog", "--sh-degree", 1, "--remove-floaters", cwd=tmp_path)
    assert result.returncode == 0 and "removed: " in result.stdout and "faint" in result.stdout
    both = Gaussians.load(tmp_path / "both.sog")
    assert both.sh_degree == 1 and len(both) <= len(before) + len(after)


def test_faulty_gaussians_are_left_out_when_asked(files: Path, tmp_path: Path) -> None:
    faulty = Gaussians.load(files / "scene.ply")
    faulty.quats[1] = 0
    write_gaussians(tmp_path / "faulty.ply", faulty.arrays())
    message = refusal("edit", "faulty.ply", "x.ply", cwd=tmp_path)
    assert "the first of them in row 2" in message and "--remove-faulty" in message
    result = splat("edit", "faulty.ply", "x.ply", "--remove-faulty", cwd=tmp_path)
    assert "removed: 1 faulty" in result.stdout, result.stderr
    assert len(Gaussians.load(tmp_path / "x.ply")) == len(faulty) - 1


def test_mistakes_of_edits(files: Path, tmp_path: Path) -> None:
    scene = files / "scene.ply"
    assert "last, the one to write" in refusal("edit", scene, cwd=tmp_path)
    assert "none of" in refusal("edit", scene, "x.ply", "--crop-sphere", 1000, 0, 0, 1, cwd=tmp_path)
    assert "lowest corner first" in refusal("edit", scene, "x.ply", "--crop", 1, 1, 1, 0, 0, 0, cwd=tmp_path)
    assert "--remove-floaters" in refusal("edit", scene, "x.ply", "--faint", 0.1, cwd=tmp_path)
    assert "scale above zero" in refusal("edit", scene, "x.ply", "--scale", 0, cwd=tmp_path)
    assert "degree of harmonics is 9" in refusal("edit", scene, "x.ply", "--sh-degree", 9, cwd=tmp_path)
    (tmp_path / "text.spz").write_text("no SPZ")
    assert "text.spz is no .spz file or is damaged" in refusal("edit", "text.spz", "x.ply", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["text.spz"]
