"""Metal source that was emitted before, kept between processes, as emitting takes the compiler up to a second a kernel.

A file a kernel, in the folder of compiled kernels (`compile_cache`), which is named after the shaders and SlangPy's version.
Its first line is a checksum of the rest: what is damaged, or cannot be read or written, costs emitting.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any

from splat_py.errors import SplatError
from splat_py.files import atomic_path
from splat_py.gpu.compile_cache import cache_folder
from splat_py.gpu.emission import MetalKernel, emit_metal_kernel
from splat_py.gpu.kernels import specialisation_source
from splat_py.gpu.sources import shader_folder


class EmissionCache:
    """The Metal source of kernels."""

    def __init__(self) -> None:
        self._folder = cache_folder(shader_folder()) / "metal"

    def get(self, module: str, entry: str, constants: dict[str, Any]) -> MetalKernel:
        """See `emit_metal_kernel`."""
        what = "\0".join((module, entry, specialisation_source(module, constants) if constants else ""))
        path = self._folder / f"{entry}-{_checksum(what)}.json"
        with suppress(OSError, ValueError):
            checksum, _, text = path.read_text(encoding="utf-8").partition("\n")
            if checksum == _checksum(text):
                source, threads = json.loads(text)
                x, y, z = threads
                return MetalKernel(source, (x, y, z))
        kernel = emit_metal_kernel(module, entry, constants)
        text = json.dumps(kernel)
        with suppress(SplatError), atomic_path(path) as temporary:
            temporary.write_text(f"{_checksum(text)}\n{text}", encoding="utf-8")
        return kernel


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
