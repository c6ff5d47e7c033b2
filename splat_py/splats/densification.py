"""Adaptive density control (Kerbl et al. 2023, section 5.2): clone, split and prune, on the host every hundred steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from splat_py.splats.config import TrainConfig
from splat_py.splats.parameters import GROUPS, MOMENTS, Parameters, State

# A split Gaussian's two parts are this much smaller.
_SPLIT_SHRINK = 1.6


def densify(state: State, config: TrainConfig, step: int, scene_scale: float, rng: np.random.Generator) -> State:
    """Clone small Gaussians that the images pull at, split large ones, remove faint ones and, once opacities have been reset,
    huge ones. New Gaussians start with zero moments; the statistics start anew.

    Args:
        state: of `Parameters`; not changed.
        scene_scale: world units, from the dataset.
    """
    scales = np.exp(state["log_scales"]).max(axis=1)
    pull = state["gradient_norms"] / np.maximum(state["times_seen"], 1)
    grows = _strongest(pull, config.densify_gradient, config.max_gaussians - len(pull))
    large = scales > config.split_scale * scene_scale
    clones, splits = np.flatnonzero(grows & ~large), np.flatnonzero(grows & large)

    kept = np.flatnonzero(~(grows & large))
    parts = np.concatenate([splits, splits])
    born = np.concatenate([clones, parts])
    new: State = {}
    for name in GROUPS:
        new[name] = np.concatenate([state[name][kept], state[name][born]])
        for moment in (f"{name}.{m}" for m in MOMENTS):
            new[moment] = np.concatenate([state[moment][kept], np.zeros_like(state[moment][born])])
    first_part = len(kept) + len(clones)
    new["means"][first_part:] += _samples(state["quats"][parts], state["log_scales"][parts], rng)
    new["log_scales"][first_part:] -= np.log(_SPLIT_SHRINK, dtype=np.float32)

    visible = 1 / (1 + np.exp(-new["logit_opacities"])) >= config.prune_opacity
    if step >= config.opacity_reset_every:
        visible &= np.exp(new["log_scales"]).max(axis=1) <= config.prune_scale * scene_scale
    new = {name: values[visible] for name, values in new.items()}
    for name in Parameters.STATISTICS:
        new[name] = np.zeros(int(visible.sum()), np.float32)
    return new


def reset_opacities(state: State, config: TrainConfig) -> State:
    """No opacity above twice the pruning threshold, and no momentum to bring it back."""
    limit = 2 * config.prune_opacity
    ceiling = np.float32(np.log(limit / (1 - limit)))
    name = "logit_opacities"
    fresh = {f"{name}.{moment}": np.zeros_like(state[name]) for moment in MOMENTS}
    return {**state, name: np.minimum(state[name], ceiling), **fresh}


def _strongest(pull: NDArray[np.floating], threshold: float, room: int) -> NDArray[np.bool_]:
    """Which Gaussians grow: those pulled at hardest, no more than there is room for."""
    grows = pull > threshold
    if grows.sum() > room:
        order = np.argsort(-pull, kind="stable")[: max(room, 0)]
        grows = np.zeros_like(grows)
        grows[order] = pull[order] > threshold
    return grows


def _samples(quats: NDArray[np.float32], log_scales: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """One offset from the centre drawn from each Gaussian."""
    local = rng.standard_normal(log_scales.shape) * np.exp(log_scales)
    if len(quats) == 0:
        return local.astype(np.float32)
    return Rotation.from_quat(quats, scalar_first=True).apply(local).astype(np.float32)
