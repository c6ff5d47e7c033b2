"""The names of devices, what a machine must have for each, and why one is not here.

Nothing heavy is imported, so that commands refuse unknown names at once.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from functools import cache

from splat_py.errors import SplatError

BACKENDS = ("metal", "mps", "cuda", "vulkan", "software")

_METAL_ADVICE = (
    "Metal needs macOS 15 or later, and torch 2.7 or later (--device mps) or Xcode's metal compiler "
    "(xcodebuild -downloadComponent MetalToolchain)"
)
_LOADER_ADVICE = "install the Vulkan loader (package libvulkan1) and a driver (package mesa-vulkan-drivers, if there is no GPU)"
_DRIVER_ADVICE = "install a driver, the software one if there is no GPU: package mesa-vulkan-drivers, Mesa 23 or later"
_NEWER_DRIVER_ADVICE = "install Mesa 23 or later (on Debian 12 from bookworm-backports) or the GPU vendor's present driver"


def parse_device(name: str | None) -> tuple[str, int]:
    """Backend and index of `name`, or of the environment variable SPLAT_DEVICE: "vulkan:1" is the second of Vulkan's. The
    backend is empty where neither says one.

    Raises:
        SplatError: the name means nothing.
    """
    asked = name or os.environ.get("SPLAT_DEVICE") or ""
    backend, _, index = asked.partition(":")
    if asked and (backend not in BACKENDS or not re.fullmatch("[0-9]{0,4}", index)):
        raise SplatError(f"device {asked!r} is not known; use one of {', '.join(BACKENDS)}, or for example vulkan:1")
    return backend, int(index or 0)


def why_no_device() -> str:
    """Why there is no adapter, and what to do."""
    if platform.system() == "Darwin":
        return _METAL_ADVICE
    if not has_loader():
        return f"there is no Vulkan loader; {_LOADER_ADVICE}"
    return f"the Vulkan loader found no driver that works; {_DRIVER_ADVICE}"


def why_not_opened(backend: str, adapter: str, error: RuntimeError) -> str:
    """Why there is an adapter but no device, and what to do."""
    reason = str(error).strip().split("\n")[0].rstrip(".!")
    what = f"cannot open {adapter} through {backend}"
    if backend == "metal":
        return f"{what}: {reason}; {_METAL_ADVICE}"
    driver = None
    if backend != "cuda":
        driver = next((driver for driver in drivers() if driver.adapter == adapter), None)
    if driver is None:
        return f"{what}: {reason}; {_NEWER_DRIVER_ADVICE}"
    if NEEDED_EXTENSION not in driver.extensions:
        return f"{what}: its driver, {driver.version}, is too old and lacks {NEEDED_EXTENSION}; {_NEWER_DRIVER_ADVICE}"
    return f"{what}: {reason} (driver {driver.version}); {_NEWER_DRIVER_ADVICE}"


# --- Vulkan: SlangPy says only that no device opens ---

_LIBRARY = {"Windows": "vulkan-1.dll", "Darwin": "libvulkan.1.dylib"}.get(platform.system(), "libvulkan.so.1")

# Without it SlangPy opens no device. Debian 12's own Mesa, 22.3.6, has everything else.
NEEDED_EXTENSION = "VK_KHR_shader_non_semantic_info"

_APPLICATION_INFO, _INSTANCE_CREATE_INFO, _PROPERTIES_2, _DRIVER_PROPERTIES = 0, 1, 1000059001, 1000196000
_VULKAN_1_2 = 1 << 22 | 2 << 12


@dataclass(frozen=True)
class Driver:
    """A driver for one adapter."""

    adapter: str
    # As it calls itself: "Mesa 25.0.7 (LLVM 15.0.6)".
    version: str
    extensions: frozenset[str]


class _ApplicationInfo(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("application", ctypes.c_char_p),
        ("application_version", ctypes.c_uint32),
        ("engine", ctypes.c_char_p),
        ("engine_version", ctypes.c_uint32),
        ("api_version", ctypes.c_uint32),
    ]


class _InstanceCreateInfo(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application_info", ctypes.POINTER(_ApplicationInfo)),
        ("layer_count", ctypes.c_uint32),
        ("layers", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    ]


class _DriverProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("id", ctypes.c_int),
        ("name", ctypes.c_char * 256),
        ("info", ctypes.c_char * 256),
        ("conformance", ctypes.c_uint8 * 4),
    ]


class _Properties2(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("next", ctypes.POINTER(_DriverProperties)),
        ("api_version", ctypes.c_uint32),
        ("driver_version", ctypes.c_uint32),
        ("vendor", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("kind", ctypes.c_int),
        ("adapter", ctypes.c_char * 256),
        ("rest", ctypes.c_uint64 * 80),  # the cache's identifier, limits and sparse properties: 548 bytes
    ]


class _Extension(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 256), ("version", ctypes.c_uint32)]


def has_loader() -> bool:
    """True if the library is installed through which programs reach Vulkan drivers."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def drivers() -> list[Driver]:
    """Every driver that the loader can load, one entry an adapter; empty without a loader or a driver."""
    if not has_loader():
        return []
    vulkan = ctypes.CDLL(_LIBRARY)
    application = _ApplicationInfo(type=_APPLICATION_INFO, api_version=_VULKAN_1_2)
    create_info = _InstanceCreateInfo(type=_INSTANCE_CREATE_INFO, application_info=ctypes.pointer(application))
    instance = ctypes.c_void_p()
    if vulkan.vkCreateInstance(ctypes.byref(create_info), None, ctypes.byref(instance)) != 0:
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
    driver = _DriverProperties(type=_DRIVER_PROPERTIES)
    properties = _Properties2(type=_PROPERTIES_2, next=ctypes.pointer(driver))
    vulkan.vkGetPhysicalDeviceProperties2(adapter, ctypes.byref(properties))
    count = ctypes.c_uint32()
    vulkan.vkEnumerateDeviceExtensionProperties(adapter, None, ctypes.byref(count), None)
    found = (_Extension * count.value)()
    vulkan.vkEnumerateDeviceExtensionProperties(adapter, None, ctypes.byref(count), found)
    api = properties.api_version
    # A driver older than Vulkan 1.2 need not say what it calls itself.
    version = driver.info.decode(errors="replace") or f"for Vulkan {api >> 22}.{api >> 12 & 0x3FF}.{api & 0xFFF}"
    return Driver(
        properties.adapter.decode(errors="replace"), version, frozenset(e.name.decode() for e in found[: count.value])
    )


# --- Metal, through torch and through SlangPy ---

# The torch device of tensors that Metal kernels read and write.
TORCH_DEVICE = "mps"
# compile_shader came with 2.6, and lists as arguments and numbers of threads soon after.
_TORCH = (2, 7)
# From then on torch compiles Metal 3.1.
_MACOS = 14
_PATIENCE = 20.0


def why_no_torch_metal() -> str:
    """A clause that says why kernels cannot be dispatched through torch.mps; "" if they can."""
    import torch

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
    """Torch's name of the GPU."""
    import torch

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
