"""Where compiled kernels are kept between processes: without it, every process compiles for two seconds before its first
image and its first gradient, with it for 0.2 (software Vulkan, two cores)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import platformdirs
import slangpy as spy


def compile_cache_folder(shaders: Path) -> Path | None:
    """A folder for this version of SlangPy and of the shaders; None where none can be made."""
    digest = hashlib.sha256(spy.__version__.encode())
    for source in sorted(shaders.rglob("*.slang")):
        digest.update(source.relative_to(shaders).as_posix().encode())
        digest.update(source.read_bytes())
    folder = platformdirs.user_cache_path("splat_py") / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder
