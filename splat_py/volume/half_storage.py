"""Features of fields in device memory: floats, or halves two in a word (slang/parallel/half_storage.slang)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.splats.tensors import words_of


def stored(device: Device, features: Tensor) -> Array:
    """Features [..., F] on the device: float32 as they are, float16 as words [..., F / 2], for an even F."""
    if features.dtype == torch.float16:
        return device.memory.array(words_of(features).reshape(*features.shape[:-1], -1)).bits
    return device.memory.array(features)


def halves_of(features: Array) -> dict[str, bool]:
    """The constant of kernels that read these."""
    return {"HALVES": True} if features.dtype == np.uint32 else {}


def features_of(name: str, features: Array) -> dict[str, Array | None]:
    """What such kernels are bound to."""
    return {name: None, f"{name}Halves": features} if halves_of(features) else {name: features, f"{name}Halves": None}
