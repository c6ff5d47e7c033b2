"""Compute pipelines made by a Vulkan driver, and its statistics: registers, spills, waves. Nothing is executed.

Mesa's RADV compiles for absent AMD GPUs: RADV_FORCE_FAMILY gives it an adapter that compiles everything and runs
nothing. SlangPy cannot open that adapter. Mesa's ANV compiles for Intel GPUs behind a stand-in for the kernel's interface.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cffi

from splat_py.gpu.availability import _LIBRARY
from tests.vulkan.spirv import adds_floats_atomically, bindings

_VULKAN_1_3 = 1 << 22 | 3 << 12
_UNIFORM_BUFFER, _STORAGE_BUFFER, _COMPUTE = 6, 7, 0x20
# Flags of a pipeline: the driver keeps its statistics and its texts.
_KEEP_STATISTICS, _KEEP_TEXTS = 0x40, 0x80
# sType of structures of features: Vulkan 1.0, 1.1, 1.2, 1.3, float atomics, and properties of pipelines.
_FEATURES, _ATOMIC_FLOAT = (1000059000, 49, 51, 53, 1000260000, 1000269000), 1000260000
_EXTENSIONS = ("VK_KHR_pipeline_executable_properties", "VK_EXT_shader_atomic_float")
# Indices in those lists.
_ROBUST_BUFFER_ACCESS, _BUFFER_FLOAT32_ADD = 0, 1
_FUNCTIONS = {
    "vkGetPipelineExecutablePropertiesKHR": "VkPipelineInfo",
    "vkGetPipelineExecutableStatisticsKHR": "VkPipelineExecutableInfo",
    "vkGetPipelineExecutableInternalRepresentationsKHR": "VkPipelineExecutableInfo",
}

_ffi = cffi.FFI()
_ffi.cdef(Path(__file__).with_name("vulkan.h").read_text(encoding="utf-8"))


class VulkanError(Exception):
    """A driver is missing, or refuses something."""


@dataclass(frozen=True)
class Compiled:
    # Threads of a wave.
    wave: int
    # Names are the driver's own, such as "VGPRs".
    statistics: dict[str, float]
    # Texts of the compiler's stages, the assembly last.
    texts: dict[str, str]


class PipelineCompiler:
    def __init__(self, vulkan: Any, adapter: Any) -> None:
        self._vulkan = vulkan
        properties = _ffi.new("VkPhysicalDeviceProperties2 *", {"sType": 1000059001})
        driver = _ffi.new("VkPhysicalDeviceDriverProperties *", {"sType": 1000196000})
        properties.pNext = driver
        vulkan.vkGetPhysicalDeviceProperties2(adapter, properties)
        self.name, self.driver = _text(properties.name), _text(driver.info)
        features = [_ffi.new("Features *", {"sType": kind}) for kind in _FEATURES]
        for feature, following in pairwise(features):
            feature.pNext = following
        vulkan.vkGetPhysicalDeviceFeatures2(adapter, features[0])
        self.float_atomics = bool(features[_FEATURES.index(_ATOMIC_FLOAT)].values[_BUFFER_FLOAT32_ADD])
        features[0].values[_ROBUST_BUFFER_ACCESS] = 0  # no checks of bounds are needed
        priority = _ffi.new("float[]", [1.0])
        queue = _ffi.new("VkDeviceQueueCreateInfo *", {"sType": 2, "count": 1, "priorities": priority})
        names = [_ffi.new("char[]", name.encode()) for name in _EXTENSIONS]
        extensions = _ffi.new("char *[]", names)
        info = {"sType": 3, "pNext": features[0], "queueCount": 1, "queues": queue}
        info |= {"extensionCount": len(names), "extensions": extensions}
        self._device = self._created(vulkan.vkCreateDevice, adapter, _ffi.new("VkDeviceCreateInfo *", info), kind="void *")

    def close(self) -> None:
        self._vulkan.vkDestroyDevice(self._device, _ffi.NULL)

    def compile(self, code: bytes, wave: int | None = None) -> Compiled:
        """Compile a SPIR-V module's entry point `main`.

        Args:
            code: the module; its buffers may lie in any set.
            wave: threads of a wave; the driver chooses if None.

        Raises:
            VulkanError: the driver rejects the module.
        """
        if adds_floats_atomically(code) and not self.float_atomics:
            raise VulkanError(f"{self.name} cannot add to floats atomically")  # RADV would end the process
        vulkan, device = self._vulkan, self._device
        words = _ffi.from_buffer(code)
        module_info = _ffi.new("VkShaderModuleCreateInfo *", {"sType": 16, "size": len(code), "code": words})
        module = self._created(vulkan.vkCreateShaderModule, device, module_info)
        sets = [self._set_layout(code, index) for index in range(max((b.set for b in bindings(code)), default=-1) + 1)]
        handles = _ffi.new("uint64_t[]", sets)
        layout_info = _ffi.new("VkPipelineLayoutCreateInfo *", {"sType": 30, "setCount": len(sets), "sets": handles})
        layout = self._created(vulkan.vkCreatePipelineLayout, device, layout_info)
        size = _ffi.new("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *", {"sType": 1000225001, "size": wave or 0})
        entry = _ffi.new("char[]", b"main")
        stage = {"sType": 18, "pNext": size if wave else _ffi.NULL, "stage": _COMPUTE, "module": module, "entry": entry}
        info = {"sType": 29, "flags": _KEEP_STATISTICS | _KEEP_TEXTS, "stage": stage, "layout": layout}
        pipeline_info = _ffi.new("VkComputePipelineCreateInfo *", info)
        try:
            pipeline = self._created(vulkan.vkCreateComputePipelines, device, 0, 1, pipeline_info)
            try:
                return self._described(pipeline)
            finally:
                vulkan.vkDestroyPipeline(device, pipeline, _ffi.NULL)
        finally:
            vulkan.vkDestroyPipelineLayout(device, layout, _ffi.NULL)
            for handle in sets:
                vulkan.vkDestroyDescriptorSetLayout(device, handle, _ffi.NULL)
            vulkan.vkDestroyShaderModule(device, module, _ffi.NULL)

    def _set_layout(self, code: bytes, index: int) -> int:
        rows = [
            {"binding": b.binding, "type": _UNIFORM_BUFFER if b.uniform else _STORAGE_BUFFER, "count": 1, "stages": _COMPUTE}
            for b in bindings(code)
            if b.set == index
        ]
        table = _ffi.new("VkDescriptorSetLayoutBinding[]", rows)
        info = _ffi.new("VkDescriptorSetLayoutCreateInfo *", {"sType": 32, "bindingCount": len(rows), "bindings": table})
        return self._created(self._vulkan.vkCreateDescriptorSetLayout, self._device, info)

    def _described(self, pipeline: int) -> Compiled:
        of = _ffi.new("VkPipelineInfo *", {"sType": 1000269001, "pipeline": pipeline})
        properties = self._listed("vkGetPipelineExecutablePropertiesKHR", of, "VkPipelineExecutableProperties", 1000269002)
        of = _ffi.new("VkPipelineExecutableInfo *", {"sType": 1000269003, "pipeline": pipeline, "index": 0})
        numbers = self._listed("vkGetPipelineExecutableStatisticsKHR", of, "VkPipelineExecutableStatistic", 1000269004)
        statistics = {_text(row.name): getattr(row.value, ("b32", "i64", "u64", "f64")[row.format]) for row in numbers}
        return Compiled(properties[0].subgroupSize, statistics, self._texts(of))

    def _texts(self, of: Any) -> dict[str, str]:
        name, kind = "vkGetPipelineExecutableInternalRepresentationsKHR", "VkPipelineExecutableInternalRepresentation"
        rows = self._listed(name, of, kind, 1000269005)
        spaces = [_ffi.new("char[]", max(row.size, 1)) for row in rows]
        for row, space in zip(rows, spaces, strict=True):
            row.data = space
        self._function(name, kind)(self._device, of, _ffi.new("uint32_t *", len(rows)), rows)
        return {_text(row.name): _ffi.string(space).decode(errors="replace") for row, space in zip(rows, spaces, strict=True)}

    def _listed(self, name: str, of: Any, kind: str, number: int) -> Any:
        """An array of the driver's length, filled by the driver."""
        function, count = self._function(name, kind), _ffi.new("uint32_t *")
        function(self._device, of, count, _ffi.NULL)
        rows = _ffi.new(f"{kind}[]", [{"sType": number}] * count[0])
        function(self._device, of, count, rows)
        return rows

    def _function(self, name: str, kind: str) -> Any:
        address = self._vulkan.vkGetDeviceProcAddr(self._device, name.encode())
        return _ffi.cast(f"int (*)(void *, const {_FUNCTIONS[name]} *, uint32_t *, {kind} *)", address)

    @staticmethod
    def _created(function: Any, *arguments: Any, kind: str = "uint64_t") -> Any:
        made = _ffi.new(f"{kind} *")
        result = function(*arguments, _ffi.NULL, made)
        if result != 0:
            raise VulkanError(f"the driver answers {result}")
        return made[0]


