"""Adaptive density control (Kerbl et al. 2023, section 5.2): clone, split and prune, on the host every hundred steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from splat_py.errors import SplatError
from splat_py.splats.config import TrainConfig
from splat_py.splats.parameters import MOMENTS, WEIGHTS, Parameters, State, groups_of

# Each half of a split Gaussian is this much smaller.
_SPLIT_SHRINK = 1.6


def densify(state: State, config: TrainConfig, step: int, scene_scale: float, rng: np.random.Generator) -> State:
    """Clone small Gaussians with large screen-space gradients, split large ones, remove faint ones and, once opacities have
    been reset, huge ones. New Gaussians start with zero moments; the statistics start anew.

    Args:
        state: of `Parameters`; not changed.
        scene_scale: world units, from the dataset.

    Raises:
        SplatError: no Gaussian is left.
    """
    scales = np.exp(state["log_scales"]).max(axis=1)
    grad_norm = state["gradient_norms"] / np.maximum(state["times_seen"], 1)
    grows = _largest(grad_norm, config.grow_grad2d, config.max_gaussians - len(grad_norm))
    large = scales > config.split_scale * scene_scale
    clones, splits = np.flatnonzero(grows & ~large), np.flatnonzero(grows & large)

    kept = np.flatnonzero(~(grows & large))
    halves = np.concatenate([splits, splits])
    added = np.concatenate([clones, halves])
    new: State = {}
    for name in groups_of(state):
        new[name] = np.concatenate([state[name][kept], state[name][added]])
        for moment in (f"{name}.{m}" for m in MOMENTS):
            new[moment] = np.concatenate([state[moment][kept], np.zeros_like(state[moment][added])])
    of_all = {name: values for name, values in state.items() if name.partition(".")[0] == WEIGHTS}
    first_half = len(kept) + len(clones)
    new["means"][first_half:] += _samples(state["quats"][halves], state["log_scales"][halves], rng)
    new["log_scales"][first_half:] -= np.log(_SPLIT_SHRINK, dtype=np.float32)

    visible = 1 / (1 + np.exp(-new["logit_opacities"])) >= config.prune_opacity
    if step >= config.opacity_reset_every:
        visible &= np.exp(new["log_scales"]).max(axis=1) <= config.prune_scale * scene_scale
    if not visible.any():
        raise SplatError(
            f"no Gaussian is left after step {step + 1:,}: all have been pruned by prune_opacity ({config.prune_opacity:g}) or "
            f"prune_scale ({config.prune_scale:g}); lower the first, raise the second, or check that photographs and poses "
            "belong together"
        )
    new = {name: values[visible] for name, values in new.items()}
    for name in Parameters.STATISTICS:
        new[name] = np.zeros(int(visible.sum()), np.float32)
    return new | of_all


def reset_opacities(state: State, config: TrainConfig) -> State:
    """No opacity above twice the pruning threshold, and no momentum that would raise it again."""
    limit = 2 * config.prune_opacity
    ceiling = np.float32(np.log(limit / (1 - limit)))
    name = "logit_opacities"
    fresh = {f"{name}.{moment}": np.zeros_like(state[name]) for moment in MOMENTS}
    return {**state, name: np.minimum(state[name], ceiling), **fresh}


def _largest(grad_norm: NDArray[np.floating], threshold: float, most: int) -> NDArray[np.bool_]:
    """Which values exceed the threshold; the largest of them if there are more than `most`."""
    grows = grad_norm > threshold
    if grows.sum() > most:
        order = np.argsort(-grad_norm, kind="stable")[: max(most, 0)]
        grows = np.zeros_like(grows)
        grows[order] = grad_norm[order] > threshold
    return grows


def _samples(quats: NDArray[np.float32], log_scales: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """One offset from the centre drawn from each Gaussian."""
    local = rng.standard_normal(log_scales.shape) * np.exp(log_scales)
    if len(quats) == 0:
        return local.astype(np.float32)
    return Rotation.from_quat(quats, scalar_first=True).apply(local).astype(np.float32)
