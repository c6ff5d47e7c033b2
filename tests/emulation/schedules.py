"""The orders, widths and tunings in which kernels are run."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from splat_py.gpu.device import _GPU_TUNING, _SOFTWARE_TUNING, Operator
from tests.emulation.device import EmulatedDevice
from tests.emulation.program import Order, Schedule

SCHEDULES = [Schedule(32, Order.FORWARD), Schedule(32, Order.REVERSE), Schedule(32, Order.SHUFFLED, 1)]
# Widths of SIMD groups of llvmpipe, some mobile GPUs and AMD's.
OTHER_WIDTHS = [Schedule(width, Order.SHUFFLED, width) for width in (8, 16, 64)]
TUNINGS = {"GPU": _GPU_TUNING, "software": _SOFTWARE_TUNING}


def every_order(device: EmulatedDevice, check: Callable[[], object], schedules: list[Schedule] = SCHEDULES) -> None:
    for schedule in schedules:
        device.schedule = schedule
        check()


def named(test: Callable[..., None], *arguments: Any) -> Any:
    """A test from another folder with some of its arguments fixed, to run on an emulated device."""
    known = {id(tuning): name for name, tuning in TUNINGS.items()}
    parts = [known.get(id(a)) or getattr(a, "__name__", str(a)) for a in arguments]
    return pytest.param(partial(test, *arguments), id="-".join([test.__name__.removeprefix("test_"), *parts]))


def accumulate(device: EmulatedDevice, accumulation: str, native: bool = True) -> None:
    """Let the device add up gradients in this way, with or without float atomics."""
    device.tuning = replace(device.tuning, accumulation=accumulation)
    if not native:
        device.operators -= {Operator.FLOAT_ATOMICS}
