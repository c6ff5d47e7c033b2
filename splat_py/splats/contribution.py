"""What Gaussians contribute to the photographs, and pruning by it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.errors import RankLostError, SplatError
from splat_py.fit.distributed import ALONE, Ranks
from splat_py.fit.finiteness import check_finite
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.device import Device
from splat_py.scene.dataset import Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.splats.config import TrainConfig
from splat_py.splats.parameters import WEIGHTS, Parameters
from splat_py.splats.rendering import blending_weights


@dataclass(frozen=True)
class Removal:
    """Gaussians before and after a step that pruned."""

    step: int
    before: int
    after: int


def contributions(
    gaussians: Gaussians,
    dataset: Dataset,
    *,
    antialiased: bool = False,
    accumulate: Accumulate = "auto",
    device: Device | None = None,
) -> NDArray[np.float32]:
    """Of each Gaussian [N]: its blending weights α T, summed over a photograph's pixels that count, in the training view where
    the sum is largest.

    How much of a picture would be another colour without it, in pixels. Sums of blending weights are what Mini-Splatting (Fang
    and Wang 2024) prunes by, largest ones RadSplat (Niemeyer et al. 2024).
    """
    most = np.zeros(len(gaussians), np.float32)
    for view in dataset.train:
        counts = torch.from_numpy((dataset.image(view)[..., 3] > 0).astype(np.float32))
        weights = blending_weights(
            gaussians,
            dataset.views[view].camera,
            counts,
            antialiased=antialiased,
            near=dataset.near,
            accumulate=accumulate,
            device=device,
        )
        most = np.maximum(most, weights)
    return most


def prune(
    parameters: Parameters, gaussians: Gaussians, dataset: Dataset, config: TrainConfig, step: int, ranks: Ranks = ALONE
) -> tuple[Parameters, Removal]:
    """Without the Gaussians that contribute less than `config.prune_contribution`, and with the optimiser of the others.

    Args:
        gaussians: of the parameters, as they are shown.
        ranks: processes of which each looks at its share of the photographs.

    Raises:
        SplatError: none is left, or a parameter is not finite, or another process has ended.
    """
    state, least = parameters.state(), config.prune_contribution
    check_finite(state, step + 1)
    share = replace(dataset, train=dataset.train[ranks.rank :: ranks.size], _images=dataset._images)
    found = contributions(
        gaussians, share, antialiased=config.antialiased, accumulate=config.accumulate, device=parameters.device
    )
    try:
        found = ranks.largest_values(found)
    except RankLostError as error:
        # Gaussians have been refined and not pruned: no checkpoint is to be written of that.
        raise SplatError(str(error)) from error
    kept = found >= least
    if not kept.any():
        raise SplatError(f"no Gaussian contributes prune_contribution ({least:g}) pixels to any photograph; lower it")
    rows = {name: values if name.partition(".")[0] == WEIGHTS else values[kept] for name, values in state.items()}
    left = Parameters(parameters.device, rows)
    return left, Removal(step + 1, parameters.count, left.count)
