"""Radiance fields: forward and backward, and a step of fitting one."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from splat_py import volume
from splat_py.gpu.device import Device, Operator
from splat_py.selftest import inputs
from splat_py.selftest.cases.case import Arrays, Case, gradients_of, leaves_of, to_numpy
from splat_py.volume.checkpoint import VolumeCheckpoint
from splat_py.volume.config import VolumeConfig
from splat_py.volume.fitting import VolumeTrainer
from splat_py.volume.hash_volume import HashShape
from splat_py.volume.marching import row_floats
from splat_py.volume.views import Views

CONFIG = VolumeConfig((max(inputs.VOLUME_SIZE),), sh_degree=0, total_variation=0.01)
# Coefficients, and whether samples jitter.
RENDERS = ((1, False), (4, True), (9, False))

# Dense levels and hashed ones, as many as a fit's.
HASH_SHAPE = HashShape((2, 2, 3, 4, 4, 5, 6, 7), 32)


def cases() -> list[Case]:
    """Every number of coefficients, and a step."""
    needs = (Operator.VOLUME,)
    found = []
    for k, jitter in RENDERS:
        name = f"volume, {k} coefficients{', jitter' if jitter else ''}"
        found.append(Case(name, f"volume {k} {jitter}", partial(_render, k, jitter), needs=needs))
    found.append(Case("volume, hash grid", "volume hash", _render_hash, needs=needs))
    return [*found, Case("volume, fitting step", "volume step", _fitting_step, needs=needs)]


def _render(coefficients: int, jitter: bool, device: Device, stored: Arrays) -> Arrays:
    f = inputs.field(coefficients)
    density, sh, background = leaves = leaves_of(f.density, f.sh, f.background)
    results = volume.render(
        density,
        sh,
        torch.from_numpy(f.origins),
        torch.from_numpy(f.directions),
        inputs.VOLUME_BOX,
        background=background,
        steps_per_unit=inputs.STEPS_PER_UNIT,
        jitter=jitter,
        seed=inputs.JITTER_SEED,
        device=device,
    )
    names = ("colors", "transmittances", "depths")
    v_results = [inputs.v(56 + i, stored[name]) for i, name in enumerate(names)]
    gradients = gradients_of(list(results), v_results, leaves)
    outputs = dict(zip(names, results, strict=True))
    return to_numpy(outputs | dict(zip(("v_density", "v_sh", "v_background"), gradients, strict=True)))


def _render_hash(device: Device, stored: Arrays) -> Arrays:
    f, parameters = inputs.field(1), inputs.hash_grid(HASH_SHAPE.entries, HASH_SHAPE.weights)
    table, weights, origins, directions = leaves = leaves_of(*parameters, f.origins, f.directions)
    field = volume.HashRadianceField(table, weights, HASH_SHAPE, np.array(inputs.VOLUME_BOX), f.background)
    how = {"steps_per_unit": inputs.STEPS_PER_UNIT, "skip_empty": False, "device": device}
    results = field.march(origins, directions, **how)  # type: ignore[arg-type]
    names = ("colors", "transmittances", "depths")
    v_results = [inputs.v(73 + i, stored[name]) for i, name in enumerate(names)]
    gradients = gradients_of(list(results), v_results, leaves)
    outputs = dict(zip(names, results, strict=True))
    return to_numpy(outputs | dict(zip(("v_table", "v_weights", "v_origins", "v_directions"), gradients, strict=True)))


def checkpoint() -> VolumeCheckpoint:
    """A grid before its first step."""
    f = inputs.field(1)
    grid = np.zeros((*f.density.shape, row_floats(1)), np.float32)
    grid[..., 0] = f.density
    grid[..., 1:] = f.sh[..., 0, :]
    state = {
        "grid": grid,
        "m": np.zeros_like(grid),
        "v": np.zeros_like(grid),
        "box": np.array(inputs.VOLUME_BOX),
        "background": f.background,
    }
    return VolumeCheckpoint(0, CONFIG, state)


def photograph() -> inputs.Floats:
    """[H, W, 4]: rgb and weight."""
    camera = inputs.volume_camera()
    return inputs.uniform(59, 0, 1, camera.height, camera.width, 4)


def _fitting_step(device: Device, stored: Arrays) -> Arrays:
    views = Views([inputs.volume_camera()], lambda _: photograph())
    trainer = VolumeTrainer(views, inputs.VOLUME_BOX, device=device, resume=checkpoint())
    trainer.advance()
    state = trainer.checkpoint().state
    return {name: state[name] for name in stored}
