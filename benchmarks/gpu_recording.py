"""The kernels that a training step, a volume's and a picture's dispatch on a GPU: the library's host code records them for a
device that does not exist.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import numpy as np
import slangpy as spy

from benchmarks.gpu_model import ACCUMULATIONS, AUTODIFF_BLOBS, PIXELS, SORTS
from splat_py import Dataset, load_dataset
from splat_py.demo.scene import write_demo_scene
from splat_py.gpu.arrays import Array, Bridge, Memory
from splat_py.gpu.bindings import Uniform
from splat_py.gpu.device import _GPU_TUNING, Adapter, Device, Tuning, native_operators
from splat_py.gpu.kernels import Kernel, Profile, Recorder
from splat_py.image.fitting import ImageFitter, blobs_anywhere
from splat_py.image.rasterizers import FLOATS, rasterizer_for
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer
from splat_py.volume.config import VolumeConfig
from splat_py.volume.device_field import Box, March, RayImage, Rays
from splat_py.volume.grid import GridOptimiser
from tests.emulation.device import DeclaredKernels, specialisation_of
from tests.emulation.kernels import Specialisation

# Any length that cuts some tiles of the demo scene into segments: linking only asks whether there are segments.
_SEGMENT = 64


class Dispatch(NamedTuple):
    """A kernel that would run, its stage, and its number of workgroups."""

    kernel: Specialisation
    stage: str
    groups: tuple[int, int, int]


class RecordingDevice(Device):
    """A device that remembers what is submitted and runs nothing: memory stays as the host wrote it, or zero."""

    def __init__(self, tuning: Tuning = _GPU_TUNING) -> None:
        nothing = cast(spy.Device, SimpleNamespace(wait_for_idle=lambda: None, wait_for_submit=lambda submission: None))
        adapter, memory = Adapter("cuda", "a device that only records", ()), _HostMemory(cast(spy.Device, None), Bridge.COPY)
        super().__init__(adapter, nothing, memory, DeclaredKernels())
        self.tuning = tuning
        self.operators = native_operators("metal", [])
        self.dispatches: list[Dispatch] = []

    def require_process(self) -> None:
        """Accept any process."""

    def record(self, profile: Profile | None = None) -> Recorder:
        """Begin a list of commands."""
        return _Recorder(self)

    def wait(self, submission: int) -> None:
        """Return at once: nothing runs."""


class _Recorder(Recorder):
    def __init__(self, device: RecordingDevice) -> None:
        self._device_recorded = device
        self._kernels = device.kernels
        self._memory = device.memory
        self._arrays: list[Array] = []
        self._stage = ""

    def _record(
        self, kernel: Kernel, groups: tuple[int, int, int], uniforms: Mapping[str, Uniform], buffers: dict[str, Array]
    ) -> None:
        self._device_recorded.dispatches.append(Dispatch(specialisation_of(kernel), self._stage, groups))

    def copy(self, source: Array, target: Array, at: int) -> None:
        """Do nothing."""

    def clear(self, array: Array) -> None:
        """Do nothing."""

    def stage(self, name: str) -> None:
        """Name the stage of the next dispatches."""
        self._stage = name

    def submit(self, wait: bool = True) -> int:
        """Do nothing."""
        return 0


class _HostMemory(Memory):
    def take(self, nbytes: int) -> spy.Buffer:
        return cast(spy.Buffer, _HostBuffer(nbytes))

    def give_back(self, buffer: spy.Buffer) -> None:
        """Do nothing: Python frees it."""


class _HostBuffer:
    def __init__(self, size: int) -> None:
        self.size, self.device_address = size, 0
        self._bytes = np.zeros(size, np.uint8)

    def to_numpy(self) -> np.ndarray:
        return self._bytes.copy()

    def copy_from_numpy(self, values: np.ndarray) -> None:
        given = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._bytes[: given.size] = given


@cache
def _demo() -> Dataset:
    with tempfile.TemporaryDirectory() as folder:
        dataset = load_dataset(write_demo_scene(Path(folder) / "demo", views=2, size=32))
        dataset.image(0), dataset.image(1)
    return dataset


def training_step(tuning: Tuning = _GPU_TUNING) -> list[Dispatch]:
    """A step of `Trainer` with spherical harmonics of degree 3, on any photographs."""
    device = RecordingDevice(tuning)
    # Several workgroups sort this many Gaussians, which may need a second segment.
    config = TrainConfig(steps=10, sh_interval=1, init="random", init_num_pts=10_000)
    trainer = Trainer(_demo(), config, device=device)
    if tuning.segment is not None:
        trainer._gradients.segments = 2
    for _ in range(config.sh_degree):
        trainer.advance()
    device.dispatches.clear()
    trainer.advance()
    return device.dispatches


def volume_step(sh_degree: int) -> list[Dispatch]:
    """A step of `volume.fit` with voxels, and the passes that torch drives."""
    device = RecordingDevice()
    empty = device.memory.empty
    rays, image = Rays(empty((8, 3)), empty((8, 3))), RayImage(empty((8, 3)), empty(8), empty(8))
    box = Box.of([[0, 0, 0], [1, 1, 1]])
    optimiser = GridOptimiser(device, VolumeConfig(sh_degree=sh_degree, resolutions=(4,)), box, None, 0, "grid")
    volume, march = optimiser.volume, March(box, 4.0, jitter=True, skip_empty=True)
    device.dispatches.clear()
    recorder, gradients = device.record(), volume.empty_gradients()
    optimiser.record_occupancy(recorder, march, 0)
    volume.record_forward(recorder, march, rays, empty(3), image)
    volume.record_backward(recorder, march, rays, empty(3), image, image, gradients, v_rays=None)
    step = {"photographs": empty((8, 4)), "scale": 1.0, "errors": empty(1), "slot": 0}
    volume.record_training(recorder, march, rays, empty(3), image, image, gradients, **step)
    optimiser.record(recorder, 0)
    return device.dispatches


def image_step() -> list[Dispatch]:
    """A step of `image.fit`, in both ways to make lists."""
    found = []
    for blobs, side in ((64, 32), (4096, 256)):
        device = RecordingDevice()
        picture = np.zeros((side, side, 3), np.float32)
        fitter = ImageFitter(picture, blobs_anywhere(picture, blobs, np.random.default_rng(0)), 100, device=device)
        device.dispatches.clear()
        fitter.advance()
        found += device.dispatches
    return found


def autodiff(blobs: int) -> list[Dispatch]:
    """The derivative of so many blobs by Slang's own differentiation of the loop."""
    device = RecordingDevice()
    empty, rasterizer = device.memory.empty, rasterizer_for(device, blobs, 32, 32, "autodiff")
    rasterizer.record_gradients(device.record(), empty((FLOATS, blobs)), empty((32, 32, 3)), empty((FLOATS, blobs)))
    return device.dispatches


