"""The choice of a GPU and its backend, and the open device.

By default, Metal on macOS comes first, through SlangPy if Apple's compiler works, else through torch; then CUDA if torch has
it; then Vulkan on hardware; then Vulkan in software. `--device` on the command line and the environment variable SPLAT_DEVICE
override this order.
"""

import math
import os
import platform
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from typing import cast

import psutil
import slangpy as spy
import torch

from splat_py.base.errors import NoDeviceError, SplatError
from splat_py.gpu import availability
from splat_py.gpu.arrays import Bridge, Memory
from splat_py.gpu.compile_cache import CompileCache
from splat_py.gpu.compiled_modules import cache_folder
from splat_py.gpu.kernels import KernelCache, Profile, Recorder
from splat_py.gpu.messages import translate_device_lost
from splat_py.gpu.sources import shader_folder
from splat_py.gpu.torch_metal import TensorMemory, TorchKernels, TorchQueue, TorchRecorder

_TYPES = {
    "metal": spy.DeviceType.metal,
    "mps": spy.DeviceType.metal,
    "cuda": spy.DeviceType.cuda,
    "vulkan": spy.DeviceType.vulkan,
    "software": spy.DeviceType.vulkan,
}
_SOFTWARE_ADAPTERS = ("llvmpipe", "lavapipe", "swiftshader")


class Operator(Enum):
    """Native abilities that a device may have."""

    SPLAT_FORWARD = "splat forward"
    SPLAT_BACKWARD = "splat backward"
    IMAGE = "image"
    VOLUME = "volume"
    FLOAT_ATOMICS = "float atomics"
    WAVES = "wave operations"


_FEATURES = {Operator.FLOAT_ATOMICS: spy.Feature.atomic_float, Operator.WAVES: spy.Feature.wave_ops}


def native_operators(backend: str, reported: Collection[spy.Feature]) -> frozenset[Operator]:
    """The operators that a backend's device supports natively, from the features that SlangPy reports for it.

    Kernels need waves; without float atomics they use compare-and-swap. Metal has both and reports neither.
    """
    is_metal = backend in ("metal", "mps")
    own = frozenset(operator for operator, feature in _FEATURES.items() if is_metal or feature in reported)
    return own | (set(Operator) - _FEATURES.keys() if Operator.WAVES in own else set())


@dataclass(frozen=True)
class Tuning:
    """Link-time constants that differ between kinds of devices: measured in software, predicted for GPUs."""

    # Side of a tile in pixels, and how many of its pixels a thread blends.
    tile_size: int = 16
    pixels_per_thread: int = 2
    # Radix sort: most workgroups, their threads, a thread's pairs in a tile, and bits to sort a tile by at once. The workgroup
    # shares 4 · threads · (2^bits + 2 · pairs) + 1024 bytes, at most 32 KiB. Odd numbers of pairs spread over memory banks.
    sort_blocks: int = 128
    sort_threads: int = 256
    sort_items: int = 7
    sort_tile_bits: int = 4
    # The most elements that one workgroup sorts or sums alone, in one dispatch.
    alone: int = 4096
    # Threads of the loss's workgroups, each of which shares 210 bytes; 0 to sweep through buffers (kernels/loss_sweeps.slang).
    loss_threads: int = 128
    # The way gradients add up: PerPixel, PerWave, PerGroup or PerIntersection (parallel/gradient_accumulation.slang).
    accumulation: str = "PerWave"
    # True for drivers on CPUs: a wave's lanes read a splat from the lane that tested it, where GPUs load it again, and rows are
    # read by 64-bit addresses (parallel/cpu_driver.slang).
    cpu_driver: bool = False
    # Splats of a tile that one dispatch blends, a multiple of 64; None if a workgroup may run for any time.
    segment: int | None = None
    # Training steps sent ahead: while one runs, the host records the next. In software both would need the same cores.
    steps_ahead: int = 2


