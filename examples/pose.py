"""Find a camera's pose from one photograph, by gradient descent through the renderer.

    python examples/pose.py

The scene is 2,000 Gaussians with generated colours. The photograph is rendered from a pose unknown to the optimiser, which
starts 6 degrees and 20 cm away. It uses the gradient that `rasterization` gives for the world-to-camera matrix.
"""

from __future__ import annotations

import argparse

import torch

import splat_py as splat

SIZE = 96


def scene(count: int = 2000) -> dict[str, torch.Tensor]:
    """Gaussians on a sphere of radius 1, in stripes."""
    generator = torch.Generator().manual_seed(0)
    means = torch.nn.functional.normalize(torch.randn(count, 3, generator=generator), dim=-1)
    return {
        "means": means,
        "quats": torch.randn(count, 4, generator=generator),
        "scales": torch.full((count, 3), 0.05),
        "opacities": torch.full((count,), 0.9),
        "colors": 0.5 + 0.5 * torch.sin(4 * means + torch.tensor([0.0, 1.0, 2.0])),
    }


def moved(twist: torch.Tensor, pose: torch.Tensor) -> torch.Tensor:
    """`pose` [4, 4], turned by twist[:3] radians and shifted by twist[3:], in camera axes."""
    x, y, z = twist[:3]
    zero = torch.zeros(())
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)
    upper = torch.cat([torch.linalg.matrix_exp(cross), twist[3:, None]], dim=1)
    return torch.cat([upper, torch.tensor([[0.0, 0, 0, 1]])]) @ pose


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=150)
    steps = options.parse_args().steps

    gaussians = scene()
    Ks = torch.tensor([[[100.0, 0, SIZE / 2], [0, 100.0, SIZE / 2], [0, 0, 1]]])

    def render(viewmat: torch.Tensor) -> torch.Tensor:
        return splat.rasterization(**gaussians, viewmats=viewmat[None], Ks=Ks, width=SIZE, height=SIZE)[0][0]

    start = torch.eye(4)
    start[2, 3] = 3.0  # the sphere is three units in front of the camera
    true_twist = torch.tensor([0.06, -0.07, 0.05, 0.10, -0.08, 0.15])
    photograph = render(moved(true_twist, start))

    twist = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.Adam([twist], lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss = (render(moved(twist, start)) - photograph).abs().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(steps // 8, 1) == 0 or step == steps - 1:
            off = (twist - true_twist).detach()
            print(f"step {step:4}: loss {loss.item():.5f}, {off[:3].norm().rad2deg():.3f}°, {off[3:].norm():.4f} units off")


if __name__ == "__main__":
    main()
