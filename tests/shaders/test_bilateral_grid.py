"""bilateral_grid.slang: a colour's level, maps between two levels, and the total variation. Whole grids are tested in
tests/train/test_bilateral_grid.py."""

import numpy as np
import torch
from torch import Tensor

from splat_py.shaders import bilateral_grid
from tests.shaders.oracle import assert_gradients, assert_like, assert_value

LUMA = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)


def test_levels_end_at_black_and_white() -> None:
    colors = np.array([[-1, -1, -1], [0, 0, 0], [0.2, 0.5, 0.4], [1, 0, 0.9], [1, 1, 1.1], [2, 2, 2.0]])
    luma = colors @ LUMA.numpy()
    assert_value(bilateral_grid.levelOf(colors), 7 * luma.clip(0, 1))
    inside = (luma > 0) & (luma < 1)
    assert_gradients(bilateral_grid.levelOf, np.ones(6), [colors], [7 * inside[:, None] * LUMA.numpy()])
    assert_value(bilateral_grid.levelBelow(np.array([0, 0.9, 1, 6.9, 7])), [0, 0, 1, 6, 6])


def test_a_colour_through_the_maps_around_it() -> None:
    rng = np.random.default_rng(5)

    def sliced(below: Tensor, above: Tensor, color: Tensor) -> Tensor:
        level = (7 * color @ LUMA)[:, None]
        row = (below + (above - below) * (level - level.detach().floor())).reshape(-1, 3, 4)
        return torch.einsum("nij,nj->ni", row[..., :3], color) + row[..., 3]

    arguments = [rng.normal(size=(9, 12)), rng.normal(size=(9, 12)), rng.uniform(size=(9, 3))]
    assert_like(bilateral_grid.slice, sliced, arguments, value=(1e-5, 1e-5), atol=1e-5)


def test_variation_is_the_weighted_mean_of_squared_differences() -> None:
    rng = np.random.default_rng(6)

    def terms(x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        pairs = torch.tensor([8 * 16 * 15, 8 * 16 * 15, 7 * 16 * 16], dtype=torch.float64) * 12
        return 10 * (((x[:, None] - before) ** 2 + (x[:, None] - after) ** 2) / pairs).sum(1)

    arguments = [rng.normal(size=5), rng.normal(size=(5, 3)), rng.normal(size=(5, 3))]
    assert_like(bilateral_grid.variation, terms, arguments, no_diff=[1, 2], atol=1e-9)
