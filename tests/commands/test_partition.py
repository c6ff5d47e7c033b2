"""`splat partition` prints what to do next, and that leads to one scene; `splat train --max-memory`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from splat_py.scene import Gaussians
from tests.commands.program import refusal, splat


def test_the_commands_that_are_printed_lead_to_a_scene(capture: Path, tmp_path: Path) -> None:
    result = splat("partition", capture, "--cells", "2x1", "--out", "my cells", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    commands = [shlex.split(line)[1:] for line in result.stdout.splitlines() if line.startswith("  splat ")]
    assert [words[0] for words in commands] == ["train", "train", "merge", "eval"]
    assert "was not trained; run `splat train 'my cells/cell-0-0'" in refusal(*commands[2], cwd=tmp_path)
    for words in commands:
        extra = ["--steps", "2", "--sh-degree", "0"] if words[0] == "train" else []
        result = splat(*words, *extra, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert len(Gaussians.load(tmp_path / "my cells" / "scene.ply")) > 1000
    # From where it stands, a cell's run goes on.
    resumed = splat(*commands[0], "--resume", "--steps", "3", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.parametrize("cells", ["1x1", "2", "0x4", "65x1", "9x9", "-2x2", "axb"])
def test_what_are_no_cells_is_refused(capture: Path, tmp_path: Path, cells: str) -> None:
    assert "give columns and rows, such as 2x2" in refusal("partition", capture, f"--cells={cells}", "--out", "a", cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_wrong_partitions_are_refused(capture: Path, tmp_path: Path) -> None:
    assert "overlap is -1.0" in refusal("partition", capture, "--overlap=-1", "--out", "a", cwd=tmp_path)
    assert "absent is not a folder" in refusal("partition", "absent", "--out", "a", cwd=tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    assert "choose another --out" in refusal("partition", capture, "--out", "full", cwd=tmp_path)
    assert "holds no cell of a partition" in refusal("merge", "full", "--out", "a.ply", cwd=tmp_path)
    assert "has no ending of a scene's file" in refusal("merge", "full", "--out", "a.obj", cwd=tmp_path)


def test_a_run_that_would_take_too_much_is_refused(capture: Path, tmp_path: Path) -> None:
    said = refusal("train", capture, "--max-memory", "200MB", "--out", "run", cwd=tmp_path)
    assert "training would take" in said and "may take 200 MB (--max-memory): use --max-memory" in said
    assert "give a number and a unit" in refusal("train", capture, "--max-memory", "much", "--out", "run", cwd=tmp_path)
    assert not list(tmp_path.glob("run/*.json"))
