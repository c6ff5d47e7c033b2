"""A trainer to copy and change: every stage is a public function, on torch tensors.

    python examples/own_trainer.py                         # 21 pictures of 64 × 64 pixels; seconds
    python examples/own_trainer.py --capture captures/fox --steps 2000

Each step renders a photograph's camera, compares, differentiates, takes Adam's step, and adds and removes Gaussians (Kerbl
et al. 2023). Between these lines, gradients and statistics are tensors: `params["means"].grad`, `meta["radii"]`,
`state["grad2d"]`. `splat.Trainer` does the same in one command buffer a step, with small photographs first and many options.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

import splat_py as splat
from splat_py.demo.scene import write_demo_scene
from splat_py.gsplat.strategy import DefaultStrategy


def render(
    dataset: splat.Dataset, view: int, params: dict[str, torch.nn.Parameter], degree: int
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The picture [H, W, 3] of a view, and what happened on the way."""
    camera = dataset.views[view].camera
    arrays = camera.viewmat, camera.K, dataset.background
    viewmat, K, background = (torch.tensor(array, dtype=torch.float32)[None] for array in arrays)
    scene = params["means"], params["quats"], params["scales"].exp(), params["opacities"].sigmoid()
    sh, size = torch.cat([params["sh0"], params["shN"]], 1), (camera.width, camera.height)
    options: dict[str, Any] = {"sh_degree": degree, "backgrounds": background, "near_plane": dataset.near, "packed": False}
    colors, _, meta = splat.rasterization(*scene, sh, viewmat, K, *size, **options)
    return colors[0], meta


def train(dataset: splat.Dataset, steps: int) -> dict[str, torch.nn.Parameter]:
    if dataset.points is None:
        raise SystemExit(f"{dataset.root} has no points to begin with; choose a capture with points")
    start = splat.Gaussians.from_points(*dataset.points, sh_degree=3)
    # Short runs learn faster, and means slower with time.
    haste = min((30_000 / steps) ** 0.5, 8.0)
    begin = {
        "means": (start.means, 1.6e-4 * dataset.scene_scale * haste),
        "quats": (start.quats, 1e-3 * haste**0.5),
        "scales": (start.log_scales, 5e-3 * haste**0.5),
        "opacities": (start.logit_opacities, 5e-2 * haste**0.5),
        "sh0": (start.sh[:, :1].clone(), 2.5e-3 * haste),
        "shN": (start.sh[:, 1:].clone(), 2.5e-3 * haste / 20),
    }
    params = {name: torch.nn.Parameter(values) for name, (values, _) in begin.items()}
    adam = {name: torch.optim.Adam([params[name]], rate, eps=1e-15, fused=True) for name, (_, rate) in begin.items()}
    slower = torch.optim.lr_scheduler.ExponentialLR(adam["means"], 0.01 ** (1 / steps))
    every = max(min(steps // 20, 100), 25)
    strategy = DefaultStrategy(refine_start_iter=steps // 50, refine_stop_iter=steps // 2, refine_every=every)
    strategy.check_sanity(params, adam)
    state = strategy.initialize_state(dataset.scene_scale)
    photographs = {view: torch.tensor(dataset.image(view)[..., :3]) / 255 for view in dataset.train}
    order = torch.Generator().manual_seed(42)
    for step in range(steps):
        view = dataset.train[int(torch.randint(len(dataset.train), (), generator=order))]
        picture, meta = render(dataset, view, params, min(12 * step // steps, 3))
        loss = splat.photometric_loss(picture, photographs[view])
        strategy.step_pre_backward(params, adam, state, step, meta)
        loss.backward()
        for optimizer in adam.values():
            optimizer.step()
            optimizer.zero_grad()
        slower.step()
        strategy.step_post_backward(params, adam, state, step, meta)
        if step % 20 == 0:
            print(f"step {step:5}: {len(params['means']):,} Gaussians, loss {loss:.4f}")
    return params


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--capture", type=Path, help="COLMAP, transforms.json or NeRF-synthetic, with points, without masks")
    options.add_argument("--steps", type=int, default=300)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dataset = splat.load_dataset(given.capture or write_demo_scene(Path(folder) / "scene", views=24, size=64))
        params = train(dataset, given.steps)
        # One photograph of every eight was held out.
        view = dataset.test[0]
        with torch.no_grad():
            picture, _ = render(dataset, view, params, 3)
        error = (picture - torch.tensor(dataset.image(view)[..., :3]) / 255).square().mean()
    print(f"{len(params['means']):,} Gaussians, {-10 * error.log10():.1f} dB on a view that was held out")


if __name__ == "__main__":
    main()
