"""How gradients of a field add up: atomically, as on a GPU; by compare-and-swap, on one without float atomics; or without
atomics, in a replica for each of so many work queues, on CPU drivers.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import pytest

from splat_py.gpu.device import Operator, get_device
from splat_py.volume import marching

Sums: TypeAlias = int | Literal["float atomics", "compare-and-swap"]


def add_up(how: Sums, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device do so; skips the test where it cannot."""
    device = get_device()
    if isinstance(how, int) and not device.software:
        pytest.skip("gradients are added up without atomics only on CPU drivers")
    if how == "float atomics" and not device.native_float_atomics:
        pytest.skip("this device has no float atomics")
    if how == "compare-and-swap":
        monkeypatch.setattr(device, "operators", device.operators - {Operator.FLOAT_ATOMICS})
    monkeypatch.setattr(marching, "_persistent_groups", lambda device: how if isinstance(how, int) else 0)
