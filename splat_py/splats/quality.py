"""What `splat bench --quality` measures: the PSNR of held-out views against the time that training has taken until then."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from splat_py.errors import SplatError
from splat_py.scene.options import DataOptions
from splat_py.splats.config import TrainConfig


@dataclass(frozen=True)
class Point:
    """A moment of a run.

    Attributes:
        seconds, processor_seconds: since its process began, without what evaluating has taken; of processors, user and system.
        psnr, ssim: means over the held-out views. views: the PSNR of each, by name.
    """

    step: int
    gaussians: int
    seconds: float
    processor_seconds: float
    psnr: float
    ssim: float
    views: dict[str, float]


@dataclass(frozen=True)
class Plan:
    """A training run and the steps after which it is evaluated; the last step always is one."""

    data: DataOptions
    config: TrainConfig
    points: int = 8
    device: str | None = None

    @property
    def steps(self) -> list[int]:
        """After how many steps: evenly over the run."""
        return sorted({max(round(self.config.steps * (i + 1) / self.points), 1) for i in range(self.points)})


def measure(plan: Plan) -> list[Point]:
    """Train in a process of its own, so that its set-up counts too, and nothing of another run.

    Raises:
        SplatError: the capture holds out no view, or training fails.
    """
    # As the command line is started: a fresh interpreter.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, plan).result()


def _run(plan: Plan) -> list[Point]:
    from splat_py.gpu.device import get_device
    from splat_py.splats.evaluation import evaluate
    from splat_py.splats.trainer import Trainer

    began, evaluating = np.array([psutil.Process().create_time(), 0.0]), np.zeros(2)

    def now() -> np.ndarray:
        return np.array([time.time(), time.process_time()]) - began

    device = get_device(plan.device)
    dataset = plan.data.load()
    if not dataset.test:
        raise SplatError(f"{dataset.root} holds out no view to measure; use --test-every of 2 or more")
    trainer = Trainer(dataset, plan.config, device=device)
    points = []
    for until in plan.steps:
        while trainer.step < until:
            trainer.advance()
        trainer.finish()
        before = now()
        gaussians = trainer.gaussians()
        scores = evaluate(gaussians, dataset, antialiased=plan.config.antialiased, device=device)
        views = {view.name: view.psnr for view in scores.views}
        seconds, processor_seconds = (float(x) for x in before - evaluating)
        points.append(Point(until, len(gaussians), seconds, processor_seconds, scores.psnr, scores.ssim, views))
        evaluating += now() - before
    return points


def summary(runs: Sequence[Sequence[Point]]) -> list[dict[str, float]]:
    """Of runs that differ by their seed: means at each point, and the standard deviation of PSNR between them."""
    rows = []
    for points in zip(*runs, strict=True):
        row: dict[str, float] = {"step": points[0].step}
        for name in ("gaussians", "seconds", "processor_seconds", "psnr", "ssim"):
            row[name] = float(np.mean([getattr(point, name) for point in points]))
        row["psnr_spread"] = float(np.std([point.psnr for point in points], ddof=1)) if len(points) > 1 else 0.0
        rows.append(row)
    return rows


def captures(data: Sequence[Path], downscales: Sequence[float]) -> Iterator[tuple[str, DataOptions]]:
    """Each capture at each size, with a name; NeRF-synthetic's at the size of its protocol, 800×800, and its own split."""
    for folder in data:
        if (folder / "transforms_train.json").is_file():
            yield folder.name, DataOptions(folder)
            continue
        for downscale in downscales:
            yield f"{folder.name} ÷{downscale:g}" if downscale > 1 else folder.name, DataOptions(folder, downscale=downscale)


def run(plans: Sequence[tuple[str, Plan]], seeds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure each plan with so many seeds: by name, what a JSON file keeps."""
    for name, plan in plans:
        runs = []
        for seed in range(seeds):
            runs.append(measure(replace(plan, config=replace(plan.config, seed=plan.config.seed + seed))))
        found = {
            "steps": plan.config.steps,
            "seeds": seeds,
            "mean": summary(runs),
            "runs": [[asdict(point) for point in points] for points in runs],
        }
        yield name, found
