"""Image splatting: both ways to shortlist in one run, a training step stage by stage, and the quality of a fit.

    python benchmarks/image.py --out benchmarks/image.json [--quality]
    python benchmarks/image.py --out benchmarks/image.json --autodiff

Medians in milliseconds. The picture is scikit-image's astronaut (512×512), with 40,960 blobs as they are after a few steps of a
fit.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import skimage.data

from splat_py.base.files import write_json
from splat_py.gpu.device import Device, get_device
from splat_py.image.fitting import FitReport, ImageFitter, blobs_on_detail, fit
from splat_py.image.options import Method
from splat_py.image.pictures import Picture, to_picture
from splat_py.image.rasterizers import Rasterizer, rasterizer_for
from splat_py.train.benchmark import header

BLOBS = 40_960
# Blobs that the published loop differentiates automatically, at 512×512.
PUBLISHED_BLOBS = 200


def pass_times(device: Device, picture: Picture, params: np.ndarray, repeats: int) -> dict[str, float]:
    """A render, and a backward pass (every list forward and backward, and the sort), both ways in turns."""
    height, width, _ = picture.shape
    ways: dict[str, Rasterizer] = {
        "single kernel": rasterizer_for(device, params.shape[1], width, height, "group"),
        "tile sort": rasterizer_for(device, params.shape[1], width, height, "tiles"),
    }
    parameters, target = device.memory.array(params), device.memory.array(picture)
    image, gradients = device.memory.empty(picture.shape), device.memory.empty(params.shape)
    for rasterizer in ways.values():
        rasterizer.reserve(parameters)

    def render(rasterizer: Rasterizer) -> None:
        recorder = device.record()
        rasterizer.record_render(recorder, parameters, image)
        recorder.submit()

    def backward(rasterizer: Rasterizer) -> None:
        recorder = device.record()
        rasterizer.record_lists(recorder, parameters)
        rasterizer.record_gradients(recorder, parameters, target, gradients)
        recorder.submit()

    samples: dict[str, list[float]] = defaultdict(list)
    for repeat in range(repeats + 1):
        for name, rasterizer in ways.items():
            for what, function in (("render", render), ("backward", backward)):
                begin = time.perf_counter()
                function(rasterizer)
                if repeat:
                    samples[f"{what}, {name}"].append((time.perf_counter() - begin) * 1e3)
    figures = {name: float(np.median(values)) for name, values in samples.items()}
    figures["backward, ratio"] = figures["backward, single kernel"] / figures["backward, tile sort"]
    return figures


def step_times(device: Device, picture: Picture, params: np.ndarray, repeats: int) -> dict[str, float]:
    """A training step, whole and stage by stage."""
    fitter = ImageFitter(picture, params, 1000, device=device)
    samples: dict[str, list[float]] = defaultdict(list)
    with device.profiled() as profile:
        for repeat in range(repeats + 3):
            begin = time.perf_counter()
            fitter.advance()
            fitter.finish()
            step = time.perf_counter() - begin
            stages = profile.collect()
            if repeat < 3:
                continue
            for name, seconds in {"step": step, **stages, "outside kernels": step - sum(stages.values())}.items():
                samples[name].append(seconds * 1e3)
    return {name: float(np.median(values)) for name, values in samples.items()}


def crossover(device: Device, picture: Picture, repeats: int) -> dict[str, float]:
    """Backward passes of small problems: the number of (blob, workgroup) pairs from which sorting is faster."""
    figures = {}
    for side, blobs in ((32, 64), (64, 64), (64, 256), (64, 1024), (128, 256), (128, 1024), (128, 4096), (256, 1024)):
        small = np.ascontiguousarray(picture[:side, :side])
        params = blobs_on_detail(small, blobs, np.random.default_rng(0))
        times = pass_times(device, small, params, repeats)
        pairs = blobs * -(-side // 8) * -(-side // 4)
        figures[f"{side}×{side}, {blobs} blobs, {pairs} pairs"] = times["backward, ratio"]
    return figures


def growth(device: Device, picture: Picture, repeats: int) -> dict[str, Any]:
    """Processor time of a step over the number of blobs: autodiff beside the methods that undo states, in turns."""
    figures: dict[str, Any] = {}
    for side, blobs in (*((128, blobs) for blobs in (50, 100, 200, 400)), (len(picture), PUBLISHED_BLOBS)):
        stride = len(picture) // side
        small = np.ascontiguousarray(picture[::stride, ::stride])
        params = blobs_on_detail(small, blobs, np.random.default_rng(0))
        methods: tuple[Method, ...] = ("autodiff", "group", "tiles")
        ways = {method: rasterizer_for(device, blobs, side, side, method) for method in methods}
        fitters = {method: ImageFitter(small, params, 1000, device=device, rasterizer=way) for method, way in ways.items()}
        samples: dict[str, list[float]] = defaultdict(list)
        for repeat in range(repeats + 1):
            for method, fitter in fitters.items():
                steps = 1 if method == "autodiff" else 20
                begin = time.process_time()
                for _ in range(steps):
                    fitter.advance()
                fitter.finish()
                # The first turn compiles.
                if repeat:
                    samples[method].append((time.process_time() - begin) / steps * 1e3)
        found = {method: float(np.median(values)) for method, values in samples.items()}
        undo = min(found["group"], found["tiles"])
        figures[f"{side}×{side}, {blobs} blobs"] = {**found, "autodiff ÷ the faster undo": found["autodiff"] / undo}
    # The last picture and its blobs have the published sizes.
    figures["hours of the published 10,000 steps, extrapolated"] = {name: ms * 1e4 / 3.6e6 for name, ms in found.items()}
    return {**header(device), "processor ms a step": figures}


def quality(picture: Picture, steps: int, **options: Any) -> dict[str, float]:
    """PSNR in dB, and the time that the fit took."""
    begin = time.perf_counter()
    curve: dict[int, float] = {}

    def note(report: FitReport) -> None:
        curve[report.step] = report.psnr

    result = fit(picture, BLOBS, steps, on_report=note, **options)
    return {"psnr": result.psnr, "psnr at the beginning": curve[0], "seconds": time.perf_counter() - begin}


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON; what it has of other parts stays")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quality", action="store_true", help="also fit for 300 and 1,000 steps: minutes")
    parser.add_argument("--autodiff", action="store_true", help="measure only autodiff over the number of blobs: minutes")
    options = parser.parse_args()
    device = get_device()
    picture = to_picture(skimage.data.astronaut())
    content = json.loads(options.out.read_text(encoding="utf-8")) if options.out and options.out.exists() else {}
    figures: dict[str, Any] = content.setdefault("benchmarks", {})

    def measure(name: str, function: Callable[[], dict[str, Any]]) -> None:
        figures[name] = function()
        print(name, json.dumps(figures[name], indent=2, ensure_ascii=False), flush=True)

    if options.autodiff:
        measure("autodiff over blobs", lambda: growth(device, picture, options.repeats))
    else:
        content |= header(device)
        warm = ImageFitter(picture, blobs_on_detail(picture, BLOBS, np.random.default_rng(42)), 300, device=device)
        for _ in range(30):
            warm.advance()
        params = warm.params()
        measure("passes 512×512, 40,960 blobs, ms", lambda: pass_times(device, picture, params, options.repeats))
        measure("step 512×512, 40,960 blobs, ms", lambda: step_times(device, picture, params, 4 * options.repeats))
        measure("single kernel / tile sort, small problems", lambda: crossover(device, picture, 4 * options.repeats))
    if options.quality:
        for steps in (300, 1000):
            measure(f"quality after {steps} steps", lambda steps=steps: quality(picture, steps))
            measure(
                f"quality after {steps} steps from random blobs",
                lambda steps=steps: quality(picture, steps, init="random"),
            )
    if options.out is not None:
        write_json(options.out, content)


if __name__ == "__main__":
    main()
