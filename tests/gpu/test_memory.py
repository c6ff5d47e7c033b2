"""Device memory: what is asked for in vain is said in one sentence, and what is given back is used again."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from splat_py.errors import SplatError
from splat_py.gpu.device import get_device


def test_too_little_memory_is_said_in_one_sentence() -> None:
    with pytest.raises(SplatError, match=r"^too little memory: .* use fewer Gaussians"):
        get_device().memory.empty(10**13)


def test_a_refusal_leaves_the_count_of_live_bytes_alone() -> None:
    memory = get_device().memory
    before = memory.live_bytes
    with pytest.raises(SplatError):
        memory.empty(10**13)
    assert memory.live_bytes == before


def test_buffers_go_back_to_the_pool() -> None:
    memory = get_device().memory
    gc.collect()
    before = memory.live_bytes
    array = memory.empty((1000, 3))
    assert memory.live_bytes > before
    del array
    gc.collect()
    assert memory.live_bytes == before


def test_a_tensor_keeps_its_memory() -> None:
    memory = get_device().memory
    tensor = memory.array(np.arange(50_000, dtype=np.float32)).tensor()
    gc.collect()
    memory.array(np.zeros(50_000, np.float32))
    assert torch.equal(tensor, torch.arange(50_000, dtype=torch.float32))


def test_bits_are_the_same_memory() -> None:
    memory = get_device().memory
    array = memory.array(np.array([1, -2], np.float32))
    bits = array.bits
    before = memory.live_bytes
    assert bits.dtype == np.uint32 and bits.shape == array.shape
    np.testing.assert_array_equal(bits.numpy(), [0x3F800000, 0xC0000000])
    # They keep it, and give it back once.
    del array
    gc.collect()
    assert memory.live_bytes == before
    del bits
    gc.collect()
    assert memory.live_bytes < before
