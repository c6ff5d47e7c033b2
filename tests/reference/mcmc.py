"""3D Gaussian Splatting as Markov Chain Monte Carlo (Kheradmand et al. 2024), as in gsplat 1.5.3, on NumPy arrays."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.special
from scipy.spatial.transform import Rotation

from tests.reference.arrays import Array
from tests.reference.densification import STATISTICS, State, rows_of
from tests.reference.random_numbers import normals, words

MOST_COPIES = 51
GROWTH = 1.05
LARGEST_OPACITY = 1 - 2**-23
sigmoid, logit = scipy.special.expit, scipy.special.logit


def equation_9(opacity: float, n: int) -> tuple[float, float]:
    """The opacity of each of n Gaussians that replace one, and the factor of its scales."""
    new = -math.expm1(math.log1p(-min(opacity, 1 - 2**-24)) / n)
    terms = [math.comb(i - 1, k) * (-1) ** k * new ** (k + 1) / math.sqrt(k + 1) for i in range(1, n + 1) for k in range(i)]
    return new, opacity / math.fsum(terms)


def draw(weights: Array, counters: npt.NDArray[np.int64], key: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Draw rows in proportion to `weights`, which are rounded to whole numbers as on the device."""
    resolution = min(1 << 24, (2**32 - 1) // len(weights) - 1)
    totals = np.cumsum(np.floor(weights * resolution + 0.5).astype(np.uint64))
    targets = (words(counters, key)[:, 0].astype(np.uint64) * totals[-1]) >> np.uint64(32)
    return np.searchsorted(totals, targets, side="right")


def shared(state: State, drawn: npt.NDArray[np.int64], min_opacity: float) -> None:
    """Set the opacity and the scales of the drawn rows, in place."""
    opacities = sigmoid(state["logit_opacities"])
    for row, copies in zip(*np.unique(drawn, return_counts=True), strict=True):
        new, factor = equation_9(opacities[row], min(int(copies) + 1, MOST_COPIES))
        state["logit_opacities"][row] = logit(np.clip(new, min_opacity, LARGEST_OPACITY))
        state["log_scales"][row] += math.log(factor)


def relocate(state: State, min_opacity: float, key: tuple[int, int]) -> State:
    """Turn dead Gaussians into copies of others, drawn by opacity; these lose their moments."""
    state = {name: values.copy() for name, values in state.items()}
    opacities = sigmoid(state["logit_opacities"])
    dead = np.flatnonzero(opacities <= min_opacity)
    drawn = draw(np.where(opacities > min_opacity, opacities, 0), dead, key)
    shared(state, drawn, min_opacity)
    for name in rows_of(state):
        if name.endswith((".m", ".v")):
            state[name][drawn] = 0
        else:
            state[name][dead] = state[name][drawn]
    return state


def grow(state: State, min_opacity: float, most: int, key: tuple[int, int]) -> State:
    """Add 5 %, up to `most`, as copies of others, drawn by opacity. Statistics are reset."""
    state = {name: values.copy() for name, values in state.items()}
    count = len(state["means"])
    rows = max(min(int(GROWTH * count), most), count)
    if rows == count:
        return state
    drawn = draw(sigmoid(state["logit_opacities"]), np.arange(count, rows), key)
    shared(state, drawn, min_opacity)
    for name in rows_of(state):
        added = state[name][drawn]
        state[name] = np.concatenate([state[name], np.zeros_like(added) if name.endswith((".m", ".v")) else added])
    return state | {name: np.zeros(rows) for name in STATISTICS}


def noise(state: dict[str, Any], scale: float, key: tuple[int, int]) -> Array:
    """The noise [N, 3] that a step adds to the means: Σ η σ(-100 (o - 0.005)) scale."""
    local = Rotation.from_quat(state["quats"], scalar_first=True)
    faint = sigmoid(-100 * (sigmoid(state["logit_opacities"]) - 0.005))[:, None]
    drawn = normals(np.arange(len(state["means"])), key) * faint * scale
    return local.apply(np.exp(2 * state["log_scales"]) * local.inv().apply(drawn))


def prior_gradient(state: State, opacity_reg: float, scale_reg: float) -> tuple[Array, Array]:
    """Gradient of opacity_reg mean(o) + scale_reg mean(s) in opacity logits [N] and log-scales [N, 3]."""
    o, s = sigmoid(state["logit_opacities"]), np.exp(state["log_scales"])
    return opacity_reg / o.size * o * (1 - o), scale_reg / s.size * s