@cache
def kernels() -> dict[str, tuple[str, ...]]:
    """Every kernel under consideration, as specialisation in words → the tunings that use it."""
    return {name: tuple(used) for name, (_, used) in _found().items()}


def specialisations() -> dict[str, Specialisation]:
    """The same kernels, to compile."""
    return {name: kernel for name, (kernel, _) in _found().items()}


@cache
def _found() -> dict[str, tuple[Specialisation, list[str]]]:
    found: dict[str, tuple[Specialisation, list[str]]] = {}

    def add(use: str, dispatches: list[Dispatch]) -> None:
        for dispatch in dispatches:
            uses = found.setdefault(str(dispatch.kernel), (dispatch.kernel, []))[1]
            if use not in uses:
                uses.append(use)

    add("training step", training_step())
    for pixels, accumulation in product(PIXELS, ACCUMULATIONS):
        tuning = replace(_GPU_TUNING, pixels_per_thread=pixels, accumulation=accumulation)
        add(f"{pixels} pixels a thread, {accumulation}", training_step(tuning))
    add("in segments", training_step(replace(_GPU_TUNING, segment=_SEGMENT)))
    for threads in SORTS:
        add(f"sorts of {threads} threads", training_step(replace(_GPU_TUNING, sort_threads=threads)))
    for degree in range(3):
        add(f"volume of degree {degree}", volume_step(degree))
    add("picture", image_step())
    for blobs in AUTODIFF_BLOBS:
        add(f"picture by autodiff, {blobs} blobs", autodiff(blobs))
    return found
