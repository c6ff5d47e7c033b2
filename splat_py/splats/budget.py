"""How many Gaussians a run is worth, and how their number gets there."""

from __future__ import annotations

import math

import numpy as np

from splat_py.scene.dataset import Dataset
from splat_py.splats.config import TrainConfig

# Measured: more cost steps their time and are not trained long enough, fewer leave detail out (benchmarks/README.md).
_OF_STEPS_AND_PIXELS = 5.5


# Of those that there are at first: densification places Gaussians better than any structure from motion.
_OF_INITIAL = 1.5


def budget_of(config: TrainConfig, pixels: float, initial: int) -> int:
    """Gaussians at the end: `config.budget`, or by default 5.5 √(photographs · pixels), those of all steps, or half more than
    there were at first, if that is more. `config.max_gaussians` at most.

    Args:
        pixels: of a photograph, on average.
        initial: Gaussians at first.
    """
    usual = math.ceil(max(_OF_STEPS_AND_PIXELS * math.sqrt(config.steps * config.photographs * pixels), _OF_INITIAL * initial))
    return min(config.budget or usual, config.max_gaussians)


def budget_for(config: TrainConfig, dataset: Dataset) -> int:
    """The same, of a run on a dataset."""
    cameras = [dataset.views[i].camera for i in dataset.train]
    pixels = float(np.mean([camera.width * camera.height for camera in cameras]))
    return budget_of(config, pixels, initial_count(config, dataset))


def initial_count(config: TrainConfig, dataset: Dataset) -> int:
    """Gaussians at first: as many as `initial_gaussians` makes."""
    from_points = config.init != "random" and dataset.points is not None
    return len(dataset.points[0]) if from_points and dataset.points else config.init_num_pts


def growth_limit(config: TrainConfig, step: int, count: int, budget: int) -> int:
    """How many Gaussians `count` of them may become after a step that densifies: an equal share of those that are missing, so
    that the last such step reaches the budget. Never fewer than there are."""
    every, stop = config.densify_interval, config.densify_end
    # Steps s from this one on, below the end, with s + 1 a multiple of the interval.
    left = max((stop - step + every - 1) // every, 1)
    return count + math.ceil(max(budget - count, 0) / left)
