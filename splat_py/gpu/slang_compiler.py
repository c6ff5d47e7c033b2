"""The compiler library that SlangPy ships, through its COM interface, whose methods keep their order from version to version: a
session loads modules, from texts or in the compiler's own format, and emits kernels."""

import ctypes
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from splat_py.base.errors import SplatError
from splat_py.gpu.messages import first_error

T = TypeVar("T")
P = ParamSpec("P")
Target = Literal["metal", "cuda", "wgsl", "spirv"]

# slang.h's numbers of targets.
_FORMATS: dict[Target, int] = {"spirv": 6, "cuda": 17, "metal": 24, "wgsl": 28}
_SPIRV_DIRECTLY, _NO_LINE_DIRECTIVES = 1 << 10, 1
# Indices in the function tables of ISlangUnknown, ISlangBlob and IGlobalSession; ISession; IComponentType and IModule.
_RELEASE, _BLOB_POINTER, _BLOB_SIZE, _CREATE_SESSION = 2, 3, 4, 3
_LOAD_MODULE, _COMPOSE, _LOAD_TEXT = 4, 6, 20
_LAYOUT, _CODE, _LINK, _FIND_ENTRY, _SERIALIZE = 4, 6, 10, 17, 20
_ROW_MAJOR = 1
# The compiler keeps some state per thread: Slang 2026.5 crashes if several threads use a session in turns.
_thread = ThreadPoolExecutor(1)


def in_compiler_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that uses the compiler: the one thread of the compiler calls it."""

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        return _thread.submit(function, *args, **named).result()

    return call


class CompilerError(SplatError):
    """The Slang compiler rejected its input, for the reasons in `messages`."""

    def __init__(self, messages: str) -> None:
        super().__init__(f"Slang cannot compile this: {first_error(messages, '')}")
        self.messages = messages


@cache
class Library:
    """The library's functions, with types, and one global session."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("slangpy")
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parent
        names = ("libslang-compiler.so*", "libslang-compiler*.dylib", "slang-compiler.dll")
        found = sorted(path for name in names for path in folder.rglob(name))
        assert found, f"no Slang compiler library in {folder}"
        library = ctypes.CDLL(str(found[0]))
        pointer = ctypes.c_void_p

        def function(name: str, result: Any, *arguments: Any) -> Any:
            symbol = getattr(library, name)
            symbol.restype, symbol.argtypes = result, arguments
            return symbol

        self.entry_point = function("spReflection_getEntryPointByIndex", pointer, pointer, ctypes.c_uint)
        self.group_size = function(
            "spReflectionEntryPoint_getComputeThreadGroupSize", None, pointer, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
        )
        self.session = pointer(function("spCreateSession", pointer, ctypes.c_char_p)(None))


class _TargetDesc(ctypes.Structure):
    """slang::TargetDesc."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("profile", ctypes.c_int),
        ("flags", ctypes.c_uint32),
        ("floating_point_mode", ctypes.c_uint32),
        ("line_directives", ctypes.c_uint32),
        ("scalar_layout", ctypes.c_bool),
        ("options", ctypes.c_void_p),
        ("option_count", ctypes.c_uint32),
    )


class _SessionDesc(ctypes.Structure):
    """slang::SessionDesc."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("targets", ctypes.POINTER(_TargetDesc)),
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


