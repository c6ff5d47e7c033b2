"""What `TrainConfig.strategy` names: how Gaussians are updated in a step, and how their number changes every so many steps."""

from __future__ import annotations

from splat_py.gpu.arrays import Array
from splat_py.gpu.kernels import Recorder
from splat_py.splats.config import TrainConfig
from splat_py.splats.data import StridedView
from splat_py.splats.densification import densify
from splat_py.splats.mcmc import record_noise, record_prior, relocate_and_grow
from splat_py.splats.parameters import Parameters


def refine(parameters: Parameters, config: TrainConfig, step: int, scene_scale: float) -> Parameters:
    """Gaussians after a step that `config.densifies_at`.

    Raises:
        SplatError: no Gaussian is left.
    """
    if config.strategy == "mcmc":
        return relocate_and_grow(parameters, config, step)
    return densify(parameters, config, step, scene_scale)


def record_update(
    recorder: Recorder,
    parameters: Parameters,
    config: TrainConfig,
    step: int,
    scene_scale: float,
    v_extras: StridedView | None,
    status: Array,
) -> None:
    """Adam, after the gradient of regularisers, and in MCMC before the noise."""
    opacity_reg, scale_reg = config.regularizers
    if opacity_reg > 0 or scale_reg > 0:
        record_prior(recorder, parameters, opacity_reg, scale_reg)
    parameters.record_adam(recorder, config, step, scene_scale, v_extras, status)
    if config.strategy == "mcmc":
        record_noise(recorder, parameters, config, step, scene_scale, status)
