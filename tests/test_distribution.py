"""What is published: the wheel and the source archive, built without a network, and what they say of themselves."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import splat_py

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run(*command: object) -> str:
    process = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--directory", folder)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def tracked(folder: str) -> set[str]:
    """Files of the checkout below a folder that belong to the package."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_names_can_be_published(wheel: Path, distributions: Path) -> None:
    version = splat_py.__version__
    assert wheel.name == f"slang_splat-{version}-py3-none-any.whl"
    assert {path.name for path in distributions.iterdir()} == {wheel.name, f"slang_splat-{version}.tar.gz"}


def test_twine_has_no_objection(distributions: Path) -> None:
    assert run(sys.executable, "-m", "twine", "check", "--strict", *distributions.iterdir()).count("PASSED") == 2


def test_the_wheel_holds_the_package_with_its_shaders_and_pages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licenses = {name.partition("/licenses/")[2] for name in archive.namelist() if "/licenses/" in name}
    assert names == tracked("splat_py") | {f"splat_py/{name}" for name in tracked("slang")}
    assert {"splat_py/py.typed", "splat_py/slang/splat/rasterization.slang"} <= names
    assert any(name.startswith("splat_py/pages/") and name.endswith((".html", ".js")) for name in names)
    assert licenses == set(PROJECT["license-files"])
    assert wheel.stat().st_size < 4e6


def test_the_wheel_is_all_that_the_command_line_needs(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import pathlib, sys; sys.path.insert(0, sys.argv.pop()); import splat_py, splat_py.gpu.sources as sources;"
        "print(pathlib.Path(splat_py.__file__).parent, sources.shader_folder());"
        "from splat_py.commands.main import main; sys.argv[1:] = ['--version']; main()"
    )
    output = run(sys.executable, "-I", "-c", code, tmp_path)
    package = tmp_path / "splat_py"
    assert output.split() == [str(package), str(package / "slang"), "splat_py", splat_py.__version__]


def test_the_source_archive_builds_the_wheel_and_holds_no_tests(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked("splat_py") | tracked("slang") | tracked("examples") <= names
    assert {"pyproject.toml", "PKG-INFO", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {"splat_py", "slang", "examples"}


def test_every_extra_that_is_named_exists(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra", []))
    assert {"capture", "dev", "files", "notebooks", "viewer"} <= extras
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("splat_py/**/*.py"), *ROOT.glob("benchmarks/*.py")]
    for text in texts:
        for part in text.read_text(encoding="utf-8").split("slang-splat[")[1:]:
            assert set(part.partition("]")[0].split(",")) <= extras, text


def test_the_metadata_says_what_a_reader_needs(metadata: Message) -> None:
    assert metadata["Name"] == "slang-splat"
    assert metadata["Version"] == splat_py.__version__
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_changelog_and_citation_are_of_this_version() -> None:
    citation = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and {"title", "message", "authors"} <= citation.keys()
    assert str(citation["version"]) == splat_py.__version__ and citation["license"] == PROJECT["license"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = changelog.split("\n## ")[1].splitlines()[0]
    assert newest.partition(",")[0] == splat_py.__version__
