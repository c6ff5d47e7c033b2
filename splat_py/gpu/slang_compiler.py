"""The compiler library that SlangPy ships, by its C interface: one session, a request for each compilation, arguments as on
slangc's command line."""

import ctypes
import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from splat_py.base.errors import SplatError
from splat_py.gpu.messages import first_error

T = TypeVar("T")

# Indices in the function table of a COM interface (ISlangBlob), after the three of ISlangUnknown.
_BLOB_POINTER, _BLOB_SIZE = 3, 4
# The compiler keeps some state per thread: Slang 2026.5 crashes if several threads use a session in turns.
_thread = ThreadPoolExecutor(1)


class CompilerError(SplatError):
    """The Slang compiler rejected its input, for the reasons in `messages`."""

    def __init__(self, messages: str) -> None:
        super().__init__(f"Slang cannot compile this: {first_error(messages, '')}")
        self.messages = messages


@cache
class Library:
    """The library's functions, with types, and one session for all requests."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("slangpy")
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parent
        names = ("libslang-compiler.so*", "libslang-compiler*.dylib", "slang-compiler.dll")
        found = sorted(path for name in names for path in folder.rglob(name))
        assert found, f"no Slang compiler library in {folder}"
        library = ctypes.CDLL(str(found[0]))
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int

        def function(name: str, result: Any, *arguments: Any) -> Any:
            symbol = getattr(library, name)
            symbol.restype, symbol.argtypes = result, arguments
            return symbol

        self.create_request = function("spCreateCompileRequest", pointer, pointer)
        self.destroy_request = function("spDestroyCompileRequest", None, pointer)
        self.set_arguments = function("spProcessCommandLineArguments", number, pointer, ctypes.POINTER(text), number)
        self.compile = function("spCompile", number, pointer)
        self.diagnostics = function("spGetDiagnosticOutput", text, pointer)
        self.code = function("spGetEntryPointCode", pointer, pointer, number, ctypes.POINTER(ctypes.c_size_t))
        self.container = function("spGetContainerCode", number, pointer, ctypes.POINTER(pointer))
        self.reflection = function("spGetReflection", pointer, pointer)
        self.entry_point = function("spReflection_getEntryPointByIndex", pointer, pointer, ctypes.c_uint)
        self.group_size = function(
            "spReflectionEntryPoint_getComputeThreadGroupSize", None, pointer, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
        )
        self.session = function("spCreateSession", pointer, text)(None)


def run(arguments: list[str], result_of: Callable[[int], T]) -> T:
    """Compile as slangc would with `arguments`, and return what `result_of` makes of the finished request."""
    return _thread.submit(_run, arguments, result_of).result()


def _run(arguments: list[str], result_of: Callable[[int], T]) -> T:
    library = Library()
    request = library.create_request(library.session)
    try:
        encoded = (ctypes.c_char_p * len(arguments))(*(argument.encode() for argument in arguments))
        status = library.set_arguments(request, encoded, len(arguments))
        if status >= 0:
            status = library.compile(request)
        if status < 0:
            raise CompilerError((library.diagnostics(request) or b"").decode())
        return result_of(request)
    finally:
        library.destroy_request(request)


def container(request: int) -> bytes:
    """A module in the compiler's own format."""
    blob = ctypes.c_void_p()
    if Library().container(request, ctypes.byref(blob)) < 0:
        raise CompilerError("the compiled module cannot be read back")
    functions = ctypes.cast(ctypes.cast(blob, ctypes.POINTER(ctypes.c_void_p))[0], ctypes.POINTER(ctypes.c_void_p))
    assert functions
    pointer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(functions[_BLOB_POINTER] or 0)(blob)
    size = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(functions[_BLOB_SIZE] or 0)(blob)
    return ctypes.string_at(pointer, size)
