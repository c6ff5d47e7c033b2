"""The names of devices, the requirements of each, and why one is missing.

This module imports nothing heavy, so commands refuse unknown names at once.
"""

import ctypes
import os
import platform
import re
import struct
import subprocess
from dataclasses import dataclass
from functools import cache

from splat_py.base.errors import SplatError

BACKENDS = ("metal", "mps", "cuda", "vulkan", "software")

_METAL_ADVICE = (
    "Metal needs macOS 15 or later, and torch 2.7 or later (--device mps) or Xcode's metal compiler "
    "(xcodebuild -downloadComponent MetalToolchain)"
)
_LOADER_ADVICE = "install the Vulkan loader (package libvulkan1) and a driver (package mesa-vulkan-drivers, if there is no GPU)"
_DRIVER_ADVICE = "install a driver, the software one if there is no GPU: package mesa-vulkan-drivers, Mesa 23 or later"
_NEWER_DRIVER_ADVICE = "install Mesa 23 or later (on Debian 12 from bookworm-backports) or the GPU vendor's current driver"


def parse_device(name: str | None) -> tuple[str, int]:
    """Split `name`, or the environment variable SPLAT_DEVICE, into backend and index: "vulkan:1" is Vulkan's second device. The
    backend is empty if neither is set; SplatError if the name is unknown."""
    asked = name or os.environ.get("SPLAT_DEVICE") or ""
    backend, _, index = asked.partition(":")
    if asked and (backend not in BACKENDS or not re.fullmatch("[0-9]{0,4}", index)):
        raise SplatError(f"device {asked!r} is not known; use one of {', '.join(BACKENDS)}, or for example vulkan:1")
    return backend, int(index or 0)


def why_no_device() -> str:
    """Say why there is no adapter, and what to do."""
    if platform.system() == "Darwin":
        return _METAL_ADVICE
    if not has_loader():
        return f"there is no Vulkan loader; {_LOADER_ADVICE}"
    return f"the Vulkan loader found no driver that works; {_DRIVER_ADVICE}"


def why_not_opened(backend: str, adapter: str, error: RuntimeError) -> str:
    """Say why an adapter cannot be opened, and what to do."""
    reason = str(error).strip().split("\n")[0].rstrip(".!")
    what = f"cannot open {adapter} through {backend}"
    reported = drivers() if backend in ("vulkan", "software") else []
    driver = next((driver for driver in reported if driver.adapter == adapter), None)
    if driver is not None:
        old = f"its driver, {driver.version}, is too old and lacks {NEEDED_EXTENSION}"
        reason = old if NEEDED_EXTENSION not in driver.extensions else f"{reason} (driver {driver.version})"
    return f"{what}: {reason}; {_METAL_ADVICE if backend == 'metal' else _NEWER_DRIVER_ADVICE}"


# --- Vulkan: SlangPy says only that no device opens ---

_LIBRARY = {"Windows": "vulkan-1.dll", "Darwin": "libvulkan.1.dylib"}.get(platform.system(), "libvulkan.so.1")

# SlangPy opens no device without this extension, the only one that Debian 12's own Mesa, 22.3.6, lacks.
NEEDED_EXTENSION = "VK_KHR_shader_non_semantic_info"

# Vulkan's structures as C lays them out; the first four begin with their type and a pointer to the next one.
_APPLICATION_INFO = "iPPIPII"  # application, its version, engine, its version, Vulkan's version
_INSTANCE_INFO = "iPIPIPIP"  # flags, application, layers, extensions
_DRIVER = "iPi256s256s4s"  # identifier, name, version in words, conformance
_PROPERTIES = "iPIIIIi256s"  # versions of Vulkan and of the driver, vendor, device, kind, the adapter's name
_EXTENSION = "256sI"
_DRIVER_TYPE, _PROPERTIES_TYPE = 1000196000, 1000059001
# Enough bytes for the fields after the adapter's name: cache identifier, limits, sparse properties.
_MOST_PROPERTIES = 1024
_VULKAN_1_2 = 1 << 22 | 2 << 12


@dataclass(frozen=True)
class Driver:
    """A driver for one adapter."""

    adapter: str
    # The driver's own words, such as "Mesa 25.0.7 (LLVM 15.0.6)".
    version: str
    extensions: frozenset[str]


