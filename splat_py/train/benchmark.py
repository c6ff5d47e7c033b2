"""The measurements of `splat bench`: times of a render, forward and backward through torch, and of training steps, whole and by
stage on the device."""

import platform
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from splat_py.gpu.device import Device, process_bytes
from splat_py.render.rasterization import rasterization
from splat_py.scene.dataset import load_dataset
from splat_py.scene.gaussians import SH_C0
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer

Figures = dict[str, float]


def random_scene(count: int, side: int, seed: int = 0) -> tuple[dict[str, np.ndarray], float]:
    """Make small Gaussians all over the image of a camera at the origin: σ 0.5–1.5 px along each axis, depth 2–6, opacity
    0.1–0.9, SH degree 3. Returns activated parameters and the focal length in pixels."""
    rng = np.random.default_rng(seed)
    focal = float(side)
    u, v, z = rng.uniform(0, side, count), rng.uniform(0, side, count), rng.uniform(2, 6, count)
    means = np.stack([(u - side / 2) * z / focal, (v - side / 2) * z / focal, z], axis=1)
    scales = rng.uniform(0.5, 1.5, (count, 3)) * z[:, None] / focal
    quats = rng.normal(size=(count, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    opacities = rng.uniform(0.1, 0.9, count)
    constant = (rng.uniform(0, 1, (count, 1, 3)) - 0.5) / SH_C0
    sh = np.concatenate([constant, rng.normal(0, 0.05, (count, 15, 3))], axis=1)
    arrays = {"means": means, "quats": quats, "scales": scales, "opacities": opacities, "colors": sh}
    return {name: array.astype(np.float32) for name, array in arrays.items()}, focal


def run(device: Device, gaussians: int, side: int, repeats: int, data: Path | None) -> dict[str, Any]:
    """Run all benchmarks; figures are milliseconds, or MiB if the name says so."""
    benchmarks = {f"rasterization {gaussians:,} Gaussians {side}×{side}": render_times(device, gaussians, side, repeats)}
    if data is not None:
        sizes = (8, 10_000), (4, 10_000), (4, 50_000)
        benchmarks |= (step_times(device, data, downscale, count, repeats) for downscale, count in sizes)
    return {**header(device), "benchmarks": benchmarks}


def header(device: Device) -> dict[str, Any]:
    return {
        "date": date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {psutil.cpu_count()} cores",
        "load": round(psutil.getloadavg()[0], 1),
        "device": f"{device.adapter.name} ({device.adapter.backend})",
    }


def render_times(device: Device, count: int, side: int, repeats: int) -> Figures:
    """Time `rasterization` forward and backward through torch, with gradients of the five parameter tensors."""
    arrays, focal = random_scene(count, side)
    tensors = [torch.from_numpy(array).requires_grad_() for array in arrays.values()]
    means, quats, scales, opacities, sh = tensors
    viewmats = torch.eye(4)[None]
    Ks = torch.tensor([[[focal, 0, side / 2], [0, focal, side / 2], [0, 0, 1]]])
    v_images = torch.from_numpy(np.random.default_rng(1).normal(size=(1, side, side, 3)).astype(np.float32))

    def once() -> Figures:
        begin = time.perf_counter()
        images, _, _ = rasterization(
            means, quats, scales, opacities, sh, viewmats, Ks, side, side, sh_degree=3, packed=False, device=device
        )
        middle = time.perf_counter()
        torch.autograd.grad(images, tensors, v_images)
        end = time.perf_counter()
        return {"forward": middle - begin, "backward": end - middle, "forward_and_backward": end - begin}

    figures = medians(once, repeats)
    figures["backward_over_forward"] = figures["backward"] / figures["forward"]
    return figures


def step_times(device: Device, data: Path, downscale: float, count: int, repeats: int) -> tuple[str, Figures]:
    """Time training steps with `count` Gaussians from random points, whole and stage by stage."""
    dataset = load_dataset(data, downscale=downscale)
    # Full-size photographs from the first step.
    config = TrainConfig(init="random", init_num_pts=count, densify_every=1_000_000, coarse_stop=0)
    trainer = Trainer(dataset, config, device=device)
    # One epoch uploads every photograph to the device.
    for _ in dataset.train:
        trainer.advance()
    trainer.finish()
    # At least one step for every view: views differ in cost.
    figures = next_step_times(trainer, max(repeats, len(dataset.train)))
    camera = dataset.views[dataset.train[0]].camera
    figures["device memory MiB"] = device.memory.peak_bytes / 2**20
    figures["process memory MiB"] = process_bytes() / 2**20
    return f"training step {data.name} {camera.width}×{camera.height} {count:,} Gaussians", figures


def next_step_times(trainer: Trainer, repeats: int) -> Figures:
    """Return the median milliseconds of a run's next steps and of their stages."""
    with trainer.device.profiled() as profile:

        def once() -> Figures:
            begin = time.perf_counter()
            trainer.advance()
            trainer.finish()
            step = time.perf_counter() - begin
            stages = profile.collect()
            return {"step": step, **stages, "outside kernels": step - sum(stages.values())}

        return medians(once, repeats)


def medians(once: Callable[[], Figures], repeats: int) -> Figures:
    """Call `once` repeatedly after a warm-up; return the medians of its seconds in milliseconds."""
    once()
    samples: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        for name, seconds in once().items():
            samples[name].append(seconds * 1e3)
    return {name: float(np.median(values)) for name, values in samples.items()}
