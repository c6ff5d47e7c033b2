"""Modules in the compiler's own format are made once and made again if damaged; without a folder for them, modules are text."""

from pathlib import Path

import pytest

from splat_py import get_device
from splat_py.gpu import compiled_modules
from splat_py.gpu.compiled_modules import CompiledModules
from splat_py.gpu.kernels import KernelCache
from splat_py.gpu.slang_compiler import compiler_thread
from splat_py.gpu.sources import scope

MODULE = "kernels/tiles"


def provide(folder: Path) -> None:
    compiler_thread.submit(CompiledModules(folder).provide, MODULE).result()


def test_all_imports_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(tmp_path)
    made = {file.relative_to(tmp_path).with_suffix("").as_posix() for file in tmp_path.rglob("*.slang-module")}
    assert made == {source.name for source in scope(MODULE)[1:]}
    monkeypatch.setattr(compiled_modules, "run", None)
    provide(tmp_path)


@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[:-1], lambda whole: whole[:99] + b"?" + whole[100:]])
def test_a_damaged_one_is_made_again(damage: object, tmp_path: Path) -> None:
    provide(tmp_path)
    file = tmp_path / "splat" / "footprint.slang-module"
    whole = file.read_bytes()
    file.write_bytes(damage(whole))  # type: ignore[operator]
    provide(tmp_path)
    assert file.read_bytes() == whole


def test_one_without_a_checksum_is_made_again(tmp_path: Path) -> None:
    """A process was killed between both."""
    provide(tmp_path)
    file = tmp_path / "splat" / "footprint.slang-module"
    file.with_suffix(".checksum").unlink()
    file.write_bytes(b"a beginning")
    provide(tmp_path)
    assert len(file.read_bytes()) > 1000 and file.with_suffix(".checksum").is_file()


def test_kernels_import_them(tmp_path: Path) -> None:
    kernels = KernelCache(get_device().handle, CompiledModules(tmp_path))
    kernels.get("tiles", "findTileOffsets")
    assert (tmp_path / "splat" / "footprint.slang-module").is_file()
    assert str(tmp_path) in map(str, kernels._sessions[False][0][0].desc.compiler_options.include_paths)


def test_without_a_folder_modules_are_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    kernels = KernelCache(get_device().handle, CompiledModules(tmp_path / "file"))
    assert kernels.get("tiles", "findTileOffsets").entry == "findTileOffsets"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
