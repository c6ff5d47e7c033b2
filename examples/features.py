"""Optimise features of Gaussians to show a pattern in several views, with their geometry fixed.

    python examples/features.py

Gaussians on a sphere are a texture that needs no map from the surface to a plane: each has eight learnt features, a small torch
network turns the rendered features into colours, and both learn from pictures. `rasterization` blends any number of
channels a Gaussian.
"""

from __future__ import annotations

import argparse

import torch

import splat_py as splat

SIZE, VIEWS, FEATURES = 96, 6, 8


def sphere(count: int = 4000) -> dict[str, torch.Tensor]:
    """Gaussians spread evenly over a sphere of radius 1."""
    z = 1 - 2 * (torch.arange(count) + 0.5) / count
    azimuth = torch.arange(count) * torch.pi * (3 - 5**0.5)
    radius = (1 - z**2).sqrt()
    return {
        "means": torch.stack([radius * azimuth.cos(), radius * azimuth.sin(), z], dim=-1),
        "quats": torch.tensor([1.0, 0, 0, 0]).repeat(count, 1),
        "scales": torch.full((count, 3), 0.03),
        "opacities": torch.full((count,), 0.95),
    }


def checkered(points: torch.Tensor) -> torch.Tensor:
    """Colours [N, 3] of a chequered sphere, at points of it [N, 3]."""
    odd = (torch.floor(3 * points).sum(-1) % 2)[:, None]
    return odd * torch.tensor([0.9, 0.3, 0.1]) + (1 - odd) * torch.tensor([0.1, 0.4, 0.8])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=150)
    steps = options.parse_args().steps

    torch.manual_seed(0)
    gaussians = sphere()
    angles = torch.arange(VIEWS) * (2 * torch.pi / VIEWS)
    eyes = torch.stack([3 * angles.cos(), 3 * angles.sin(), torch.full((VIEWS,), 0.8)], dim=-1)
    cameras = [splat.Camera.look_at(eye, (0, 0, 0), (0, 0, 1), 50, SIZE, SIZE) for eye in eyes]
    viewmats = torch.stack([torch.tensor(camera.viewmat, dtype=torch.float32) for camera in cameras])
    Ks = torch.stack([torch.tensor(camera.K, dtype=torch.float32) for camera in cameras])

    def render(channels: torch.Tensor, views: slice = slice(None)) -> torch.Tensor:
        where = {"viewmats": viewmats[views], "Ks": Ks[views], "width": SIZE, "height": SIZE}
        return splat.rasterization(**gaussians, colors=channels, **where)[0]

    photographs = render(checkered(gaussians["means"]))
    features = (0.1 * torch.randn(len(gaussians["means"]), FEATURES)).requires_grad_()
    decoder = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.Adam([{"params": [features], "lr": 3e-2}, {"params": decoder.parameters(), "lr": 1e-2}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        # The last view is held out.
        view = step % (VIEWS - 1)
        optimizer.zero_grad()
        loss = ((decoder(render(features, slice(view, view + 1))) - photographs[view]) ** 2).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(steps // 8, 1) == 0 or step == steps - 1:
            with torch.no_grad():
                held_out = ((decoder(render(features, slice(VIEWS - 1, VIEWS))) - photographs[-1]) ** 2).mean()
            print(f"step {step:4}: {-10 * loss.log10().item():.1f} dB, held out {-10 * held_out.log10().item():.1f} dB")


if __name__ == "__main__":
    main()
