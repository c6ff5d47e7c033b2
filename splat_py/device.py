"""Which GPU, through which backend, and why.

Metal on macOS first, then CUDA where torch has it, then Vulkan on hardware, then Vulkan in software. `--device` on the command
line and the environment variable SPLAT_DEVICE overrule that.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from functools import cache

import slangpy as spy
import torch

from splat_py.arrays import Bridge, Memory
from splat_py.compile_cache import compile_cache_folder
from splat_py.errors import SplatError
from splat_py.kernels import KernelCache, Recorder, shader_folder
from splat_py.profiling import Profile

BACKENDS = {
    "metal": spy.DeviceType.metal,
    "cuda": spy.DeviceType.cuda,
    "vulkan": spy.DeviceType.vulkan,
    "software": spy.DeviceType.vulkan,
}
# Slang warns of variables in derivatives that it makes itself.
spy.Logger.get().level = spy.LogLevel.error

_SOFTWARE_ADAPTERS = ("llvmpipe", "lavapipe", "swiftshader")


@dataclass(frozen=True)
class Tuning:
    """What differs between kinds of devices: link-time constants, measured, not guessed where a device was at hand."""

    # Side of a tile in pixels, and how many of its pixels a thread blends.
    tile_size: int
    pixels_per_thread: int
    # Radix sort: digit, threads and pairs a thread; a workgroup's counters are 4 · 2^digit · threads bytes, at most 32 KiB.
    sort_digit_bits: int
    sort_threads: int
    sort_items: int
    # Training steps sent ahead: while one runs, the host records the next. In software both would want the same cores.
    steps_ahead: int


_GPU_TUNING = Tuning(tile_size=16, pixels_per_thread=1, sort_digit_bits=4, sort_threads=256, sort_items=16, steps_ahead=2)
_SOFTWARE_TUNING = Tuning(tile_size=16, pixels_per_thread=8, sort_digit_bits=8, sort_threads=32, sort_items=256, steps_ahead=0)


@dataclass(frozen=True)
class Adapter:
    """One way to run: a backend and the adapter it would use."""

    # metal, cuda, vulkan or software: what `--device` takes.
    backend: str
    name: str
    luid: tuple[int, ...] = field(repr=False)


class Device:
    """An open device: its memory, its kernels, its tuning."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.software = adapter.backend == "software"
        self.tuning = _SOFTWARE_TUNING if self.software else _GPU_TUNING
        cache = compile_cache_folder(shader_folder())
        try:
            self.handle = spy.Device(
                type=BACKENDS[adapter.backend],
                adapter_luid=list(adapter.luid),
                enable_rhi_validation=False,
                enable_hot_reload=False,
                module_cache_path=cache and cache / "modules",
                shader_cache_path=cache and cache / "shaders",
                compiler_options=spy.SlangCompilerOptions({"include_paths": [spy.SHADER_PATH, str(shader_folder())]}),
                label="splat_py",
            )
        except RuntimeError as error:
            raise SplatError(
                f"cannot open {adapter.name} through {adapter.backend}: {_first_line(error)}; {_driver_advice()}"
            ) from error
        bridge = {"software": Bridge.ALIAS, "cuda": Bridge.CUDA}.get(adapter.backend, Bridge.COPY)
        self.memory = Memory(self.handle, bridge)
        self.kernels = KernelCache(self.handle)

    @property
    def native_float_atomics(self) -> bool:
        """Whether floats in device memory can be added to atomically without a compare-and-swap loop."""
        return self.adapter.backend == "metal" or self.handle.has_feature(spy.Feature.atomic_float)

    @property
    def wave_operations(self) -> bool:
        """Whether threads of a wave can exchange values. Metal has them and does not say so."""
        return self.adapter.backend == "metal" or self.handle.has_feature(spy.Feature.wave_ops)

    def record(self, profile: Profile | None = None) -> Recorder:
        """Begin a list of commands."""
        return Recorder(self.handle, self.kernels, profile)


@cache
def adapters() -> tuple[Adapter, ...]:
    """Every adapter of every backend, the one that is taken by default first."""
    found: list[Adapter] = []
    for backend in ("metal", "cuda", "vulkan"):
        if backend == "metal" and platform.system() != "Darwin":
            continue
        if backend == "cuda" and not torch.cuda.is_available():
            continue
        for info in spy.Device.enumerate_adapters(type=BACKENDS[backend]):
            software = backend == "vulkan" and info.name.lower().startswith(_SOFTWARE_ADAPTERS)
            found.append(Adapter("software" if software else backend, info.name, tuple(info.luid)))
    order = list(BACKENDS)
    return tuple(sorted(found, key=lambda adapter: order.index(adapter.backend)))


def choose(name: str | None = None) -> Adapter:
    """The adapter for `name`, or for SPLAT_DEVICE, or the best there is.

    Args:
        name: metal, cuda, vulkan, software, or one of these with an index behind a colon (`vulkan:1`).

    Raises:
        SplatError: there is no such device here.
    """
    asked = name or os.environ.get("SPLAT_DEVICE") or ""
    backend, _, index = asked.partition(":")
    if asked and (backend not in BACKENDS or not (index or "0").isdigit()):
        raise SplatError(f"device {asked!r} is not known; use one of {', '.join(BACKENDS)}, or for example vulkan:1")
    candidates = [adapter for adapter in adapters() if backend in ("", adapter.backend)]
    position = int(index or 0)
    if position >= len(candidates):
        wanted = f"no device {asked!r} here" if asked else "no device that can run compute shaders was found"
        others = ", ".join(sorted({adapter.backend for adapter in adapters()}))
        raise SplatError(f"{wanted}; {f'there is {others}' if others else _driver_advice()}")
    return candidates[position]


@cache
def _open(adapter: Adapter) -> Device:
    return Device(adapter)


def get_device(name: str | None = None) -> Device:
    """The device for `name` (see `choose`), opened once a process."""
    return _open(choose(name))


def device_for(tensor: torch.Tensor) -> Device:
    """The device that renders a torch tensor: CUDA for CUDA tensors, if SPLAT_DEVICE says nothing else; else the default."""
    if tensor.is_cuda and not os.environ.get("SPLAT_DEVICE"):
        return get_device(f"cuda:{tensor.device.index or 0}")
    return get_device()


def _driver_advice() -> str:
    if platform.system() == "Darwin":
        return "Metal needs macOS 15 or later and Xcode's metal compiler (xcodebuild -downloadComponent MetalToolchain)"
    return (
        "install a Vulkan driver, the software one if there is no GPU: packages libvulkan1 and mesa-vulkan-drivers, "
        "Mesa 23 or later (on Debian 12 from bookworm-backports)"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".!")
