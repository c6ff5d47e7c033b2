"""Bilateral grids of photographs (Wang et al. 2024) in float64, by torch's `grid_sample`: colours and their gradients."""

import torch
from torch import Tensor

from tests.reference.arrays import Array, leaf

NEUTRAL = torch.eye(3, 4, dtype=torch.float64).flatten()


def sliced(grid: Tensor, colors: Tensor) -> Tensor:
    """Photograph's colours: [levels, rows, columns, 12], [H, W, 3] → [H, W, 3]."""
    height, width, _ = colors.shape
    y, x = torch.meshgrid(*(2 * (torch.arange(n) + 0.5) / n - 1 for n in (height, width)), indexing="ij")
    luma = colors @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    places = torch.stack([x.double(), y.double(), 2 * luma - 1], -1)
    maps = torch.nn.functional.grid_sample(
        grid.permute(3, 0, 1, 2)[None], places[None, None], align_corners=True, padding_mode="border"
    )
    affine = maps[0, :, 0].permute(1, 2, 0).reshape(height, width, 3, 4)
    return torch.einsum("hwij,hwj->hwi", affine[..., :3], colors) + affine[..., 3]


def variation(grid: Tensor) -> Tensor:
    """The weighted total variation."""
    return 10 * sum((grid.diff(dim=axis) ** 2).mean() for axis in range(3))


def differentiated(grid: Array, colors: Array, v_shown: Array) -> tuple[Array, Array, Array]:
    """Photograph's colours, and the gradients of the grid, also by its total variation, and of the scene's colours."""
    leaves = leaf(grid), leaf(colors)
    shown = sliced(*leaves)
    v_grid, v_colors = torch.autograd.grad((shown * torch.from_numpy(v_shown)).sum() + variation(leaves[0]), leaves)
    return shown.detach().numpy(), v_grid.numpy(), v_colors.numpy()
