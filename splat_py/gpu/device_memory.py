"""How much memory there is: a device's own, or the machine's where the two share it."""

from __future__ import annotations

import math

import psutil
import torch

from splat_py.gpu.arrays import Bridge
from splat_py.gpu.device import Device, cuda_index


def shares_host_memory(device: Device) -> bool:
    """Whether arrays of the device and of the host are in the same memory: in software, and on a Mac."""
    return device.memory.bridge is Bridge.ALIAS or device.adapter.backend in ("metal", "mps")


def free_bytes(device: Device) -> float:
    """Memory for arrays of the device that nobody takes yet; infinity where nobody says, as through Vulkan, or beside a torch
    without CUDA."""
    if shares_host_memory(device):
        return psutil.virtual_memory().available
    if device.adapter.backend == "cuda" and torch.cuda.is_available():
        return torch.cuda.mem_get_info(cuda_index(device.adapter))[0]
    return math.inf


def process_bytes() -> int:
    """What this process takes of the machine's."""
    return psutil.Process().memory_info().rss
