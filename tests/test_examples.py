"""The examples run, and get nearer to what they look for."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
# Of each: a few steps, and the number in its lines that is to fall or to rise.
STEPS = {"features": 8, "fit_image": 26, "pose": 6, "train": 52, "volume": 3}
LESS, MORE = re.compile(r"loss ([\d.]+)"), re.compile(r"([\d.]+) dB")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example), "--steps", str(STEPS[example.stem])])
    runpy.run_path(str(example), run_name="__main__")
    text = capsys.readouterr().out
    losses = [float(value) for value in LESS.findall(text)]
    qualities = [float(value) for value in MORE.findall(text)]
    assert losses or qualities, text
    assert losses[-1:] < losses[:1] or qualities[-1] > qualities[0], text
    for name in re.findall(r"(?:look at|scene is) ([^\s;]+)", text):
        assert Path(name).stat().st_size > 0


def test_an_example_is_a_page_and_the_readme_names_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(EXAMPLES) == 5
    for example in EXAMPLES:
        text = example.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 100
        assert f"examples/{example.name}" in readme
        assert f"python examples/{example.name}" in text