# Chosen from the predictions in docs/gpus.md, which also says what would refute them.
_GPU_TUNING = Tuning()
# macOS stops a workgroup after about two seconds.
_METAL_TUNING = replace(_GPU_TUNING, segment=1 << 14)
# Mostly AMD's GPUs: in waves of 64, two pixels per thread make a wave's block of pixels too large (docs/gpus.md). Vulkan
# promises 16 KiB of group-shared memory.
_VULKAN_TUNING = replace(_GPU_TUNING, pixels_per_thread=1, sort_threads=128, loss_threads=64)
_SOFTWARE_TUNING = Tuning(
    pixels_per_thread=8,
    sort_blocks=8,
    sort_threads=8,
    sort_items=512,
    sort_tile_bits=8,
    alone=1 << 15,
    loss_threads=0,
    cpu_driver=True,
    steps_ahead=0,
)
_TUNINGS = {"metal": _METAL_TUNING, "mps": _METAL_TUNING, "vulkan": _VULKAN_TUNING, "software": _SOFTWARE_TUNING}


def tuning_of(backend: str) -> Tuning:
    """The tuning of a backend's devices."""
    return _TUNINGS.get(backend, _GPU_TUNING)


@dataclass(frozen=True)
class Adapter:
    """A backend and the adapter that it would use."""

    # metal, mps, cuda, vulkan or software, as for `--device`.
    backend: str
    name: str
    luid: tuple[int, ...] = field(repr=False)


class _Open(threading.local):
    """The recorder of a thread's open `Device.recording`."""

    recorder: Recorder | None = None


