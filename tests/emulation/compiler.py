"""Kernels' source as libraries for the CPU: compiled by clang, and kept."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from tests.emulation.program import Program

_OLDEST, _NEWEST = 14, 30
_RUNTIME = Path(__file__).parent / "runtime"
_COMMON_FLAGS = ["-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-omit-frame-pointer", "-w"]
_RUNTIME_FLAGS = [*_COMMON_FLAGS, "-O2", "-I", str(_RUNTIME)]
_KERNEL_FLAGS = [
    *(*_COMMON_FLAGS, "-ffp-contract=off", "-I", str(_RUNTIME)),
    # Variables without a value hold not-a-number.
    "-ftrivial-auto-var-init=pattern",
    # The runtime finds meeting points by the calls that lead there, so calls may not be left out, merged or duplicated.
    *("-fno-optimize-sibling-calls", "-Xclang", "-fconvergent-functions"),
    *("-mllvm", "-enable-tail-merge=0", "-mllvm", "-tail-dup-placement=0", "-mllvm", "-disable-tail-duplicate"),
]
# More than the first moves meeting points. Kernels whose threads never meet run up to eight times faster with the second.
_LEVEL_OF_MEETING, _LEVEL_OF_OTHERS = "-O1", "-O2"
_MEETING = re.compile(r"simd_|barrier|sync|_wave|activemask")
_LINKER_FLAGS = ["-undefined", "dynamic_lookup"] if os.uname().sysname == "Darwin" else ["-lm"]


class KernelError(Exception):
    """A kernel did something that its language leaves undefined or forbids."""


class Source(Protocol):
    """A kernel as `splat_py.gpu.emission` emits it."""

    @property
    def source(self) -> str: ...

    @property
    def threads(self) -> tuple[int, int, int]: ...


@dataclass(frozen=True)
class Language:
    """A language that kernels are emitted in.

    Attributes:
        headers: folder with the headers that its compiler would provide.
        flags: clang flags besides those of all kernels.
        emit: (module, entry point, values of constants) → source.
        program: (compiler, source, entry point, numbers of threads) → the compiled entry point.
    """

    headers: Path
    flags: tuple[str, ...]
    emit: Callable[[str, str, dict[str, Any]], Source]
    program: "Callable[[Compiler, str, str, tuple[int, int, int]], Program]"


_runtime: list[ctypes.CDLL] = []


def _load_runtime(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.guarded_allocate.restype = ctypes.c_void_p
    library.guarded_allocate.argtypes = [ctypes.c_size_t]
    library.guarded_free.restype = None
    library.guarded_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.run.restype = ctypes.c_char_p
    library.run.argtypes = [ctypes.c_void_p]
    return library


class Compiler:
    """clang, and a folder that keeps its libraries, named by a hash of everything that went into them."""

    def __init__(self, clang: str, folder: Path, language: Language) -> None:
        self.language = language
        self._clang = clang
        self._folder = folder
        version = subprocess.run([clang, "--version"], capture_output=True, text=True, check=True).stdout
        headers = [path for part in (_RUNTIME, language.headers) for path in sorted(part.iterdir())]
        self._headers = version + "".join(path.read_text(encoding="utf-8") for path in headers)

    @cached_property
    def runtime(self) -> ctypes.CDLL:
        """The library that runs kernels. Kernels find its functions by name, so a process has one for all languages."""
        if not _runtime:
            source = (_RUNTIME / "threads.cpp").read_text(encoding="utf-8")
            _runtime.append(_load_runtime(self._build(source, _RUNTIME_FLAGS)))
        return _runtime[0]

    def library(self, source: str, beginning: str = "") -> Path:
        """Compile a kernel's C++ source. `beginning` is code that many sources share; it is compiled once."""
        level = _LEVEL_OF_MEETING if _MEETING.search(source) else _LEVEL_OF_OTHERS
        flags = [*_KERNEL_FLAGS, level, "-I", str(self.language.headers), *self.language.flags]
        if beginning:
            flags += ["-include-pch", str(self._build(beginning, ["-x", "c++-header", *flags], "pch"))]
        return self._build(source, flags)

    def _build(self, source: str, flags: list[str], suffix: str = "so") -> Path:
        key = hashlib.sha256("\0".join([self._headers, *flags, source]).encode()).hexdigest()[:32]
        path = self._folder / f"{key}.{suffix}"
        if not path.exists():
            descriptor, temporary = tempfile.mkstemp(suffix=f".{suffix}", dir=self._folder)
            os.close(descriptor)
            library = ["-x", "c++", "-shared", *_LINKER_FLAGS] if suffix == "so" else []
            command = [self._clang, *flags, *library, "-o", temporary, "-"]
            result = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
            if result.returncode:
                Path(temporary).unlink(missing_ok=True)
                raise KernelError(f"clang rejects the source of a kernel:\n{result.stderr[:4000]}")
            Path(temporary).replace(path)
        return path


def find_clang() -> str:
    """Find clang 14 or later, or the one that MSL_CLANG names. Skips the test if there is none, but fails it on CI."""
    names = [os.environ.get("MSL_CLANG") or "clang", *(f"clang-{v}" for v in range(_NEWEST, _OLDEST - 1, -1))]
    for name in names:
        path = shutil.which(name)
        if path is None:
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"clang version (\d+)", answer)
        # Apple numbers its clang differently and builds it without OpenCL's headers, which are not needed.
        if version and int(version[1]) >= _OLDEST:
            return path
    missing = "running kernels on the CPU needs clang 14 or later (MSL_CLANG names it)"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
