"""gsplat's test scene: points of a garden with random shapes, and its cameras."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splat_py.errors import SplatError

# Deviations are up to this much, world units.
_LARGEST_SCALE = 0.02
# In a checkout of gsplat, whose scripts run in its root or in a folder of it.
_SCENES = (Path("assets/test_garden.npz"), Path("../assets/test_garden.npz"))


def load_test_data(
    data_path: str | None = None,
    device: str | torch.device = "cpu",
    scene_crop: Sequence[float] = (-2, -2, -2, 2, 2, 2),
    scene_grid: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, int]:
    """Gaussians at the points of an .npz file with random quaternions, scales and opacities, and its C cameras.

    Args:
        data_path: with `means3d`, `colors` (bytes), `viewmats`, `Ks`, `width`, `height`. By default gsplat's
            assets/test_garden.npz, if the working directory is gsplat's checkout or a folder of it.
        device: of the tensors.
        scene_crop: low and high corner of what is kept.
        scene_grid: repeat it so often along x and y; an odd number.

    Returns:
        means, quats, scales, opacities, colors, viewmats, Ks, width, height.

    Raises:
        SplatError: there is no file, or the grid is not odd.
    """
    found = Path(data_path) if data_path is not None else next(filter(Path.is_file, _SCENES), None)
    if found is None:
        raise SplatError(
            "data_path is missing, and there is no assets/test_garden.npz here: that scene is gsplat's, not splat_py's; "
            "run in a folder of gsplat's checkout, or give data_path"
        )
    if not found.is_file():
        raise SplatError(f"data_path: there is no file {found}")
    if scene_grid % 2 != 1:
        raise SplatError(f"scene_grid is {scene_grid!r}; give an odd number")
    with np.load(found) as data:
        means, colors, viewmats, Ks = (
            torch.from_numpy(data[name]).float().to(device) for name in ("means3d", "colors", "viewmats", "Ks")
        )
        width, height = int(data["width"]), int(data["height"])
    low, high = torch.tensor(scene_crop, dtype=torch.float32, device=device).split(3)
    kept = ((means >= low) & (means <= high)).all(-1)
    half = scene_grid // 2
    side = torch.arange(-half, half + 1, device=device)
    shifts = torch.cartesian_prod(side, side, side.new_zeros(1)) * (high - low)
    means = (means[kept] + shifts[:, None]).reshape(-1, 3)
    colors = (colors[kept] / 255).repeat(len(shifts), 1)
    scales = torch.rand((len(means), 3), device=device) * _LARGEST_SCALE
    quats = torch.nn.functional.normalize(torch.randn((len(means), 4), device=device), dim=-1)
    return means, quats, scales, torch.rand(len(means), device=device), colors, viewmats, Ks, width, height
