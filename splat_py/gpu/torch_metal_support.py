"""Whether torch can dispatch Metal kernels here, and whether SlangPy can: what each needs, asked without opening a device."""

from __future__ import annotations

import platform
import re
import subprocess
from functools import cache

import torch

# Where torch keeps the tensors that its Metal kernels read and write.
TORCH_DEVICE = torch.device("mps")
# compile_shader came with 2.6, and lists as arguments and numbers of threads soon after.
_TORCH = (2, 7)
# From then on torch compiles Metal 3.1.
_MACOS = 14
_PATIENCE = 20.0


def why_no_torch_metal() -> str:
    """A clause that says why kernels cannot be dispatched through torch.mps; "" if they can."""
    if not torch.backends.mps.is_built():
        return "this torch is built without Metal"
    if not torch.backends.mps.is_available():
        return "torch finds no Metal device"
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version < _TORCH or not hasattr(torch.mps, "compile_shader"):
        return f"torch {torch.__version__} is too old; it takes {_TORCH[0]}.{_TORCH[1]} or later"
    if not torch.backends.mps.is_macos_or_newer(_MACOS, 0):
        return f"macOS {platform.mac_ver()[0]} is too old; it takes {_MACOS} or later"
    return ""


def torch_metal_name() -> str:
    """What torch calls the GPU."""
    name = getattr(torch.backends.mps, "get_name", None)
    return str(name()) if name else "Apple GPU"


@cache
def why_no_metal_compiler() -> str:
    """A clause that says why Apple's `metal`, which SlangPy's Metal backend calls, does not answer; "" if it does."""
    if platform.system() != "Darwin":
        return "only on macOS"
    # Without any developer tools, whatever else is called here would open a window that offers to install them.
    if not _answers("xcode-select", "-p"):
        return "no Xcode is selected (xcode-select -p)"
    # Since Xcode 26 there is a `metal` to be found that only says which component is missing: it has to be run.
    if not _answers("xcrun", "-sdk", "macosx", "metal", "--version"):
        return "Xcode's metal compiler does not answer (xcrun -sdk macosx metal --version)"
    return ""


def _answers(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
