"""Slang modules in the compiler's own format. A process that imports them so, and not as text, has its first image in half the
time (the kernels are in the compile cache)."""

from contextlib import suppress
from pathlib import Path

from splat_py.base.files import atomic_path, checksum
from splat_py.gpu.slang_compiler import container, run
from splat_py.gpu.sources import scope, shader_folder


class CompiledModules:
    """A folder of modules, which is an include path for the compiler. It stays the same between processes, because the compile
    cache tells kernels apart by it. Checksums lie beside the modules: the compiler may crash on a damaged one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Those that this process has found whole, or made.
        self._provided: set[str] = set()

    def provide(self, module: str) -> None:
        """Put all imports of slang/<module>.slang into the folder, on the compiler's thread. SplatError if one cannot be
        compiled or written."""
        for name in scope(module)[0].imports:
            source, binary = shader_folder() / f"{name}.slang", self.folder / f"{name}.slang-module"
            if name in self._provided or not source.is_file():
                continue
            self.provide(name)
            if not _is_whole(binary):
                # Otherwise it would import itself.
                binary.unlink(missing_ok=True)
                content = run([str(source), "-I", str(self.folder), "-I", str(shader_folder()), "-o", str(binary)], container)
                for path, kept in ((binary, content), (_checksum_of(binary), checksum(content).encode())):
                    with atomic_path(path) as temporary:
                        temporary.write_bytes(kept)
            self._provided.add(name)


def _is_whole(binary: Path) -> bool:
    with suppress(OSError):
        return checksum(binary.read_bytes()).encode() == _checksum_of(binary).read_bytes()
    return False


def _checksum_of(binary: Path) -> Path:
    return binary.with_suffix(".checksum")
