"""Planted faults are seen: each one of mutants.toml makes its tests fail. `make soak` plants them all."""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = tomllib.loads((ROOT / "tests" / "faults" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
NEEDED = ("slang", "splat_py", "tests", "docs", "examples", "benchmarks", "pyproject.toml")
# Seconds.
FOR_ONE, FOR_ALL = 300, 2400

pytestmark = [
    pytest.mark.skipif("SOAK_MUTANTS" not in os.environ, reason="plants faults only where SOAK_MUTANTS is set: make soak"),
    pytest.mark.timeout(FOR_ALL + 60),
]


@dataclass(frozen=True)
class Copy:
    """A copy of the library and its tests, with caches of its own: no other process compiles or keeps its kernels."""

    folder: Path

    def run(self, nodes: list[str], seconds: float) -> tuple[int, str]:
        """Run tests here, until the first one fails; return pytest's exit code and the end of its output."""
        home = self.folder.parent / "home"
        own = {"PYTHONPATH": str(self.folder), "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
        own["PYTHONDONTWRITEBYTECODE"] = "1"
        # Not without pytest's cache: tests/cuda keeps compiled kernels there.
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-o", f"cache_dir={home / 'pytest'}", *nodes]
        done = subprocess.run(
            command, cwd=self.folder, env=os.environ | own, timeout=seconds, check=False, capture_output=True, text=True
        )
        return done.returncode, (done.stdout + done.stderr)[-4000:]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    folder = tmp_path_factory.mktemp("mutants") / "copy"
    folder.mkdir()
    (folder.parent / "home").mkdir()
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    return Copy(folder)


def test_without_a_fault_they_pass(copy: Copy) -> None:
    code, output = copy.run(sorted({node for mutant in MUTANTS for node in mutant["tests"]}), FOR_ALL)
    assert code == 0, output


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{Path(mutant['file']).name}: {mutant['what']}")
def test_a_fault_is_seen(mutant: dict[str, Any], copy: Copy) -> None:
    file, old = copy.folder / mutant["file"], mutant["old"]
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == mutant.get("count", 1), f"{old!r} is {text.count(old)} times in {mutant['file']}"
    file.write_text(text.replace(old, mutant["new"]), encoding="utf-8")
    try:
        code, output = copy.run(mutant["tests"], FOR_ONE)
    finally:
        file.write_text(text, encoding="utf-8")
    # 0: no test has failed; 2 to 5: none has run.
    assert code == 1, output
