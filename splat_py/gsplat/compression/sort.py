"""Gaussians in an order in which neighbours in a square grid are alike, so that pictures of their parameters compress well."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gsplat.exporter import encode_morton3_vec, sort_centers

_SORTED_BY = ("means", "quats", "scales", "opacities", "sh0")


def sort_splats(splats: Mapping[str, Tensor], verbose: bool = True) -> dict[str, Tensor]:
    """All parameters in the order of a square grid: by PLAS, if it is installed, or else along Morton curves.

    PLAS (Morgenstern et al. 2023, Compact 3D scene representation via self-organizing Gaussian grids) arranges the grid by all
    parameters but shN. Without it a curve through space is laid along one through the grid: neighbours are near each other.

    Args:
        splats: [N, ...] each, N a square number, "means" among them.
        verbose: print PLAS's progress.

    Raises:
        SplatError: N is no square number.
    """
    means = splats["means"]
    side = math.isqrt(len(means))
    if side**2 != len(means):
        raise SplatError(f"splats: there are {len(means)} Gaussians; sort_splats takes a square number of them")
    try:
        from plas import sort_with_plas
    except ImportError:
        order = _order_along_curves(means, side)
    else:
        rows = torch.cat([splats[name].reshape(side**2, -1) for name in _SORTED_BY if name in splats], dim=1)
        # It finds better arrangements from one without any order.
        shuffled = torch.randperm(side**2, device=rows.device)
        grid = rows[shuffled].reshape(side, side, -1).permute(2, 0, 1)
        order = shuffled[sort_with_plas(grid, improvement_break=1e-4, verbose=verbose)[1].flatten()]
    return {name: tensor[order] for name, tensor in splats.items()}


def _order_along_curves(means: Tensor, side: int) -> Tensor:
    """The order in which the n-th Gaussian along a curve through space is in the n-th cell along one through the grid."""
    cells = torch.arange(side**2, device=means.device)
    along_grid = torch.stack([cells % side, cells // side, torch.zeros_like(cells)])
    # Codes of ten bits an axis: cells of larger grids share them in blocks, in order of their rows.
    shift = max(side.bit_length() - 10, 0)
    order = torch.empty_like(cells)
    order[encode_morton3_vec(*(along_grid >> shift)).argsort(stable=True)] = sort_centers(means, cells)
    return order
