"""The modules in the compiler's own format: all or none, made once, made again if damaged."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import splat_py
from splat_py.gpu import compiled_modules as modules
from splat_py.gpu import emission
from splat_py.gpu.emission import emit
from splat_py.gpu.kernels import UserType
from splat_py.gpu.slang_compiler import CompilerError, Session, compile_modules, in_compiler_thread
from splat_py.gpu.sources import shader_folder

DAMAGED = "splat/footprint.slang-module"


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of modules that are compiled, with an empty folder for them."""
    for unrolled in (False, True):
        modules.compiled_modules(unrolled=unrolled)
    found: list[str] = []
    compile_modules = modules.compile_modules

    def counted(names: list[str], folders: list[Path]) -> list[bytes]:
        found.extend(names)
        return compile_modules(names, folders)

    monkeypatch.setattr(modules, "compile_modules", counted)
    monkeypatch.setattr(modules, "cache_folder", lambda: tmp_path / "cache" / "version")
    return found


@pytest.fixture
def whole(compiled: list[str]) -> Path:
    """The folder with all modules."""
    made = modules.compiled_modules(unrolled=False)
    assert made is not None
    return Path(shutil.copytree(made, modules.cache_folder() / "modules"))


def make(unrolled: bool = False) -> Path | None:
    """Find or make the folder, as a new process does."""
    return modules.compiled_modules.__wrapped__(unrolled=unrolled)


def test_every_module_is_there(whole: Path, compiled: list[str]) -> None:
    found = {file.relative_to(whole).with_suffix("").as_posix() for file in whole.rglob("*.slang-module")}
    assert found == {file.relative_to(shader_folder()).with_suffix("").as_posix() for file in shader_folder().rglob("*.slang")}
    assert make() == whole and not compiled


@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[:-1], lambda whole: whole[:99] + b"?" + whole[100:]])
def test_only_damaged_ones_are_made_again(damage: Callable[[bytes], bytes], whole: Path, compiled: list[str]) -> None:
    file = whole / DAMAGED
    before = file.read_bytes()
    file.write_bytes(damage(before))
    assert make() == whole and compiled == ["splat/footprint"]
    assert make() == whole and compiled == ["splat/footprint"]
    assert file.read_bytes()[:4] == before[:4] == b"RIFF"


def test_modules_of_another_version_serve_where_their_sources_are_equal(whole: Path, compiled: list[str]) -> None:
    other = whole.parents[1] / "other"
    whole.parent.rename(other)
    (other / "modules" / DAMAGED).unlink()
    assert make() == whole and compiled == ["splat/footprint"]
    assert (other / "modules").is_dir()


INDICES = ("", "[1, 2]", "null", '{"splat/footprint": 1}', '{"splat/footprint": ["a", "b"]}', '{"/dev/null": ["a", "b"]}')


@pytest.mark.parametrize("index", INDICES)
def test_an_index_that_cannot_be_read(
    index: str, whole: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole / "index.json").write_text(index)
    monkeypatch.setattr(modules, "compile_modules", lambda names, folders: compiled.extend(names) or [b"module"] * len(names))
    assert make() == whole and len(compiled) == len(set(compiled)) == len(list(shader_folder().rglob("*.slang")))


_AWAY_AND_BACK = """if True:
    import os, sys
    from pathlib import Path
    import platformdirs
    platformdirs.user_cache_path = lambda name: Path(sys.argv[1])
    from splat_py import get_device
    from splat_py.gpu.compiled_modules import compiled_modules
    get, folder = get_device().kernels.get, compiled_modules(unrolled=False)
    get("tiles", "countTiles")
    os.rename(folder, f"{folder}-away")
    get("shade", "shadeForward")
    os.rename(f"{folder}-away", folder)
    get("project", "projectForward")
"""


def test_a_folder_that_goes_and_comes_back(whole: Path) -> None:
    """The compiler crashes where one session reads some modules as text and then others in its own format."""
    command = [sys.executable, "-c", _AWAY_AND_BACK, str(whole.parents[1])]
    environment = os.environ | {"PYTHONPATH": str(Path(splat_py.__file__).parents[1])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert whole.is_dir()


def test_without_a_folder_modules_are_text(tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with_modules = emit("metal", "tiles", "findTileOffsets", {})
    (tmp_path / "cache").write_text("in the way")
    assert make(unrolled=True) is None and not compiled
    monkeypatch.setattr(emission, "compiled_modules", lambda unrolled: None)
    assert emission.emit("metal", "tiles", "findTileOffsets", {}) == with_modules


def test_only_software_has_loops_that_its_driver_unrolls() -> None:
    folders = [modules.compiled_modules(unrolled=unrolled) for unrolled in (False, True)]

    @in_compiler_thread
    def loops(folder: Path) -> int:
        session = Session([folder, shader_folder()], "metal")
        code, _ = session.kernel("kernels/loss", "gradientInTiles", {})
        session.close()
        return code.count(b"for(;;)")

    left, unrolled = (loops(folder) for folder in folders if folder)
    assert left > unrolled == emit("metal", "loss", "gradientInTiles", {}).source.count("for(;;)")


def test_sessions_that_end_change_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session ends after so many kernels, and after an error."""
    expected = [emit("cuda", "tiles", "countTiles", {"TILE_SIZE": size}) for size in (4, 8)]
    assert expected[0] != expected[1]
    monkeypatch.setattr(emission, "_KERNELS", 1)
    for size, kernel in zip((4, 8), expected, strict=True):
        with pytest.raises(CompilerError, match="unexpected end of file"):
            emit("cuda", "shade", "shadeForward", {"Color": UserType("Mine", "struct Mine {")})
        assert "cuda" not in emission._sessions
        for _ in range(2):
            assert emit("cuda", "tiles", "countTiles", {"TILE_SIZE": size}) == kernel


def test_a_module_that_cannot_be_compiled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that imports it says what is wrong."""
    (tmp_path / "shaders").mkdir()
    (tmp_path / "shaders" / "wrong.slang").write_text("float f( {")
    monkeypatch.setattr(modules, "shader_folder", lambda: tmp_path / "shaders")
    monkeypatch.setattr(modules, "scope", lambda name: ())
    with pytest.raises(CompilerError, match=r"unexpected '{'"):
        compile_modules(["wrong"], [tmp_path / "shaders"])
    monkeypatch.setattr(modules, "cache_folder", lambda: tmp_path / "cache" / "version")
    assert make() is None
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_another_source_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = modules.cache_folder.__wrapped__
    before = folder()
    shutil.copytree(shader_folder(), tmp_path / "shaders")
    monkeypatch.setattr(modules, "shader_folder", lambda: tmp_path / "shaders")
    assert folder() == before
    with (tmp_path / "shaders" / "splat" / "camera.slang").open("a") as file:
        file.write("\n")
    assert folder() != before
