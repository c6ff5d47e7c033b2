"""The compiler library that SlangPy ships. Through its C interface, a request compiles as slangc would with a command line;
through its COM interface, which keeps its order from version to version, one session compiles many modules."""

import ctypes
import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from splat_py.base.errors import SplatError
from splat_py.gpu.messages import first_error

T = TypeVar("T")

# Indices in the function tables of COM interfaces: ISlangUnknown, ISlangBlob, IGlobalSession, ISession and IModule.
_RELEASE, _BLOB_POINTER, _BLOB_SIZE, _CREATE_SESSION, _LOAD_MODULE, _SERIALIZE = 2, 3, 4, 3, 4, 20
_ROW_MAJOR = 1
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


class _SessionDesc(ctypes.Structure):
    """slang::SessionDesc."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("targets", ctypes.c_void_p),
        ("target_count", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("matrix_layout", ctypes.c_uint32),
        ("search_paths", ctypes.POINTER(ctypes.c_char_p)),
        ("search_path_count", ctypes.c_int64),
        ("macros", ctypes.c_void_p),
        ("macro_count", ctypes.c_int64),
        ("file_system", ctypes.c_void_p),
        ("switches", ctypes.c_bool * 2),
        ("options", ctypes.c_void_p),
        ("option_count", ctypes.c_uint32),
        ("skips_validation", ctypes.c_bool),
    )


def compile_modules(names: list[str], folders: list[Path]) -> list[bytes]:
    """Compile the modules of `names`, which lie in `folders`, and return them in the compiler's own format."""
    return _thread.submit(_compile_modules, names, folders).result()


def _compile_modules(names: list[str], folders: list[Path]) -> list[bytes]:
    pointer, paths = ctypes.c_void_p, (ctypes.c_char_p * len(folders))(*(str(folder).encode() for folder in folders))
    size = ctypes.sizeof(_SessionDesc)
    description = _SessionDesc(size=size, matrix_layout=_ROW_MAJOR, search_paths=paths, search_path_count=len(folders))
    session, compiled = pointer(), []
    create = _method(pointer(Library().session), _CREATE_SESSION, ctypes.c_int, pointer, pointer)
    if create(ctypes.byref(description), ctypes.byref(session)) < 0:
        raise CompilerError("the compiler opens no session")
    try:
        load = _method(session, _LOAD_MODULE, pointer, ctypes.c_char_p, pointer)
        for name in names:
            messages, blob = pointer(), pointer()
            # A module belongs to its session.
            module = pointer(load(name.encode(), ctypes.byref(messages)))
            if not module or _method(module, _SERIALIZE, ctypes.c_int, pointer)(ctypes.byref(blob)) < 0:
                raise CompilerError(_taken(messages).decode(errors="replace"))
            _taken(messages)
            compiled.append(_taken(blob))
    finally:
        _method(session, _RELEASE, ctypes.c_uint32)()
    return compiled


def _method(of: ctypes.c_void_p, index: int, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A method of a COM object."""
    table = ctypes.cast(ctypes.cast(of, ctypes.POINTER(ctypes.c_void_p))[0], ctypes.POINTER(ctypes.c_void_p))
    return partial(ctypes.CFUNCTYPE(result, ctypes.c_void_p, *arguments)(table[index] or 0), of)


def _taken(blob: ctypes.c_void_p) -> bytes:
    """A blob's content; frees the blob."""
    if not blob:
        return b""
    pointer, size = _method(blob, _BLOB_POINTER, ctypes.c_void_p)(), _method(blob, _BLOB_SIZE, ctypes.c_size_t)()
    content = ctypes.string_at(pointer, size)
    _method(blob, _RELEASE, ctypes.c_uint32)()
    return content


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
    return _taken(blob)
