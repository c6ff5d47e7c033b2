"""Recover a volume's density and colours from pictures of it.

    python examples/volume.py

Renders a generated cloud from twelve sides with `splat.volume.render`, discards it, and optimises voxels until they look alike.
The renderer's memory does not grow with the samples along a ray, as its backward pass marches again.
`splat.volume.fit` does this for photographs, on the device and from coarse to fine.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import torch

import splat_py as splat

SIZE, VIEWS, VOXELS = 48, 12, 24
BOX = [[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]


def cloud() -> tuple[torch.Tensor, torch.Tensor]:
    """Density [X, Y, Z] of two soft balls, and coefficients [X, Y, Z, 1, 3] of a colour that changes along x."""
    axis = (torch.arange(VOXELS) + 0.5) / VOXELS * 2 - 1
    points = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1)
    places = ((0.45, (-0.25, 0.0, -0.1)), (0.3, (0.4, 0.2, 0.3)))
    balls = [torch.sigmoid(20 * (radius - (points - torch.tensor(center)).norm(dim=-1))) for radius, center in places]
    colors = torch.stack([0.5 + 0.4 * points[..., 0], torch.full(points.shape[:3], 0.4), 0.5 - 0.4 * points[..., 0]], dim=-1)
    return 3 * torch.maximum(*balls), ((colors - 0.5) / 0.28209479)[..., None, :]


def rays() -> tuple[torch.Tensor, torch.Tensor]:
    """Origins and directions [VIEWS, SIZE, SIZE, 3] of cameras all around."""
    y, x = torch.meshgrid(*[torch.arange(SIZE) + 0.5] * 2, indexing="ij")
    pixels = torch.stack([x, y, torch.ones_like(x)], dim=-1)
    origins, directions = [], []
    for i in range(VIEWS):
        angle = 2 * torch.pi * i / VIEWS
        eye = (3 * math.cos(angle), 3 * math.sin(angle), 1.5 * (-1) ** i)
        camera = splat.Camera.look_at(eye, (0, 0, 0), (0, 0, 1), 50, SIZE, SIZE)
        to_world = camera.viewmat[:3, :3].T @ np.linalg.inv(camera.K)
        directions.append(pixels @ torch.tensor(to_world.T, dtype=torch.float32))
        origins.append(torch.tensor(eye).expand(SIZE, SIZE, 3))
    return torch.stack(origins), torch.stack(directions)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=100)
    steps = options.parse_args().steps

    origins, directions = rays()
    true_density, true_sh = cloud()
    pictures, _, _ = splat.volume.render(true_density, true_sh, origins, directions, BOX)

    density = torch.full_like(true_density, 0.5, requires_grad=True)
    sh = torch.zeros_like(true_sh, requires_grad=True)
    optimizer = torch.optim.Adam([{"params": [density], "lr": 0.3}, {"params": [sh], "lr": 0.05}])
    for step in range(steps):
        optimizer.zero_grad()
        render, _, _ = splat.volume.render(density, sh, origins, directions, BOX)
        loss = ((render - pictures) ** 2).mean()
        loss.backward()
        optimizer.step()
        if step % max(steps // 8, 1) == 0 or step == steps - 1:
            off = (density.detach().clamp(min=0) - true_density).abs().mean()
            print(f"step {step:4}: {-10 * loss.log10().item():.1f} dB, density off by {off:.3f} on average")


if __name__ == "__main__":
    main()
