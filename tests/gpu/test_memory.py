"""Device memory: a failed allocation is one sentence, freed memory is reused, and forked processes are refused."""

import gc
import os
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import slangpy as spy
import torch

from splat_py.base.errors import SplatError
from splat_py.gpu import arrays
from splat_py.gpu.arrays import Bridge, Memory
from splat_py.gpu.device import get_device
from splat_py.gpu.sorting import PrefixSum
from tests.refusals import refused


@pytest.fixture
def tight_memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """The device's memory with 128 MiB left."""
    memory = get_device().memory
    monkeypatch.setattr(type(memory), "free_bytes", 128 << 20)
    return memory


def test_too_little_memory_is_said_in_one_sentence(tight_memory: Memory) -> None:
    before = tight_memory.live_bytes
    pattern = r"^too little memory: splat_py holds \d+ MiB on the device and cannot get 256 MiB more; use fewer Gaussians, .*$"
    refused(pattern, tight_memory.empty, 1 << 26)
    assert tight_memory.live_bytes == before


class Device:
    """A device that has 64 MiB, and fails as SlangPy does when they are used up."""

    info = SimpleNamespace(type=None, limits=SimpleNamespace(max_compute_dispatch_thread_groups=(1, 1, 1)))

    def __init__(self) -> None:
        self.buffers: weakref.WeakSet[Device.Buffer] = weakref.WeakSet()

    class Buffer:
        def __init__(self, size: int) -> None:
            self.size = size

    def create_buffer(self, size: int, **_: object) -> "Device.Buffer":
        if sum(buffer.size for buffer in self.buffers) + size > 64 << 20:
            raise RuntimeError("createBuffer failed with error: -2147024882 (SLANG_E_OUT_OF_MEMORY)")
        buffer = Device.Buffer(size)
        self.buffers.add(buffer)
        return buffer


def test_buffers_kept_for_reuse_make_way_for_others() -> None:
    memory = Memory(cast(spy.Device, Device()), Bridge.COPY)
    first = memory.empty(48 << 18)
    del first
    second = memory.empty(40 << 18)
    refused(r"^too little memory: splat_py holds 40 MiB on the device and cannot get 32 MiB more", memory.empty, 32 << 18)
    assert memory.live_bytes == second.nbytes


def test_no_kernel_keeps_buffers_that_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = get_device()
    values, sums = device.memory.arange(1000), PrefixSum(device, 1000)
    with device.recording() as recorder:
        sums.record(recorder, values)
    assert sums.total.numpy()[0] == 499_500
    bound = [kernel.pipeline for sessions in device.kernels._sessions.values() for _, of in sessions for kernel in of.values()]
    assert any(pipeline._values for pipeline in bound)
    monkeypatch.setattr(arrays, "MOST_FREE_BYTES", 0)
    del values, recorder
    gc.collect()
    assert not any(pipeline._values for pipeline in bound)


def test_a_tensor_keeps_its_memory() -> None:
    memory = get_device().memory
    tensor = memory.array(np.arange(50_000, dtype=np.float32)).tensor()
    gc.collect()
    memory.array(np.zeros(50_000, np.float32))
    assert torch.equal(tensor, torch.arange(50_000, dtype=torch.float32))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.mT, lambda t: t[::2, 1:], lambda t: t[:1].expand(4, -1)])
def test_any_view_of_a_tensor_is_copied_in_its_order(view: Callable[[torch.Tensor], torch.Tensor], own: bool) -> None:
    """A tensor that aliases device memory is copied after the recorded commands that write it."""
    values, memory = torch.arange(12.0).reshape(4, 3), get_device().memory
    array = memory.array(values)
    with get_device().recording() as recorder:
        written = array.tensor()
        if own:
            recorder.clear(array)
        copy = memory.array(view(written if own else values).detach().requires_grad_()).numpy()
    np.testing.assert_array_equal(copy, view(torch.zeros(4, 3) if own else values))


def test_bits_are_the_same_memory() -> None:
    memory = get_device().memory
    array = memory.array(np.array([1, -2], np.float32))
    bits = array.as_uint32
    before = memory.live_bytes
    assert bits.dtype == np.uint32 and bits.shape == array.shape
    np.testing.assert_array_equal(bits.numpy(), [0x3F800000, 0xC0000000])
    # The copies keep the buffer, and free it once.
    del array
    gc.collect()
    assert memory.live_bytes == before
    del bits
    gc.collect()
    assert memory.live_bytes < before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_to_be_spawned() -> None:
    device = get_device()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        for use in (get_device, device.record):
            try:
                use()
            except SplatError as error:
                os.write(writing, str(error).encode() + b"\n")
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        assert said.read().count("forked from one that had opened the device, and cannot use it; start processes with") == 2
    device.record().submit()
