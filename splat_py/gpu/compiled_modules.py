"""The library's Slang modules in the compiler's own format, which processes share: with them, a process's first image takes
0.6 s of processor time, not 2.4 s (software Vulkan, compiled kernels, a slow core).

    <user's cache>/splat_py/<hash of the shaders and of SlangPy's version>/modules/<module>.slang-module

Loops with `[unroll]` are left to a CPU driver, which unrolls them in a tenth of the time: the loss's kernels compile in 0.3 s
instead of 4.7, and a training step is 3 % faster. Metal and WGSL lack such a hint, so other devices have modules of their own,
`modules-unrolled`, where these loops have `[ForceUnroll]`. Loops of differentiated functions always have it.

Slang 2026.12 aborts if a session reads a module's text, and later a module that imports the first one in the compiler's own
format. So the folder has all modules or does not exist, and a session is used as long as the folder stays (`folder_made`).
"""

import hashlib
import json
import logging
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import platformdirs
import slangpy as spy

from splat_py.base.files import atomic_folder, checksum_of, write_json
from splat_py.gpu.slang_compiler import compile_modules
from splat_py.gpu.sources import scope, shader_folder

# By module: the hash of its source and of all that it imports, and the checksum of its file.
_INDEX = "index.json"


@cache
def compiled_modules(*, unrolled: bool) -> Path | None:
    """The folder of all modules, an include path before that of their texts; None if it cannot be made. The first process of a
    version makes it, for 2 to 4 seconds. With `unrolled`, no loop is left to the driver."""
    folder = cache_folder() / ("modules-unrolled" if unrolled else "modules")
    if not _is_whole(folder):
        try:
            _make(folder, unrolled)
        except (RuntimeError, OSError):
            # Another process may have made it. SplatErrors are RuntimeErrors, as is that of a thread asked for at exit.
            return folder if _is_whole(folder) else None
    return folder


def folder_made(*, unrolled: bool) -> tuple[int, int] | None:
    """The folder's identity: another if it was removed and made again, None if there is none."""
    folder = compiled_modules(unrolled=unrolled)
    with suppress(OSError):
        if folder is not None:
            index = (folder / _INDEX).stat()
            return index.st_ino, index.st_mtime_ns
    return None


@cache
def cache_folder() -> Path:
    """The folder of what is compiled for this version of SlangPy, of its compiler and of the shaders."""
    return platformdirs.user_cache_path("splat_py") / _hash_of(_modules())[:16]


def _make(folder: Path, unrolled: bool) -> None:
    """Compile all modules, except those that are the same in another version, as are all that these import."""
    logging.getLogger(__name__).info("compiling shaders (once)...")
    versions = folder.parents[1].glob(f"*/{folder.name}")
    others = {source: other / f"{name}.slang-module" for other in versions for name, source in _whole(other).items()}
    sources = {name: _hash_of([part.name for part in scope(name)]) for name in _modules()}
    index: dict[str, tuple[str, str]] = {}
    with atomic_folder(folder) as made, TemporaryDirectory() as texts:

        def write(name: str, content: bytes) -> None:
            _write(made / f"{name}.slang-module", content)
            index[name] = sources[name], checksum_of(content)

        for name, source in sources.items():
            if source in others:
                write(name, others[source].read_bytes())
        missing = [name for name in sources if name not in index]
        for name in missing:
            text = (shader_folder() / f"{name}.slang").read_bytes()
            _write(Path(texts, f"{name}.slang"), text.replace(b"[unroll]", b"[ForceUnroll]") if unrolled else text)
        for name, content in zip(missing, compile_modules(missing, [made, Path(texts)]), strict=True):
            write(name, content)
        write_json(made / _INDEX, index)
        if not _is_whole(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _whole(folder: Path) -> dict[str, str]:
    """The modules in a folder that are not damaged, which may crash the compiler, and the hashes of their sources."""
    found = {}
    with suppress(OSError, ValueError, TypeError, AttributeError):
        for name, (source, checksum) in json.loads((folder / _INDEX).read_text(encoding="utf-8")).items():
            with suppress(OSError):
                if checksum_of((folder / f"{name}.slang-module").read_bytes()) == checksum:
                    found[name] = source
    return found


def _is_whole(folder: Path) -> bool:
    return _whole(folder).keys() == set(_modules())


def _modules() -> list[str]:
    folder = shader_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.slang"))


def _hash_of(modules: list[str]) -> str:
    digest = hashlib.sha256(f"{spy.__version__} {spy.SLANG_BUILD_TAG}".encode())
    for name in modules:
        digest.update(name.encode())
        digest.update((shader_folder() / f"{name}.slang").read_bytes())
    return digest.hexdigest()
