"""Compiling, specialising and dispatching the entry points of `slang/kernels`.

A kernel is specialised when it is linked: the values of its `extern` constants and types are the cache key, and what they
switch off is not in the binary. Everything else, buffers and the scalars of its uniform block, is bound by name when it is
dispatched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slangpy as spy

from splat_py.errors import DeviceLostError
from splat_py.gpu.arrays import Array, Memory
from splat_py.gpu.profiling import Profile

_EXTERN_CONSTANT = re.compile(r"^extern static const (\w+) (\w+)", re.MULTILINE)
_EXTERN_TYPE = re.compile(r"^extern struct (\w+) : (\w+)", re.MULTILINE)

# The modules that the types lie in which link-time interfaces take.
_TYPES_OF = {"IAccumulation": "parallel.gradient_accumulation", "IStopRule": "splat.splat2d"}
# As in parallel/threads.slang.
_THREADS = 64
_GROUPS_PER_ROW = 32768


def shader_folder() -> Path:
    """Where the Slang sources lie: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "slang"
    return installed if installed.is_dir() else package.parent / "slang"


def linear_groups(count: int) -> tuple[int, int, int]:
    """Workgroups for one thread an element (parallel/threads.slang)."""
    groups = -(-count // _THREADS)
    return min(groups, _GROUPS_PER_ROW), -(-groups // _GROUPS_PER_ROW), 1


def specialisation_source(module: str, constants: dict[str, Any]) -> str:
    """Slang source of the small module that gives a kernel module's `extern` names their values."""
    source = (shader_folder() / "kernels" / f"{module}.slang").read_text(encoding="utf-8")
    types = {name: kind for kind, name in _EXTERN_CONSTANT.findall(source)}
    interfaces = dict(_EXTERN_TYPE.findall(source))
    lines = [f"import {_TYPES_OF[interface]};" for name, interface in interfaces.items() if name in constants]
    for name, value in sorted(constants.items()):
        if name in interfaces:
            lines.append(f"export struct {name} : {interfaces[name]} = {value};")
        else:
            literal = str(value).lower() if isinstance(value, bool) else str(value)
            lines.append(f"export static const {types[name]} {name} = {literal};")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Kernel:
    """One specialised entry point, ready to be dispatched."""

    module: str
    entry: str
    pipeline: spy.ComputePipeline


class KernelCache:
    """The kernels of one device, each compiled when it is first asked for."""

    def __init__(self, device: spy.Device) -> None:
        self._device = device
        self._kernels: dict[tuple[Any, ...], Kernel] = {}

    def get(self, module: str, entry: str, **constants: Any) -> Kernel:
        """The entry point of `slang/kernels/<module>.slang`, its `extern` names set to `constants`."""
        key = (module, entry, *sorted(constants.items()))
        if key not in self._kernels:
            modules = [self._device.load_module(f"kernels/{module}")]
            if constants:
                source = specialisation_source(module, constants)
                name = "_".join(str(part) for item in sorted(constants.items()) for part in item)
                modules.append(self._device.load_module_from_source(f"{module}_{name}", source))
            program = self._device.link_program(modules, [modules[0].entry_point(entry)])
            self._kernels[key] = Kernel(module, entry, self._device.create_compute_pipeline(program))
        return self._kernels[key]


class Recorder:
    """Commands for the device in order; nothing runs before `submit`."""

    def __init__(self, device: spy.Device, kernels: KernelCache, memory: Memory, profile: Profile | None = None) -> None:
        self._device = device
        self._kernels = kernels
        self._memory = memory
        self._profile = profile
        self._encoder = device.create_command_encoder()
        # Arrays in use go back to their pool only after the recorder: what is recorded must not find them with other contents.
        self._arrays: list[Array] = []

    def dispatch(
        self,
        module: str,
        entry: str,
        groups: tuple[int, int, int],
        uniforms: Mapping[str, int | float | spy.uint2],
        buffers: dict[str, Array],
        **constants: Any,
    ) -> None:
        """Run an entry point over `groups` workgroups. An empty grid is no work."""
        if 0 in groups:
            return
        kernel = self._kernels.get(module, entry, **constants)
        self._arrays += buffers.values()
        with self._encoder.begin_compute_pass() as compute:
            cursor = spy.ShaderCursor(compute.bind_pipeline(kernel.pipeline))
            cursor["params"] = dict(uniforms)
            for name, array in buffers.items():
                cursor[name] = array.buffer
            compute.dispatch_compute(spy.uint3(*groups))

    def scratch(self, shape: tuple[int, ...]) -> Array:
        """A float32 array for nobody but what is recorded here."""
        array = self._memory.empty(shape)
        self._arrays.append(array)
        return array

    def copy(self, source: Array, target: Array, at: int) -> None:
        """Into `target`, from byte `at`."""
        self._arrays += [source, target]
        self._encoder.copy_buffer(target.buffer, at, source.buffer, 0, source.nbytes)

    def clear(self, array: Array) -> None:
        """Fill with zeros."""
        self._arrays.append(array)
        self._encoder.clear_buffer(array.buffer)

    def stage(self, name: str) -> None:
        """Everything from here to the next stage counts as `name` in a profile."""
        if self._profile is not None:
            self._profile.mark(self._encoder, name)

    def submit(self, wait: bool = True) -> int:
        """Send the commands off; returns the submission's number."""
        self.stage("")
        with translate_device_lost():
            submission = self._device.submit_command_buffer(self._encoder.finish())
            if wait:
                self._device.wait_for_submit(submission)
        return submission


@contextmanager
def translate_device_lost() -> Iterator[None]:
    """Say in a sentence what SlangPy says in a page when a device does not take or finish its work.

    Raises:
        DeviceLostError: a call to the driver failed. Other errors, of compilation for one, are left as they are.
    """
    try:
        yield
    except RuntimeError as error:
        if "failed with error" not in str(error):
            raise
        code = re.search(r"VK_ERROR_\w+", str(error))
        reason = code.group() if code else str(error).strip().split("\n")[0]
        raise DeviceLostError(
            f"the device stopped working ({reason}): its driver failed or gave up on work that took too long; "
            "close other programs that use it and try again"
        ) from error
