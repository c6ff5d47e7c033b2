"""What training learns of a capture: exposures and cameras of photographs, and an environment; and backgrounds of its steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from splat_py.gpu.device import Device, Operator
from splat_py.selftest import inputs
from splat_py.selftest.cases.case import Arrays, Case
from splat_py.selftest.inputs import HEIGHT, WIDTH
from splat_py.splats.camera_refinement import CameraRefinement
from splat_py.splats.data import Cameras
from splat_py.splats.environment import LearntEnvironment
from splat_py.splats.exposure import Exposures
from splat_py.splats.loss import pack
from splat_py.splats.random_background import record_composition
from splat_py.splats.rasterize import Image

# Three photographs, of which this one has its second turn, in the middle of a run.
PHOTOGRAPHS, PHOTOGRAPH, EPOCH, STEP, PROGRESS = 3, 1, 1, 4, 0.5
BACKGROUND = (0.25, 0.5, 0.875)


def cases() -> list[Case]:
    """Forward, backward and Adam."""
    needs = (Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    runs = {"exposure": _exposure, "cameras": _cameras, "environment": _environment, "background": _background}
    return [Case(f"learnt {name}", name, run, needs=needs) for name, run in runs.items()]


def exposure_state() -> Arrays:
    """Before the step."""
    shape = PHOTOGRAPHS, 12
    neutral = np.eye(3, 4, dtype=np.float32).reshape(1, 12)
    values, first, second = (inputs.uniform(97 + i, low, 0.2, *shape) for i, low in enumerate((-0.2, -0.2, 0.1)))
    return {"exposures": neutral + values, "exposures.m": first, "exposures.v": second}


def state_of(name: str, seed: int, *shape: int) -> Arrays:
    """A learnt array before the step, with its moments."""
    values, first, second = (inputs.uniform(seed + i, low, 0.2, *shape) for i, low in enumerate((-0.2, -0.2, 0.1)))
    return {name: values, f"{name}.m": first, f"{name}.v": second}


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


def camera_state() -> Arrays:
    """Of poses and intrinsics, before the step."""
    return state_of("poses", 102, PHOTOGRAPHS, 6) | state_of("intrinsics", 105, 7)


def _cameras(device: Device, stored: Arrays) -> Arrays:
    array, camera = device.memory.array, inputs.camera()
    viewmat, K = (array(matrix[None].astype(np.float32)) for matrix in (camera.viewmat, camera.K))
    lens = array(inputs.uniform(108, -0.1, 0.1, 1, 12))
    refinement = CameraRefinement(device, PHOTOGRAPHS, 2.0, camera_state())
    v_cameras = array(inputs.uniform(109, -1, 1, 1, 28)), array(inputs.uniform(110, -1, 1, 1, 16))
    cameras, status = Cameras(viewmat, K, WIDTH, HEIGHT, lenses=lens), array(np.zeros(3, np.uint32))
    recorder = device.record()
    refined = refinement.record(recorder, PHOTOGRAPH, cameras)
    refinement.record_update(recorder, PHOTOGRAPH, cameras, v_cameras, status, epoch=EPOCH, step=STEP, progress=PROGRESS)
    recorder.submit()
    assert refined.lenses is not None
    return {
        "viewmat": refined.viewmats.numpy()[0, :3],
        "K": refined.Ks.numpy()[0],
        "lens": refined.lenses.numpy()[0],
        **refinement.state(),
    }


def _environment(device: Device, stored: Arrays) -> Arrays:
    array, camera = device.memory.array, inputs.camera()
    viewmat, K = (array(matrix[None].astype(np.float32)) for matrix in (camera.viewmat, camera.K))
    rendered = replace(Image.empty(device, 1, HEIGHT, WIDTH, 3), colors=array(image(100, 0)), final_T=array(transmittance()))
    environment = LearntEnvironment(device, state_of("environment", 111, 16, 3))
    cameras, status = Cameras(viewmat, K, WIDTH, HEIGHT), array(np.zeros(3, np.uint32))
    v_alphas = device.memory.empty((1, HEIGHT, WIDTH, 1))
    recorder = device.record()
    shown = environment.record(recorder, cameras, rendered)
    parts = environment.record_backward(recorder, cameras, rendered, array(image(101, -1)), v_alphas)
    environment.record_update(recorder, parts, status, STEP, PROGRESS)
    recorder.submit()
    return {"shown": shown.numpy()[0], "v_alphas": v_alphas.numpy()[0], **environment.state()}


def transmittance() -> inputs.Floats:
    """[1, H, W]."""
    return inputs.uniform(114, 0, 1, 1, HEIGHT, WIDTH)


def over(shade: int) -> inputs.Floats:
    """A photograph [H, W, 4] over black or white, as whole numbers: transparent pixels show a part of what is behind them."""
    opaque = inputs.photograph().astype(np.float32)
    opaque[..., :3] = opaque[..., :3] // 2 + shade * (inputs.bits(115, HEIGHT, WIDTH, 1) % np.uint32(128))
    return opaque


def _background(device: Device, stored: Arrays) -> Arrays:
    black, white = (device.memory.array(pack(over(shade).astype(np.uint8))) for shade in (0, 1))
    composed = device.memory.empty(black.shape, np.uint32)
    recorder = device.record()
    record_composition(recorder, BACKGROUND, black, white, composed)
    recorder.submit()
    return {"photograph": composed.numpy().view(np.uint8).reshape(HEIGHT, WIDTH, 4)}
