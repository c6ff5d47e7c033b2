"""A long run with densification: memory stays flat, and every number finite. `make soak` takes 20,000 steps."""

import gc
import os
from pathlib import Path

import numpy as np
import psutil

from splat_py import load_dataset
from splat_py.demo.scene import write_demo_scene
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import StepReport, Trainer

STEPS = int(os.environ.get("SOAK_STEPS", "1000"))
# Memory in bytes that allocators and drivers may keep: far less than a leak of 4 KiB a step in the long run.
HOST_SLACK = 24 << 20
MOST_GAUSSIANS = 500
# 4 KiB for each of these Gaussians, with lists, is generous; and 8 MiB are for images.
MOST_DEVICE_BYTES = MOST_GAUSSIANS * 4096 + (8 << 20)


def test_memory_is_flat_and_numbers_are_finite(tmp_path: Path) -> None:
    dataset = load_dataset(write_demo_scene(tmp_path / "demo", views=3, size=16), test_every=0)
    config = TrainConfig(
        steps=STEPS,
        sh_degree=1,
        sh_interval=1,
        init="random",
        init_num_pts=100,
        densify_every=10,
        grow_grad2d=1e-5,
        opacity_reset_every=max(STEPS // 7, 150),
        max_gaussians=MOST_GAUSSIANS,
    )
    trainer = Trainer(dataset, config)
    memory, process = trainer.device.memory, psutil.Process()
    live_before = memory.live_bytes
    host, counts = {}, set()

    def watch(report: StepReport) -> None:
        assert np.isfinite(list(vars(report.values).values())).all(), report
        counts.add(report.gaussians)
        assert memory.live_bytes - live_before < MOST_DEVICE_BYTES, report
        if report.step % (STEPS // 10) == STEPS // 10 - 1:
            gc.collect()
            host[report.step] = process.memory_info().rss
            print(f"step {report.step + 1}: {report.gaussians} Gaussians, {host[report.step] >> 20} MiB, {report.values}")

    gaussians = trainer.fit(watch)
    assert trainer.step == STEPS and len(counts) > 10 and max(counts) <= MOST_GAUSSIANS
    for tensor in (gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, gaussians.sh):
        assert np.isfinite(np.asarray(tensor)).all()
    # Not from the beginning, when kernels are compiled and pools fill.
    _, _, settled, *later = host.values()
    assert max(later) - settled < HOST_SLACK, host