class Device:
    """An open device: its memory, its kernels, its tuning.

    Args:
        handle: SlangPy's device, or a stand-in.
        features: the features that SlangPy reports.
        recorder: the class that `record` creates.
    """

    def __init__(
        self,
        adapter: Adapter,
        handle: spy.Device,
        memory: Memory,
        kernels: KernelCache,
        features: Collection[spy.Feature] = (),
        recorder: type[Recorder] = Recorder,
    ) -> None:
        self.adapter = adapter
        self.handle = handle
        self.memory = memory
        self.kernels = kernels
        # The profile of recordings without their own.
        self.profile: Profile | None = None
        self.software = adapter.backend == "software"
        self.tuning = tuning_of(adapter.backend)
        self.operators = native_operators(adapter.backend, features)
        self._recorder = recorder
        self._open = _Open()
        self._process = os.getpid()
        memory.flush = self.flush

    @property
    def native_float_atomics(self) -> bool:
        """True if floats in device memory can be added to atomically without a compare-and-swap loop."""
        return Operator.FLOAT_ATOMICS in self.operators

    def shortcoming(self, *operators: Operator) -> str | None:
        """Name the operators that the device does not support natively, as a clause; None if it supports all."""
        missing = ", ".join(operator.value for operator in operators if operator not in self.operators)
        return f"{self.adapter.name} does not support {missing} through {self.adapter.backend}" if missing else None

    def require(self, *operators: Operator) -> None:
        """Raise SplatError if the device does not support all of these natively."""
        shortcoming = self.shortcoming(*operators)
        if shortcoming:
            raise SplatError(f"{shortcoming}; choose another device, see `splat devices`")

    def require_process(self) -> None:
        """Raise SplatError in a process that was forked from the one that opened the device: drivers hang there, or worse."""
        if os.getpid() != self._process:
            raise SplatError(
                "this process was forked from one that had opened the device, and cannot use it; start processes with "
                "multiprocessing's method 'spawn'"
            )

    def record(self, profile: Profile | None = None) -> Recorder:
        """Begin a list of commands."""
        self.require_process()
        return self._recorder(self.handle, self.kernels, self.memory, profile or self.profile)

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Record commands, and submit them at the end; inside another `recording` of this thread, at the end of that one. Torch
        may compute with their results only after that, or after `flush`; `Array.numpy` flushes."""
        if self._open.recorder is not None:
            yield self._open.recorder
            return
        self._open.recorder = self.record()
        try:
            yield self._open.recorder
        finally:
            recorder, self._open.recorder = self._open.recorder, None
            # After errors, too: torch's checkpoints leave a forward pass by one as soon as they have what they need of it.
            if not recorder.is_empty:
                recorder.submit()

    def flush(self) -> None:
        """Submit the commands of an open `recording`, and wait for their results. The next `recording` begins a new list."""
        recorder = self._open.recorder
        if recorder is not None and not recorder.is_empty:
            self._open.recorder = self.record()
            recorder.submit()

    @contextmanager
    def profiled(self) -> Iterator[Profile]:
        """Measure the stages of everything recorded in this context: `profile.collect()` returns the seconds of each."""
        before, self.profile = self.profile, Profile(self.handle)
        try:
            yield self.profile
        finally:
            self.profile = before

    def wait(self, submission: int) -> None:
        """Wait until the commands of a `Recorder.submit` have run. DeviceLostError if the device stopped working."""
        with translate_device_lost():
            self.handle.wait_for_submit(submission)


@cache
def adapters() -> tuple[Adapter, ...]:
    """Every adapter of every backend, the default first."""
    found: list[Adapter] = []
    exists = {"metal": platform.system() == "Darwin", "cuda": torch.cuda.is_available(), "vulkan": True}
    for backend in filter(exists.get, exists):
        for info in spy.Device.enumerate_adapters(type=_TYPES[backend]):
            software = backend == "vulkan" and info.name.lower().startswith(_SOFTWARE_ADAPTERS)
            found.append(Adapter("software" if software else backend, info.name, tuple(info.luid)))
    if not availability.why_no_torch_metal():
        found.append(Adapter("mps", getattr(torch.backends.mps, "get_name", lambda: "Apple GPU")(), ()))
    order = preference()
    return tuple(sorted(found, key=lambda adapter: order.index(adapter.backend)))


def preference() -> list[str]:
    """The backends in order of preference."""
    backends = list(availability.BACKENDS)
    if platform.system() == "Darwin" and availability.why_no_metal_compiler():
        # SlangPy's Metal opens, but cannot compile.
        backends.append(backends.pop(0))
    return backends


def choose(name: str | None = None) -> Adapter:
    """Return the adapter for `name`, or for SPLAT_DEVICE, or the default; NoDeviceError if this machine has no such device.

    A name is metal, mps, cuda, vulkan, software, or one of these with an index after a colon (`vulkan:1`); SplatError if it is
    unknown."""
    backend, position = availability.parse_device(name)
    candidates = [adapter for adapter in adapters() if backend in ("", adapter.backend)]
    if position >= len(candidates):
        asked = name or os.environ.get("SPLAT_DEVICE")
        others = ", ".join(sorted({adapter.backend for adapter in adapters()}))
        wanted = f"no device {asked!r} here" if asked else "no device that can run compute shaders was found"
        raise NoDeviceError(f"{wanted}; available: {others}" if others else f"{wanted}: {availability.why_no_device()}")
    return candidates[position]


@cache
def _open(adapter: Adapter) -> Device | NoDeviceError:
    try:
        return open_device(adapter)
    except NoDeviceError as error:
        return error


def open_device(adapter: Adapter) -> Device:
    """Open an adapter's device anew; NoDeviceError if its driver is too old or broken."""
    if adapter.backend == "mps":
        place = torch.device(availability.TORCH_DEVICE)
        return Device(adapter, cast(spy.Device, TorchQueue()), TensorMemory(place), TorchKernels(place), recorder=TorchRecorder)
    cache = CompileCache(cache_folder())
    shared = _torch_context(adapter) if adapter.backend == "cuda" else None
    try:
        handle = spy.Device(
            type=_TYPES[adapter.backend],
            adapter_luid=None if shared else list(adapter.luid),
            existing_device_handles=shared,
            enable_rhi_validation=False,
            enable_hot_reload=False,
            shader_cache_path=cache.folder,
            compiler_options=compiler_options(adapter.backend),
            label="splat_py",
        )
    except RuntimeError as error:
        raise NoDeviceError(availability.why_not_opened(adapter.backend, adapter.name, error)) from error
    if adapter.backend == "software":
        _let_threads_sleep()
    kernels = KernelCache(handle, unrolled=adapter.backend != "software")
    kernels.observers.append(lambda _: cache.kernel_is_due())
    memory = Memory(handle, {"software": Bridge.ALIAS, "cuda": Bridge.CUDA}.get(adapter.backend, Bridge.COPY))
    memory.forget_buffers = kernels.forget_buffers
    return Device(adapter, handle, memory, kernels, handle.features)


