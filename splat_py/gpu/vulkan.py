"""What the Vulkan loader says of the drivers here. Where no device opens, SlangPy says only that; this says why."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass

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
    """Whether the library is there through which programs reach Vulkan drivers."""
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
