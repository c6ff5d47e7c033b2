"""Where Gaussians start: at the dataset's points, or anywhere in the box that its cameras see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from splat_py.errors import SplatError
from splat_py.scene.dataset import Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.splats.config import TrainConfig
from splat_py.splats.training_colors import with_features


def initial_gaussians(dataset: Dataset, config: TrainConfig) -> Gaussians:
    """The Gaussians before the first step; what their splats take of each is as `config` says, and they are Gaussians else.

    Raises:
        SplatError: the dataset has no points and `config.init` asks for them, or there are more than `config.max_gaussians`.
    """
    if config.init == "points" and dataset.points is None:
        raise SplatError(f"{dataset.root} holds no points; use --init random")
    if config.init != "random" and dataset.points is not None:
        _check_count(len(dataset.points[0]), f"points of {dataset.root}", config)
        return _with_parameters(Gaussians.from_points(*dataset.points, sh_degree=config.sh_degree), config)
    _check_count(config.init_num_pts, "Gaussians of init_num_pts", config)
    rng = np.random.default_rng(config.seed)
    low, high = dataset.bounds
    points = rng.uniform(low, high, (config.init_num_pts, 3))
    return _with_parameters(Gaussians.from_points(points, rng.uniform(0, 1, points.shape), sh_degree=config.sh_degree), config)


def _with_parameters(gaussians: Gaussians, config: TrainConfig) -> Gaussians:
    each = config.parameters().items()
    gaussians = with_features(gaussians, config)
    return replace(gaussians, params={name: torch.full((len(gaussians),), number.initial) for name, number in each})


def _check_count(count: int, what: str, config: TrainConfig) -> None:
    if count > config.max_gaussians:
        raise SplatError(f"max_gaussians is {config.max_gaussians:,}, less than the {count:,} {what} to begin with; raise it")
