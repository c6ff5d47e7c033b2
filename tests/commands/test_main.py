"""`splat` itself: parsing, help, and errors that are one sentence."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from splat_py.commands.export import Export
from tests.commands.program import refusal, splat


def test_runs_as_a_program_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "splat_py", "eval", "nowhere"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("splat: nowhere")
    assert "Traceback" not in result.stderr


def test_help_teaches(tmp_path: Path) -> None:
    scenes = ("train", "render", "eval", "export", "edit")
    for command in (*scenes, "fit-image", "fit-volume", "devices", "bench", "selftest", "demo"):
        result = splat(command, "--help", cwd=tmp_path)
        assert result.returncode == 0
        assert len(result.stdout.splitlines()) > 5


@pytest.mark.parametrize(
    ("command", "positionals"),
    [
        ("train", "DATA"),
        ("fit-volume", "DATA"),
        ("render", "SCENE"),
        ("eval", "SCENE"),
        ("export", "SCENE OUT"),
        ("edit", "IN [IN ...] OUT"),
        ("fit-image", "PICTURE"),
    ],
)
def test_usage_names_its_positionals(command: str, positionals: str, tmp_path: Path) -> None:
    usage = splat(command, "--help", cwd=tmp_path).stdout.split("\n\n")[0]
    assert f" {positionals}" in usage and " PATH" not in usage


def test_unknown_device(tmp_path: Path) -> None:
    assert "abacus" in refusal("bench", "--device", "abacus", cwd=tmp_path)
    assert "--side is 1000000; it must be at most" in refusal("bench", "--side", 1_000_000, cwd=tmp_path)
    assert "is a folder; name a file" in refusal("bench", "--out", tmp_path, cwd=tmp_path)
    assert "steps is 0" in refusal("demo", "--steps", 0, cwd=tmp_path)
    assert not list(tmp_path.iterdir())
    assert "abacus" in refusal("bench", cwd=tmp_path, SPLAT_DEVICE="abacus")
    assert "metal" in refusal("bench", "--device", "metal", cwd=tmp_path)


def test_an_interruption_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(command: Export) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Export, "run", interrupt)
    result = splat("export", "run", "scene.ply", cwd=tmp_path)
    assert result.returncode == 130
    assert result.stderr.startswith("splat: interrupted; ") and "--resume" in result.stderr


@pytest.mark.parametrize("message", ["", "Unable to allocate 7.28 TiB for an array"])
def test_memory_that_does_not_suffice(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(command: Export) -> None:
        raise MemoryError(*[message] if message else [])

    monkeypatch.setattr(Export, "run", exhaust)
    line = refusal("export", "run", "scene.ply", cwd=tmp_path)
    assert line.startswith("splat: memory does not suffice; use smaller") and message in line and "()" not in line


def test_a_warning_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Export, "run", lambda command: warnings.warn("mind the [gap]", stacklevel=2))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = splat("export", "run", "scene.ply", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "splat: mind the [gap]\n")