class Session:
    """A session of the compiler, to be used in its thread. Modules lie in `folders`, and stay loaded; code is for `target`."""

    def __init__(self, folders: Iterable[Path], target: Target | None = None) -> None:
        encoded = [str(folder).encode() for folder in folders]
        paths = (ctypes.c_char_p * len(encoded))(*encoded)
        description = _SessionDesc(ctypes.sizeof(_SessionDesc), search_paths=paths, search_path_count=len(encoded))
        description.matrix_layout = _ROW_MAJOR
        if target is not None:
            described = _TargetDesc(ctypes.sizeof(_TargetDesc), _FORMATS[target], flags=_SPIRV_DIRECTLY)
            described.line_directives = _NO_LINE_DIRECTIVES
            description.targets, description.target_count = ctypes.pointer(described), 1
        self._pointer = ctypes.c_void_p()
        create = _method(Library().session, _CREATE_SESSION, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        if create(ctypes.byref(description), ctypes.byref(self._pointer)) < 0:
            raise CompilerError("the compiler opens no session")

    def close(self) -> None:
        """End the session, and free its modules."""
        _release(self._pointer)

    def load(self, name: str, text: str | None = None) -> ctypes.c_void_p:
        """Load a module from the session's folders or from a text. CompilerError if it is wrong."""
        given = [name] if text is None else [name, f"{name}.slang", text]
        pointer, messages = ctypes.c_void_p, ctypes.c_void_p()
        index = _LOAD_MODULE if text is None else _LOAD_TEXT
        load = _method(self._pointer, index, pointer, *[ctypes.c_char_p] * len(given), pointer)
        # A module belongs to its session.
        module = pointer(load(*(part.encode() for part in given), ctypes.byref(messages)))
        said = messages_of(messages)
        if not module:
            raise CompilerError(said)
        return module

    def kernel(self, module: str, entry: str, texts: Mapping[str, str]) -> tuple[bytes, tuple[int, int, int]]:
        """The code of a module's entry point, linked with modules of these texts by name, and its workgroup size, which is 0 if
        constants of another module define it. CompilerError if they do not fit."""
        parts = [self.load(module)]
        try:
            made = [_made(parts[0], _FIND_ENTRY, ctypes.c_char_p(entry.encode()), has_messages=False)]
        except CompilerError:
            raise CompilerError(f"error 1: no function of {module}.slang has the name '{entry}'") from None
        try:
            parts += made + [self.load(name, text) for name, text in texts.items()]
            table = (ctypes.c_void_p * len(parts))(*(part.value for part in parts))
            made.append(_made(self._pointer, _COMPOSE, ctypes.cast(table, ctypes.c_void_p), ctypes.c_int64(len(parts))))
            made.append(_made(made[-1], _LINK))
            code = _made(made[-1], _CODE, ctypes.c_int64(0), ctypes.c_int64(0))
            layout = _method(made[-1], _LAYOUT, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(0, None)
            threads = (ctypes.c_size_t * 3)()
            Library().group_size(Library().entry_point(layout, 0), 3, threads)
            x, y, z = threads
            return _taken(code), (x, y, z)
        finally:
            for component in made:
                _release(component)


@in_compiler_thread
def compile_modules(names: list[str], folders: list[Path]) -> list[bytes]:
    """Compile the modules of `names`, which lie in `folders`, and return them in the compiler's own format."""
    session = Session(folders)
    try:
        return [_taken(_made(session.load(name), _SERIALIZE, has_messages=False)) for name in names]
    finally:
        session.close()


def messages_of(blob: ctypes.c_void_p) -> str:
    """The compiler's errors and warnings; frees the blob."""
    return _taken(blob).decode(errors="replace")


def _method(of: ctypes.c_void_p, index: int, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A method of a COM object."""
    table = ctypes.cast(ctypes.cast(of, ctypes.POINTER(ctypes.c_void_p))[0], ctypes.POINTER(ctypes.c_void_p))
    return partial(ctypes.CFUNCTYPE(result, ctypes.c_void_p, *arguments)(table[index] or 0), of)


def _made(of: ctypes.c_void_p, index: int, *arguments: Any, has_messages: bool = True) -> ctypes.c_void_p:
    """The object that a method makes; CompilerError if it fails. Its last parameters are the object and, maybe, messages."""
    made, messages = ctypes.c_void_p(), ctypes.c_void_p()
    results = [ctypes.byref(made), ctypes.byref(messages)][: 1 + has_messages]
    method = _method(of, index, ctypes.c_int, *map(type, arguments), *[ctypes.c_void_p] * len(results))
    failed = method(*arguments, *results) < 0
    said = messages_of(messages)
    if failed or not made:
        raise CompilerError(said)
    return made


def _release(of: ctypes.c_void_p) -> None:
    _method(of, _RELEASE, ctypes.c_uint32)()


def _taken(blob: ctypes.c_void_p) -> bytes:
    """A blob's content; frees the blob."""
    if not blob:
        return b""
    pointer, size = _method(blob, _BLOB_POINTER, ctypes.c_void_p)(), _method(blob, _BLOB_SIZE, ctypes.c_size_t)()
    content = ctypes.string_at(pointer, size)
    _release(blob)
    return content
