"""Refinement of Gaussians: density control, and Markov chain Monte Carlo."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from splat_py.gpu.device import Device, Operator
from splat_py.selftest import inputs
from splat_py.selftest.cases.case import Arrays, Case
from splat_py.selftest.cases.training import SCENE_SCALE, state_before
from splat_py.splats.config import TrainConfig
from splat_py.splats.densification import densify, reset_opacities
from splat_py.splats.gaussian_rows import check_parameters
from splat_py.splats.mcmc import record_noise, record_prior, relocate_and_grow
from splat_py.splats.parameters import Parameters
from splat_py.splats.spatial_order import in_spatial_order

# As few as grow by 5 %; the first ones are faint. Some are cloned, some split, and one may not grow.
COUNT, FAINT = 20, 4
STEP = 3
CONFIG = TrainConfig(seed=2, grow_grad2d=0.5, max_gaussians=COUNT + 8, split_scale=0.15)
BOUNDS = np.array([[-1.0, -1.0, 3.2], [1.0, 1.0, 4.8]])
MCMC = replace(CONFIG, strategy="mcmc", means_lr=1e-6)


def cases() -> list[Case]:
    """Each strategy."""
    needs = (Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    return [
        Case("density control", "densify", _densify, needs=needs),
        Case("Markov chain Monte Carlo", "mcmc", _mcmc, needs=needs),
    ]


def state() -> dict[str, inputs.Floats]:
    """Some of the scene, with statistics."""
    found = {name: values[:COUNT].copy() for name, values in state_before().items()}
    found["logit_opacities"][:FAINT] = -7
    found["gradient_norms"] = inputs.uniform(97, 0.0, 1.0, COUNT)
    return found


def rows(state: Arrays) -> Arrays:
    """Of each Gaussian: mean, opacity's logit, one log-scale."""
    return {"rows": np.column_stack([state["means"], state["logit_opacities"], state["log_scales"][:, 0]])}


def _densify(device: Device, stored: Arrays) -> Arrays:
    parameters = Parameters(device, state())
    check_parameters(parameters, STEP)
    after = densify(parameters, CONFIG, STEP, SCENE_SCALE)
    reset_opacities(after, CONFIG)
    return rows(in_spatial_order(after, BOUNDS).state())


def _mcmc(device: Device, stored: Arrays) -> Arrays:
    parameters = Parameters(device, state())
    v = parameters.v_gaussians
    recorder = device.record()
    recorder.clear(v.opacities)
    recorder.clear(v.scales)
    record_prior(recorder, parameters, *MCMC.regularizers)
    record_noise(recorder, parameters, MCMC, STEP, SCENE_SCALE, device.memory.array(np.zeros(3, np.uint32)))
    recorder.submit()
    prior = np.column_stack([v.opacities.numpy(), v.scales.numpy()[:, 0]])
    return {"prior": prior, **rows(relocate_and_grow(parameters, MCMC, STEP).state())}
