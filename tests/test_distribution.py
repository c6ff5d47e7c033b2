"""The published archives: the wheel and the source archive, built without a network, and their metadata."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import splat_py

ROOT = Path(__file__).resolve().parents[1]
# Packages that `splat --help` imports.
PURE = ("docstring-parser", "markdown-it-py", "mdurl", "pygments", "rich", "typeguard", "typing-extensions", "tyro")
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
    assert run(sys.executable, "-m", "twine", "check", "--strict", *distributions.iterdir()).count("PASSED") == 2


def test_the_wheel_holds_the_package_with_its_shaders_and_pages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licenses = {name.partition("/licenses/")[2] for name in archive.namelist() if "/licenses/" in name}
    assert names == tracked("splat_py") | {f"splat_py/{name}" for name in tracked("slang")}
    assert {"splat_py/py.typed", "splat_py/slang/splat/rasterization.slang"} <= names
    assert any(name.startswith("splat_py/viewer/pages/") and name.endswith((".html", ".js")) for name in names)
    assert licenses == set(PROJECT["license-files"])
    assert wheel.stat().st_size < 4e6


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_a_clean_environment_runs_the_command_line(wheel: Path, tmp_path: Path, version: str) -> None:
    """Installed by pip, without a checkout on the path, and with only the pure-Python dependencies, so without torch."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    run(python, "-I", "-m", "venv", "--without-pip", tmp_path / "clean")
    inside = tmp_path / "clean" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", inside, "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", wheel)
    site = Path(run(inside, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # Warnings, such as of an escape unknown to a newer Python, are errors.
    run(inside, "-I", "-W", "error", "-m", "compileall", "-q", site / "splat_py")
    for name in PURE:
        unpack(name, site)

    splat = tmp_path / "clean" / "bin" / "splat"
    assert answer(tmp_path, splat, "--version") == (0, f"splat_py {splat_py.__version__}\n")
    code, text = answer(tmp_path, splat, "--help")
    assert code == 0 and "fit-image" in text
    code, text = answer(tmp_path, splat, "train", "nowhere", "--out", "run")
    assert code == 1 and text.startswith("splat: nowhere does not exist")
    code, text = answer(tmp_path, splat, "devices")
    assert code == 1 and "is missing; `pip install slang-splat`" in text
    program = "import splat_py.gpu.sources as own, sys; print(own.__file__, own.shader_folder(), 'torch' in sys.modules)"
    package = site / "splat_py"
    assert answer(tmp_path, inside, "-c", program) == (0, f"{package / 'gpu' / 'sources.py'} {package / 'slang'} False\n")


def interpreter(version: str) -> str | None:
    """A Python of this version: this one, a working one on the path, or one of pyenv's."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    found = [*sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")), shutil.which(f"python{version}")]
    for candidate in filter(None, found):
        command = [str(candidate), "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == version:
            return str(candidate)
    return None


def unpack(name: str, site: Path) -> None:
    """Copy a package that is the same for every Python from this environment."""
    for file in distribution(name).files or []:
        if ".." not in file.parts and file.suffix != ".pyc":
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), site / file)


def answer(folder: Path, *command: object) -> tuple[int, str]:
    """Exit code and output of a program that runs without this process's environment."""
    environment = {"HOME": str(folder), "PATH": ""}
    arguments = [*map(str, command)]
    process = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout + process.stderr


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


def test_metadata_changelog_and_citation_are_of_this_version(metadata: Message) -> None:
    assert metadata["Name"] == "slang-splat"
    assert metadata["Version"] == splat_py.__version__
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    citation = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and {"title", "message", "authors"} <= citation.keys()
    assert str(citation["version"]) == splat_py.__version__ and citation["license"] == PROJECT["license"]
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1].splitlines()[0]
    assert newest.partition(",")[0] == splat_py.__version__
