"""Metal, CUDA and WebGPU source of any kernel, and SPIR-V, emitted on any machine: SlangPy compiles for its own device, but its
compiler library for every target."""

import re
from typing import Any, NamedTuple, Self

from splat_py.base.errors import BindingError, SplatError
from splat_py.gpu.compiled_modules import compiled_modules, folder_made
from splat_py.gpu.kernels import UserType, specialisation_source
from splat_py.gpu.slang_compiler import CompilerError, Session, Target, in_compiler_thread
from splat_py.gpu.sources import shader_folder


class EmittedKernel(NamedTuple):
    """Source of one entry point, and its workgroup size, which the source does not state."""

    source: str
    # Threads of a workgroup; 0 in WGSL if constants of another module define them.
    threads: tuple[int, int, int]


# A workgroup's number of threads along x in emitted source.
_THREADS = {
    "metal": re.compile(r"\(sv_groupthreadid\w*\[int\(2\)\] \+ sv_groupthreadid\w*\[int\(1\)\]\) \* (\d+)U"),
    "cuda": re.compile(r" = groupThread_0\(\w+, (\d+)U"),
}


def emit(target: Target, module: str, entry: str, constants: dict[str, Any]) -> EmittedKernel:
    """Emit a kernel of the library in another language, on any machine.

    Args:
        target: "metal", "cuda" (NVRTC compiles it unchanged) or "wgsl".
        module, entry: an entry point of slang/kernels/<module>.slang.
        constants: values of names that the module declares `extern`: numbers, booleans, and types by their names.

    Raises:
        SplatError: there is no such kernel, or it cannot be compiled with these constants.
    """
    if not (shader_folder() / "kernels" / f"{module}.slang").is_file():
        raise SplatError(f"slang/kernels has no {module}.slang; splat_py.shader_folder() is the folder slang")
    try:
        code, (x, y, z) = _compile(target, module, entry, constants)
    except BindingError as error:
        raise SplatError(str(error)) from error
    source = code.decode().rstrip("\0")
    if target in _THREADS:
        in_source = _THREADS[target].search(source)
        if in_source:
            assert x in (0, int(in_source[1])), f"{module}.{entry} has two numbers of threads"
            x = int(in_source[1])
        assert x * y * z > 0, f"nothing says how many threads {module}.{entry} has"
    return EmittedKernel(source, (x, y, z))


def emit_spirv(module: str, entry: str, constants: dict[str, Any]) -> bytes:
    """Emit an entry point as SPIR-V, under the name `main`."""
    return _compile("spirv", module, entry, constants)[0]


class WgslField(NamedTuple):
    """A number of a uniform block."""

    name: str
    # Bytes from the block's beginning.
    offset: int
    # WGSL's name.
    type: str


class WgslKernel(NamedTuple):
    """WGSL of one entry point, and its bindings."""

    source: str
    # Names by binding, all in group 0, for those that the entry point uses; a struct's field is `struct_field`.
    buffers: dict[int, str]
    # Binding of the uniform block, and the numbers in it; -1 if none is used.
    uniforms: int
    fields: list[WgslField]

    @classmethod
    def of(cls, source: str) -> Self:
        """Read the bindings that emitted source declares; the compiler has dropped unused ones."""
        buffers = {int(binding): name for binding, name in _WGSL_STORAGE.findall(source)}
        blocks = _WGSL_UNIFORM.findall(source)
        assert len(blocks) < 2, "a kernel's numbers are all in `params`, or none is"
        fields: list[WgslField] = []
        for _, structure in blocks:
            _add_fields(source, structure, "", 0, fields)
        return cls(source, buffers, int(blocks[0][0]) if blocks else -1, fields)


def _add_fields(source: str, structure: str, prefix: str, offset: int, fields: list[WgslField]) -> int:
    """Add the numbers of a structure that begins at `offset`; return its end."""
    body = re.search(rf"struct {structure}\s*\{{(.*?)\}}", source, re.DOTALL)
    assert body is not None
    end = offset
    for align, name, kind in _WGSL_FIELD.findall(body[1]):
        at = -(-end // int(align)) * int(align)
        if kind in WGSL_SIZES:
            fields.append(WgslField(prefix + name, at, kind))
            end = at + WGSL_SIZES[kind]
        else:
            end = _add_fields(source, kind, f"{prefix}{name}_", at, fields)
    return end


_WGSL_STORAGE = re.compile(r"@binding\((\d+)\) @group\(0\) var<storage, (?:read|read_write)> (?:globalParams_)?(\w+)_\d+ :")
_WGSL_UNIFORM = re.compile(r"@binding\((\d+)\) @group\(0\) var<uniform> (?:params|globalParams)_\d+ : (\w+);")
_WGSL_FIELD = re.compile(r"@align\((\d+)\) (\w+)_\d+ : (\w+(?:<u32>)?)")
# Bytes of the types in uniform blocks.
WGSL_SIZES = {"u32": 4, "i32": 4, "f32": 4, "vec2<u32>": 8}


# Kernels of one session of the compiler, which keeps the modules of their constants. Others read all modules again.
_KERNELS = 256
# By target: the session, the folders that it reads, and its kernels.
_sessions: dict[Target, tuple[Session, Any, int]] = {}


def _compile(target: Target, module: str, entry: str, constants: dict[str, Any]) -> tuple[bytes, tuple[int, int, int]]:
    types = [value for value in constants.values() if isinstance(value, UserType)]
    if constants:
        # As in `KernelCache`, the values form a small module, linked like modules of the caller's own types.
        types.append(UserType("", specialisation_source(module, constants)))
    folders = [folder for folder in (compiled_modules(unrolled=True), shader_folder()) if folder]
    texts = {kind.module: kind.text for kind in types}
    return _linked(target, (folders, folder_made(unrolled=True)), f"kernels/{module}", entry, texts)


@in_compiler_thread
def _linked(target: Target, state: Any, *kernel: Any) -> tuple[bytes, tuple[int, int, int]]:
    session, before, kernels = _sessions.pop(target, (None, None, 0))
    if session is not None and (before != state or kernels == _KERNELS):
        session.close()
        session = None
    if session is None:
        session, kernels = Session(state[0], target), 0
    try:
        code = session.kernel(*kernel)
    except CompilerError:
        # A session keeps modules that are wrong.
        session.close()
        raise
    _sessions[target] = session, state, kernels + 1
    return code