def has_loader() -> bool:
    """True if the Vulkan loader is installed, the library that reaches the drivers."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def drivers() -> list[Driver]:
    """List the drivers that the loader can load, one entry per adapter; empty without a loader or a driver."""
    if not has_loader():
        return []
    vulkan = ctypes.CDLL(_LIBRARY)
    application = _structure(_APPLICATION_INFO, 0, 0, 0, 0, 0, 0, _VULKAN_1_2)
    create_info = _structure(_INSTANCE_INFO, 1, 0, 0, ctypes.addressof(application), 0, 0, 0, 0)
    instance = ctypes.c_void_p()
    if vulkan.vkCreateInstance(create_info, None, ctypes.byref(instance)) != 0:
        return []
    try:
        count = ctypes.c_uint32()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        adapters = (ctypes.c_void_p * count.value)()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), adapters)
        return [_driver(vulkan, ctypes.c_void_p(adapter)) for adapter in adapters[: count.value]]
    finally:
        vulkan.vkDestroyInstance(instance, None)


def _driver(vulkan: ctypes.CDLL, adapter: ctypes.c_void_p) -> Driver:
    driver = _structure(_DRIVER, _DRIVER_TYPE, 0, 0, b"", b"", b"")
    properties = _structure(_PROPERTIES, _PROPERTIES_TYPE, ctypes.addressof(driver), 0, 0, 0, 0, 0, b"", size=_MOST_PROPERTIES)
    vulkan.vkGetPhysicalDeviceProperties2(adapter, properties)
    _, _, api, *_, name = struct.unpack_from(_PROPERTIES, properties)
    *_, version, _ = struct.unpack_from(_DRIVER, driver)
    count = ctypes.c_uint32()
    vulkan.vkEnumerateDeviceExtensionProperties(adapter, None, ctypes.byref(count), None)
    found = ctypes.create_string_buffer(struct.calcsize(_EXTENSION) * count.value)
    vulkan.vkEnumerateDeviceExtensionProperties(adapter, None, ctypes.byref(count), found)
    extensions = frozenset(_text(extension) for extension, _ in struct.iter_unpack(_EXTENSION, found))
    # Drivers older than Vulkan 1.2 need not report their version in words.
    return Driver(_text(name), _text(version) or f"for Vulkan {api >> 22}.{api >> 12 & 0x3FF}.{api & 0xFFF}", extensions)


def _structure(layout: str, *fields: int | bytes, size: int = 0) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack(layout, *fields), max(size, struct.calcsize(layout)))


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode(errors="replace")


# --- Metal, through torch and through SlangPy ---

# The torch device of tensors that Metal kernels read and write.
TORCH_DEVICE = "mps"
# compile_shader came with torch 2.6; lists as arguments and as thread counts came soon after.
_TORCH = (2, 7)
# From this version on, torch compiles Metal 3.1.
_MACOS = 14


def why_no_torch_metal() -> str:
    """A clause that says why kernels cannot be dispatched through torch.mps; "" if they can."""
    import torch

    if not torch.backends.mps.is_built():
        return "this torch is built without Metal"
    if not torch.backends.mps.is_available():
        return "torch finds no Metal device"
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version < _TORCH or not hasattr(torch.mps, "compile_shader"):
        return f"torch {torch.__version__} is too old; splat_py needs {_TORCH[0]}.{_TORCH[1]} or later"
    if not torch.backends.mps.is_macos_or_newer(_MACOS, 0):
        return f"macOS {platform.mac_ver()[0]} is too old; splat_py needs {_MACOS} or later"
    return ""


@cache
def why_no_metal_compiler() -> str:
    """A clause that says why Apple's `metal`, which SlangPy's Metal backend calls, does not answer; "" if it does."""
    if platform.system() != "Darwin":
        return "only on macOS"
    # Without developer tools, any other call would open a window that offers to install them.
    if not _answers("xcode-select", "-p"):
        return "no Xcode is selected (xcode-select -p)"
    # Since Xcode 26, an existing `metal` may only report that a component is missing, so run it.
    if not _answers("xcrun", "-sdk", "macosx", "metal", "--version"):
        return "Xcode's metal compiler does not answer (xcrun -sdk macosx metal --version)"
    return ""


def _answers(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
