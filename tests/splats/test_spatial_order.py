"""Rows of Gaussians sorted by Morton codes on the device, against codes written down bit by bit."""

from __future__ import annotations

import numpy as np
import torch

from splat_py.gpu.device import get_device
from splat_py.scene.gaussians import Gaussians
from splat_py.splats.parameters import GROUPS, MOMENTS, Parameters
from splat_py.splats.spatial_order import in_spatial_order
from tests.reference.morton import morton_codes


def test_rows_are_sorted_by_morton_codes_with_all_they_have() -> None:
    rng = np.random.default_rng(3)
    means = rng.uniform(-3, 3, (700, 3)).astype(np.float32)
    means[5] = means[9]  # of equal codes, the first row stays the first
    bounds = np.array([[-2.0, -1.5, -1.0], [1.0, 2.5, 1.0]])
    fresh = Parameters.fresh(get_device(), Gaussians.from_points(means, rng.uniform(0, 1, means.shape), sh_degree=1))
    before = fresh.state() | {f"{name}.{m}": rng.normal(size=fresh.state()[name].shape).astype(np.float32)
                              for name in GROUPS for m in MOMENTS}  # fmt: skip
    after = in_spatial_order(Parameters(get_device(), before), bounds).state()

    codes = morton_codes(means, bounds)
    expected = np.argsort(codes, kind="stable")
    for name in GROUPS:
        for array in (name, f"{name}.m", f"{name}.v"):
            np.testing.assert_array_equal(after[array], before[array][expected])
    assert torch.unique(torch.tensor(codes)).numel() > 600
