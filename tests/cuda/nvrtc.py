"""NVIDIA's own compilers without a GPU: NVRTC compiles CUDA source to PTX, ptxas assembles that to machine code.

`make setup` installs both as packages on Linux on x86-64; macOS has none.
"""

import ctypes
import importlib.util
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# Turing, Hopper, Blackwell: RTX 20, H100, RTX 50.
ARCHITECTURES = ("sm_75", "sm_90", "sm_120")
# Options as in Slang's own driver of NVRTC.
_OPTIONS = ("-default-device", "--std=c++17")
_REGISTERS = re.compile(r"Used (\d+) registers")
_NUMBERS = {
    "stack": re.compile(r"(\d+) bytes stack frame"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
    "barriers": re.compile(r"used (\d+) barriers"),
}


class NvidiaError(Exception):
    """One of NVIDIA's compilers rejects its input; the message is the compiler's."""


class Figures(NamedTuple):
    """Figures of ptxas for a kernel: by thread, but barriers and shared memory by block; all but the first two in bytes."""

    registers: int
    barriers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int


class Assembled(NamedTuple):
    """Machine code of one architecture, in an ELF file."""

    figures: Figures
    cubin: bytes


@cache
def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec("nvidia") and importlib.util.find_spec(f"nvidia.{package}")
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _nvrtc_library() -> Path | None:
    folder = _folder("cuda_nvrtc")
    return next((path for path in sorted(folder.glob("lib/libnvrtc.so.*"))), None) if folder else None


def _ptxas() -> Path | None:
    folder = _folder("cuda_nvcc")
    return next(iter(folder.glob("bin/ptxas")), None) if folder else None


def skip_without_compilers() -> None:
    if _nvrtc_library() is None or _ptxas() is None:
        packages = "nvidia-cuda-nvrtc-cu12 nvidia-cuda-nvcc-cu12"
        pytest.skip(f"NVIDIA's compilers are not installed: pip install {packages} (Linux on x86-64)")


@cache
def _library() -> Any:
    path = _nvrtc_library()
    assert path is not None, "no NVRTC"
    library = ctypes.CDLL(str(path))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _check(result: int) -> None:
    if result:
        raise NvidiaError(_library().nvrtcGetErrorString(result).decode())


def version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def compile_ptx(source: str, architecture: str, *options: str) -> str:
    """Compile CUDA source to PTX for an architecture such as sm_90, with NVRTC options besides those that Slang sets.

    Raises:
        NvidiaError: NVRTC rejects the source; the message is NVRTC's.
    """
    library, program = _library(), ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        arguments = [f"--gpu-architecture={architecture.replace('sm_', 'compute_')}", *_OPTIONS, *options]
        encoded = (ctypes.c_char_p * len(arguments))(*(argument.encode() for argument in arguments))
        if library.nvrtcCompileProgram(program, len(arguments), encoded):
            raise NvidiaError(_text(program, "ProgramLog"))
        return _text(program, "PTX")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    _check(getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(getattr(_library(), f"nvrtcGet{what}")(program, text))
    return text.value.decode()


def assemble(ptx: str, architecture: str) -> Assembled:
    """Assemble the PTX of one kernel to machine code.

    Raises:
        NvidiaError: ptxas rejects the PTX; the message is ptxas's.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, encoding="utf-8")
        command = [str(_ptxas()), "-v", f"-arch={architecture}", str(source), "-o", str(cubin)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise NvidiaError(result.stderr + result.stdout)
        said = result.stderr + result.stdout
        registers = _REGISTERS.search(said)
        assert registers, f"ptxas reports no registers:\n{said}"
        numbers = {name: int(found[1]) if (found := number.search(said)) else 0 for name, number in _NUMBERS.items()}
        return Assembled(Figures(int(registers[1]), **numbers), cubin.read_bytes())