def _let_threads_sleep() -> None:
    """Give torch one thread more than there are cores, unless the user has chosen a number. After an operation, torch's OpenMP
    threads spin on the cores that the driver's threads need, but hardly do so if they are more than these: 40 steps of 2,000
    Gaussians at 128×128 pixels and a small network take 0.7 to 1.1 s instead of 4.5 to 9.6 s on two busy cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1
    chosen = any(name in os.environ for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS"))
    if not chosen and torch.get_num_threads() in (cores, psutil.cpu_count(logical=False)):
        torch.set_num_threads(cores + 1)


def compiler_options(backend: str) -> spy.SlangCompilerOptions:
    """The compiler's options in every session of a device."""
    return spy.SlangCompilerOptions(
        {
            "include_paths": [spy.SHADER_PATH, str(shader_folder())],
            # About arrays sized by link-time constants, and about variables in derivatives that Slang generates.
            "disable_warnings": ["31000", "41035"],
            # Mesa optimises anyway: kernels are as fast, and compile sooner.
            "optimization": getattr(spy.SlangOptimizationLevel, "none" if backend == "software" else "default"),
        }
    )


def get_device(name: str | Device | None = None) -> Device:
    """Return the device for `name` (see `choose`), opened once per process. A `Device` is returned unchanged, so functions
    accept devices and their names alike.

    Raises:
        NoDeviceError: this machine has no such device, or its driver is too old or broken.
        SplatError: the name is unknown.
    """
    if isinstance(name, Device):
        return name
    if not isinstance(name, str | None):
        raise SplatError(f"device is a {type(name).__name__}; give the name of a device, or what splat_py.get_device returns")
    device = _open(choose(name))
    if isinstance(device, NoDeviceError):
        raise NoDeviceError(str(device)) from device.__cause__
    device.require_process()
    return device


def slang_device() -> Device:
    """The device that compiles and calls Slang functions: the default one, or SlangPy's Metal if torch dispatches the kernels,
    which has no compiler session. SlangPy's Metal compiles these functions without Xcode, but calls them only with it."""
    device = get_device()
    return get_device("metal") if device.adapter.backend == "mps" else device


def cuda_index(adapter: Adapter) -> int:
    """Torch's index of a CUDA device."""
    return [other for other in adapters() if other.backend == "cuda"].index(adapter)


def _torch_context(adapter: Adapter) -> list[spy.NativeHandle]:
    """torch's CUDA context on an adapter: tensors can be shared only within one context."""
    torch.cuda.init()
    with torch.cuda.device(cuda_index(adapter)):
        torch.cuda.current_stream()
        return list(spy.get_cuda_current_context_native_handles())


def device_for(tensor: torch.Tensor, device: str | Device | None = None) -> Device:
    """The device that renders a torch tensor: `device` if given; without SPLAT_DEVICE, CUDA for CUDA tensors and torch's Metal
    for MPS tensors, which need no copy there; else the default."""
    if device is None and not os.environ.get("SPLAT_DEVICE"):
        if tensor.is_cuda:
            return get_device(f"cuda:{tensor.device.index or 0}")
        if tensor.device.type == availability.TORCH_DEVICE and any(a.backend == "mps" for a in adapters()):
            return get_device("mps")
    return get_device(device)


def shares_host_memory(device: Device) -> bool:
    """True if device and host share their memory: in software, and on a Mac."""
    return device.memory.bridge is Bridge.ALIAS or device.adapter.backend in ("metal", "mps")


def free_bytes(device: Device) -> float:
    """Free device memory in bytes; infinity if the backend does not report it (Vulkan, or CUDA if torch lacks CUDA)."""
    if shares_host_memory(device):
        return psutil.virtual_memory().available
    if device.adapter.backend == "cuda" and torch.cuda.is_available():
        return torch.cuda.mem_get_info(cuda_index(device.adapter))[0]
    return math.inf


def process_bytes() -> int:
    """Host memory of this process in bytes."""
    return psutil.Process().memory_info().rss


def persistent_groups() -> int:
    """Workgroups that share work on CPU drivers (slang/kernels/cpu/volume.slang): one per core, at most 8."""
    return min(psutil.cpu_count() or 1, 8)
