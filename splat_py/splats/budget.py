"""How many Gaussians a run is worth, and how their number gets there."""

from __future__ import annotations

import math

import numpy as np

from splat_py.scene.dataset import Dataset
from splat_py.splats.config import TrainConfig

# Measured: more cost steps their time and are not trained long enough, fewer leave detail out (benchmarks/README.md).
_OF_STEPS_AND_PIXELS = 5.5


def budget_of(config: TrainConfig, pixels: float) -> int:
    """Gaussians at the end, `config.budget` or by default 5.5 √(steps · pixels), and `config.max_gaussians` at most.

    Args:
        pixels: of a photograph, on average.
    """
    return min(config.budget or math.ceil(_OF_STEPS_AND_PIXELS * math.sqrt(config.steps * pixels)), config.max_gaussians)


def growth_limit(config: TrainConfig, step: int, count: int, budget: int) -> int:
    """How many Gaussians `count` of them may become after a step that densifies: an equal share of those that are missing, so
    that the last such step reaches the budget. Never fewer than there are."""
    every, stop = config.densify_interval, config.densify_end
    # Steps s from this one on, below the end, with s + 1 a multiple of the interval.
    left = max((stop - step + every - 1) // every, 1)
    return count + math.ceil(max(budget - count, 0) / left)


def pixels_of(dataset: Dataset) -> float:
    """Pixels of a training photograph, on average."""
    return float(np.mean([dataset.views[i].camera.width * dataset.views[i].camera.height for i in dataset.train]))
