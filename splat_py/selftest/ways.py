"""Which devices `splat selftest` runs on: the default one, and where two ways lead to a Mac's GPU, both."""

from __future__ import annotations

import os

from splat_py.errors import SplatError
from splat_py.gpu import device as devices
from splat_py.gpu.torch_metal_support import why_no_metal_compiler, why_no_torch_metal

_METAL = ("metal", "mps")


def ways(device: str | None) -> tuple[list[str | None], dict[str, str]]:
    """Names of devices, and by name why others are not among them.

    Args:
        device: what --device names.

    Raises:
        NoDeviceError: there is none.
    """
    if device is not None or os.environ.get("SPLAT_DEVICE") or devices.choose().backend not in _METAL:
        return [device], {}
    reasons = {"metal": why_no_metal_compiler(), "mps": why_no_torch_metal()}
    found = {adapter.backend for adapter in devices.adapters()}
    names: list[str | None] = []
    skipped: dict[str, str] = {}
    for name in _METAL:
        if name in found and not reasons[name]:
            try:
                devices.get_device(name)
                names.append(name)
            except SplatError as error:
                skipped[name] = str(error)
        else:
            skipped[name] = reasons[name] or "there is no such device here"
    # As it would be without two of them: it says what is missing.
    return names or [None], skipped
