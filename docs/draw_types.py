"""Draw docs/types.png: splats, cameras and colours of each built-in type."""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

import splat_py as splat
from splat_py.demo.scene import write_demo_scene
from splat_py.render.shade import color_model, network_weights, shade

SIDE = 128


def intrinsics(focal: float, width: int = SIDE) -> Tensor:
    return torch.tensor([[[focal, 0, width / 2], [0, focal, SIDE / 2], [0, 0, 1]]])


def splats() -> dict[str, Tensor]:
    """Each built-in splat type, with the same scales."""
    size = {"width": SIDE, "height": SIDE}
    turned = torch.nn.functional.normalize(torch.tensor([[0.9, 0.35, 0.25, 0.3]]), dim=-1)
    one = {
        "means": torch.tensor([[0.0, 0, 4]]),
        "quats": turned,
        "scales": torch.tensor([[0.55, 0.3, 0.3]]),
        "opacities": torch.tensor([0.98]),
        "colors": torch.tensor([[0.95, 0.6, 0.25]]),
        "viewmats": torch.eye(4)[None],
        "Ks": intrinsics(1.3 * SIDE),
    }
    pictures = {"Gaussian": splat.rasterization(**one, **size)[0]}
    for name, parameter, values in (("GeneralizedExponential", "beta", (0.5, 3.0)), ("BetaKernel", "b", (-1.5, 1.0))):
        for value in values:
            params = {parameter: torch.tensor([value])}
            shown = splat.rasterization(**one, **size, splat=name, splat_params=params)[0]
            pictures[f"{name}\n{parameter} = {value:g}"] = shown
    flat = one | {"quats": torch.nn.functional.normalize(torch.tensor([[0.75, 0.55, 0.25, 0.3]]), dim=-1)}
    pictures["surfel"] = splat.rasterization_2dgs(**flat, **size)[0]
    return {name: picture[0] for name, picture in pictures.items()}


def cameras() -> dict[str, Tensor]:
    """The embedded scene through each camera model, from one place within it."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = splat.load_dataset(write_demo_scene(Path(folder) / "scene", views=24, size=96))
        scene = splat.Trainer(dataset, splat.TrainConfig(steps=500, sh_degree=1)).fit()
    gaussians = (scene.means, scene.quats, scene.log_scales.exp(), scene.logit_opacities.sigmoid(), scene.sh)
    eye, forward = torch.tensor([0.8, 0.9, 0.6]), torch.nn.functional.normalize(torch.tensor([-0.8, -0.9, -0.25]), dim=0)
    right = torch.nn.functional.normalize(torch.linalg.cross(forward, torch.tensor([0.0, 0, 1])), dim=0)
    viewmat = torch.eye(4)
    viewmat[:3, :3] = torch.stack([right, torch.linalg.cross(forward, right), forward])
    viewmat[:3, 3] = -viewmat[:3, :3] @ eye
    angle = SIDE / torch.pi
    lens = {"radial_coeffs": torch.tensor([[-0.3, 0.09, 0, 0]])}
    kinds = {
        "pinhole": ("pinhole", 0.5 * SIDE, SIDE, {}),
        "with an OpenCV lens": ("pinhole", 0.6 * SIDE, SIDE, lens),
        "ortho": ("ortho", 45.0, SIDE, {}),
        "fisheye": ("fisheye", angle, SIDE, {}),
        "equirectangular": ("equirectangular", angle, 2 * SIDE, {}),
    }
    return {
        name: splat.rasterization(
            *gaussians, viewmat[None], intrinsics(focal, width), width, SIDE, sh_degree=1, camera_model=model, **options
        )[0][0]
        for name, (model, focal, width, options) in kinds.items()
    }


def colors() -> dict[str, Tensor]:
    """A surface with two highlights seen from all directions, and its approximation by each colour type of equal size."""
    row, column = np.mgrid[:48, :96] + 0.5
    theta, phi = row / 48 * np.pi, column / 96 * 2 * np.pi
    directions = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], -1).reshape(-1, 3)

    def lobe(axis: list[float], sharpness: float) -> np.ndarray:
        return np.exp(sharpness * (directions @ (np.array(axis) / np.linalg.norm(axis)) - 1))[:, None]

    target = 0.2 + 0.15 * directions[:, 2:] * [1, 0.5, 0] + lobe([1, 1, 1], 40) * [0.8, 0.75, 0.6]
    wanted = torch.tensor(target + lobe([-1, 0.3, 0.2], 12) * [0.1, 0.3, 0.6], dtype=torch.float32)
    # One camera in each direction, looking at one Gaussian.
    viewmats = torch.eye(4).repeat(len(directions), 1, 1)
    viewmats[:, :3, 3] = torch.tensor(directions, dtype=torch.float32)
    mean, radii = torch.zeros(1, 3), torch.ones(len(directions), 1, 2, dtype=torch.int32)
    weights = network_weights(6, 16)
    rng = torch.Generator().manual_seed(0)
    # Axes in all directions with one sharpness, without amplitudes.
    lobes = torch.zeros(1, 45)
    lobes[0, 3:].view(7, 6)[:, :3] = 8 * torch.nn.functional.normalize(torch.randn(7, 3, generator=rng), dim=-1)
    fits = {
        "SphericalHarmonics\n48 numbers": (3, torch.zeros(1, 16, 3), None),
        "SphericalGaussians\n45 numbers": (color_model("SphericalGaussians", 45, 0), lobes, None),
        f"ColorNetwork\n6 numbers and {weights} shared": (
            color_model("ColorNetwork", 6, weights),
            torch.zeros(1, 6),
            0.3 * torch.randn(weights, generator=rng),
        ),
    }
    pictures = {"two highlights, by direction": wanted.reshape(48, 96, 3)}
    for name, (model, features, shared) in fits.items():
        parameters = [p.requires_grad_() for p in (features, shared) if p is not None]
        optimizer = torch.optim.Adam(parameters, lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)
        for _ in range(800):
            found = shade(mean, features, viewmats, radii, model, weights=shared)
            loss = ((found[:, 0] - wanted) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        pictures[f"{name}: {-10 * np.log10(loss.item()):.0f} dB"] = found.detach().reshape(48, 96, 3)
    return pictures


def draw(path: Path) -> None:
    """Write the picture."""
    rows = [splats(), cameras(), colors()]
    figure = plt.figure(figsize=(12, 7.2), dpi=80)
    for part, pictures in zip(figure.subfigures(3, 1), rows, strict=True):
        widths = [picture.shape[1] / picture.shape[0] for picture in pictures.values()]
        part.subplots_adjust(left=0.01, right=0.99, top=0.82, bottom=0.01, wspace=0.05)
        for axis, (name, picture) in zip(part.subplots(1, len(widths), width_ratios=widths), pictures.items(), strict=True):
            axis.imshow(picture.detach().clamp(0, 1))
            axis.set_title(name, fontsize=9)
            axis.axis("off")
    figure.savefig(path)


if __name__ == "__main__":
    draw(Path(__file__).with_name("types.png"))