def open_radv(family: str) -> AbstractContextManager[PipelineCompiler]:
    """Open Mesa's RADV for this family of AMD GPUs: navi31, navi21 ... It ends the process if it does not know the family.

    Raises:
        VulkanError: there is no RADV.
    """
    # The cache has pipelines, but not their statistics.
    return _open(f"(RADV {family.upper()})", {"RADV_FORCE_FAMILY": family, "MESA_SHADER_CACHE_DISABLE": "true"})


def open_intel() -> AbstractContextManager[PipelineCompiler]:
    """Open Mesa's ANV on an Intel GPU, or on the stand-in that this process was started with (docs/gpus.md).

    Raises:
        VulkanError: there is neither.
    """
    return _open("Intel(R)", {"MESA_SHADER_CACHE_DISABLE": "true"})


@contextmanager
def _open(part: str, environment: dict[str, str]) -> Iterator[PipelineCompiler]:
    """Open the adapter with this in its name; find and use it with these variables."""
    try:
        vulkan = _ffi.dlopen(_LIBRARY)
    except OSError as error:
        raise VulkanError("no Vulkan loader: apt-get install libvulkan1") from error
    application = _ffi.new("VkApplicationInfo *", {"sType": 0, "apiVersion": _VULKAN_1_3})
    info = _ffi.new("VkInstanceCreateInfo *", {"sType": 1, "application": application})
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environment))
        instance = PipelineCompiler._created(vulkan.vkCreateInstance, info, kind="void *")
        stack.callback(vulkan.vkDestroyInstance, instance, _ffi.NULL)
        count = _ffi.new("uint32_t *")
        vulkan.vkEnumeratePhysicalDevices(instance, count, _ffi.NULL)
        adapters = _ffi.new("void *[]", count[0])
        vulkan.vkEnumeratePhysicalDevices(instance, count, adapters)
        adapter = next((a for a in adapters if part in _name(vulkan, a)), None)
        if adapter is None:
            raise VulkanError(f"no adapter called {part} here: it takes the package mesa-vulkan-drivers")
        compiler = PipelineCompiler(vulkan, adapter)
        stack.callback(compiler.close)
        yield compiler


def _name(vulkan: Any, adapter: Any) -> str:
    properties = _ffi.new("VkPhysicalDeviceProperties2 *", {"sType": 1000059001})
    vulkan.vkGetPhysicalDeviceProperties2(adapter, properties)
    return _text(properties.name)


def _text(characters: Any) -> str:
    return _ffi.string(characters).decode(errors="replace")
