"""The documents: what they link to and name exists, the picture is what its script draws, and their Python runs."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulation.compiler import find_clang

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), ROOT / "tests" / "metal" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:slang|splat_py|tests|docs|benchmarks|examples|notebooks)/[\w./*-]*)`")
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_paths_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [path for path in _PATH.findall(text) if not any(ROOT.glob(path))]
    for link in _LINK.findall(text):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = document.parent / file if file else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert not missing


def test_the_picture_of_a_step_is_what_its_script_draws() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "draw_training_step.py"))
    assert (ROOT / "docs" / "training-step.svg").read_text(encoding="utf-8") == script["draw"]()


def test_the_worked_examples_gradients_agree(capsys: pytest.CaptureFixture[str]) -> None:
    source = _PYTHON.findall((ROOT / "docs" / "change-a-shader.md").read_text(encoding="utf-8"))[0]
    exec(source, {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 6
    for _, derived, difference in rows:
        assert float(derived) == pytest.approx(float(difference), abs=1e-4)


def test_the_operator_is_compiled_exported_and_lowered() -> None:
    blocks = _PYTHON.findall((ROOT / "docs" / "portable.md").read_text(encoding="utf-8"))
    assert len(blocks) == 4
    # One file: the compiler reads what it compiles.
    exec(compile("\n".join(blocks), "portable.md", "exec"), {"__name__": "portable_md"})


def test_a_metal_kernel_runs_by_hand() -> None:
    """In a process of its own: the runner's threads and signal handlers are one set a process."""
    find_clang()
    (source,) = _PYTHON.findall((ROOT / "tests" / "metal" / "README.md").read_text(encoding="utf-8"))
    process = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.stdout.endswith("[12487503 12492501 12497500]\n"), process.stderr
