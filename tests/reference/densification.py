"""Adaptive density control (Kerbl et al. 2023, section 5.2) on NumPy arrays, a Gaussian a row."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from tests.reference.random_numbers import normals

State = dict[str, Any]

STATISTICS = ("gradient_norms", "times_seen", "max_radii")
SHARED = "weights"
SPLIT_SHRINK = 1.6


def rows_of(state: Mapping[str, Any]) -> list[str]:
    """Names of the parameters, with moments, that have a row a Gaussian."""
    return [name for name in state if name not in STATISTICS and name.partition(".")[0] != SHARED]


def densify(
    state: State,
    *,
    grow_grad: float,
    most: int,
    split_scale: float,
    prune_opacity: float,
    prune_scale: float,
    key: tuple[int, int],
) -> State:
    """Clone small Gaussians with large screen-space gradients, split large ones, remove faint and huge ones.

    Args:
        state: "means", "quats" (w, x, y, z), "log_scales", "logit_opacities" and others, each with "….m" and "….v", and the
            statistics; arrays whose names begin with "weights" have no rows. Not changed.
        grow_grad: mean gradient norm above which Gaussians grow; at most `most`, the largest first.
        split_scale, prune_scale: world units.
        key: two words of the random numbers. Row n uses the n-th number for its first half and the (N + n)-th for its second.

    Returns:
        Gaussians that stay, clones, first halves, second halves; the statistics are zeros.
    """
    count = len(state["means"])
    scales = np.exp(state["log_scales"]).max(axis=1)
    norms = state["gradient_norms"] / np.maximum(state["times_seen"], 1)
    grows = np.zeros(count, bool)
    grows[np.argsort(-norms, kind="stable")[:most]] = True
    grows &= norms > grow_grad
    clones, splits = np.flatnonzero(grows & (scales <= split_scale)), np.flatnonzero(grows & (scales > split_scale))
    stay = np.setdiff1d(np.arange(count), splits)
    origin = np.concatenate([stay, clones, splits, splits])
    is_new = np.arange(len(origin)) >= len(stay)
    new = {name: state[name][origin] for name in rows_of(state)}
    for name in new:
        if name.endswith((".m", ".v")):
            new[name][is_new] = 0

    half = slice(len(stay) + len(clones), None)
    drawn = normals(np.concatenate([splits, count + splits]), key) * np.exp(new["log_scales"][half])
    if len(splits):
        new["means"][half] += Rotation.from_quat(new["quats"][half], scalar_first=True).apply(drawn)
    new["log_scales"][half] -= np.log(SPLIT_SHRINK)

    left = 1 / (1 + np.exp(-new["logit_opacities"])) >= prune_opacity
    left &= np.exp(new["log_scales"]).max(axis=1) <= prune_scale
    statistics = {name: np.zeros(left.sum()) for name in STATISTICS}
    shared = {name: values for name, values in state.items() if name.partition(".")[0] == SHARED}
    return {name: values[left] for name, values in new.items()} | statistics | shared


def reset_opacities(state: State, prune_opacity: float) -> State:
    """Limit opacities to twice the pruning threshold, and clear their momentum, which would raise them again."""
    name, limit = "logit_opacities", 2 * prune_opacity
    none = {f"{name}.{moment}": np.zeros_like(state[name]) for moment in "mv"}
    return {**state, name: np.minimum(state[name], np.log(limit / (1 - limit))), **none}
