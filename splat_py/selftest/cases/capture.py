"""What training learns of a capture: exposures of photographs."""

from __future__ import annotations

import numpy as np

from splat_py.gpu.device import Device, Operator
from splat_py.selftest import inputs
from splat_py.selftest.cases.case import Arrays, Case
from splat_py.selftest.inputs import HEIGHT, WIDTH
from splat_py.splats.exposure import Exposures

# Three photographs, of which this one has its second turn, in the middle of a run.
PHOTOGRAPHS, PHOTOGRAPH, EPOCH, PROGRESS = 3, 1, 1, 0.5


def cases() -> list[Case]:
    """Forward, backward and Adam."""
    needs = (Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    return [Case("exposure", "exposure", _exposure, needs=needs)]


def exposure_state() -> Arrays:
    """Before the step."""
    shape = PHOTOGRAPHS, 12
    neutral = np.eye(3, 4, dtype=np.float32).reshape(1, 12)
    values, first, second = (inputs.uniform(97 + i, low, 0.2, *shape) for i, low in enumerate((-0.2, -0.2, 0.1)))
    return {"exposures": neutral + values, "exposures.m": first, "exposures.v": second}


def image(seed: int, low: float) -> inputs.Floats:
    """[1, H, W, 3]."""
    return inputs.uniform(seed, low, 1, 1, HEIGHT, WIDTH, 3)


def _exposure(device: Device, stored: Arrays) -> Arrays:
    exposures = Exposures(device, PHOTOGRAPHS, exposure_state())
    colors, v_colors = (device.memory.array(image(seed, low)) for seed, low in ((100, 0), (101, -1)))
    status = device.memory.array(np.zeros(3, np.uint32))
    recorder = device.record()
    shown = exposures.record(recorder, PHOTOGRAPH, colors)
    parts = exposures.record_backward(recorder, PHOTOGRAPH, colors, v_colors)
    exposures.record_update(recorder, PHOTOGRAPH, parts, status, EPOCH, PROGRESS)
    recorder.submit()
    return {"shown": shown.numpy()[0], "v_colors": v_colors.numpy()[0], **exposures.state()}
