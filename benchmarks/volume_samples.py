"""Time `volume.render` and its backward pass against the number of samples a ray, and measure their device memory.

    python benchmarks/volume_samples.py --out benchmarks/volume_samples.json --plot benchmarks/volume_samples.svg

One view of 128×128 pixels of a grid of 32³ in the unit cube, degree 1, so thin that no ray ends early and nowhere empty: only
the steps a unit length differ. The middle rays have as many samples as steps. Medians in milliseconds by the device's clock,
of rounds over all numbers of steps, so a disturbance falls on all of them. `lines` are the straight lines through them,
`fixed` + `each` · steps, and `off`, the largest relative error of a line. `held` is device memory between the passes and `peak`
the most during both, in bytes.
"""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from splat_py.base.files import atomic_path, write_json
from splat_py.gpu.device import Device, get_device
from splat_py.gpu.kernels import Profile
from splat_py.scene.camera import Camera
from splat_py.train.benchmark import header
from splat_py.volume.device_field import Box, March, RayImage, Rays, camera_rays
from splat_py.volume.grid import Volume, pack, render

STEPS = (16, 32, 64, 128, 256, 512, 1024)
SIDE, RESOLUTION, COEFFICIENTS = 128, 32, 4
UNIT_CUBE = [[0, 0, 0], [1, 1, 1]]
PASSES = ("forward", "replay", "replay with rays")


@dataclass
class Options:
    """Options of this benchmark."""

    # Write the figures here, as JSON, instead of to the terminal.
    out: Path | None = None
    # Draw the figures here, as SVG.
    plot: Path | None = None
    # Rounds; the median is reported.
    repeats: int = 5


def grid() -> tuple[torch.Tensor, torch.Tensor]:
    """Density and coefficients of the grid."""
    shape = (RESOLUTION,) * 3
    random = torch.Generator().manual_seed(0)
    return torch.full(shape, 0.1), torch.randn((*shape, COEFFICIENTS, 3), generator=random) * 0.2


def times(device: Device, rays: Rays, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each pass, for each number of steps."""
    memory = device.memory
    volume = Volume(device, memory.array(pack(*grid())))
    background, image = memory.array(np.zeros(3, np.float32)), RayImage.empty(device, rays.count)
    v_image = RayImage(
        *(memory.array(np.full(a.shape, 1e-6, np.float32)) for a in (image.colors, image.transmittances, image.depths))
    )
    v_rays = Rays(*(memory.empty((rays.count, 3)) for _ in range(2)))
    v_grid = volume.empty_gradients()
    profile = Profile(device.handle)

    def run(steps: int, kind: str) -> float:
        recorder = device.record(profile)
        march = March(Box.of(UNIT_CUBE), float(steps), skip_empty=False)
        if kind == "forward":
            volume.record_forward(recorder, march, rays, background, image)
        else:
            wanted = v_rays if kind == "replay with rays" else None
            volume.record_backward(recorder, march, rays, background, image, v_image, v_grid, v_rays=wanted)
        recorder.submit()
        return 1e3 * profile.collect()["forward" if kind == "forward" else "replay"]

    recorder = device.record()
    volume.record_occupancy(recorder, March(Box.of(UNIT_CUBE), 1.0, skip_empty=False))
    recorder.clear(v_grid)
    recorder.submit()
    rounds = [[[run(steps, kind) for steps in STEPS] for kind in PASSES] for _ in range(repeats + 1)]
    medians = np.median(rounds[1:], axis=0)
    return {kind: row.tolist() for kind, row in zip(PASSES, medians, strict=True)}


def bytes_taken(device: Device, rays: Rays) -> dict[str, list[int]]:
    """Device memory of `render` and its backward pass, for each number of steps."""
    memory = device.memory
    ends = [torch.from_numpy(a.numpy().copy()) for a in (rays.origins, rays.directions)]
    held, peak = [], []
    # The first round repeats, as its first run reserves memory.
    for steps in (STEPS[0], *STEPS):
        leaves = [t.requires_grad_() for t in grid()]
        gc.collect()
        before = memory.live_bytes
        memory.peak_bytes = before
        colors, *_ = render(*leaves, *ends, UNIT_CUBE, steps_per_unit=steps)
        held.append(memory.live_bytes - before)
        colors.sum().backward()
        peak.append(memory.peak_bytes - before)
        del colors, leaves
    return {"held": held[1:], "peak": peak[1:]}


def line(milliseconds: list[float]) -> dict[str, float]:
    """The straight line closest to the times, weighted by relative error."""
    each, fixed = np.polyfit(STEPS, milliseconds, 1, w=1 / np.array(milliseconds))
    off = np.abs((fixed + each * np.array(STEPS)) / milliseconds - 1).max()
    return {"fixed": float(fixed), "each": float(each), "off": float(off)}


def draw(path: Path, found: dict[str, list[float]]) -> None:
    """Draw times against samples, both logarithmic, and the straight lines through them."""
    width, height, left, bottom = 620, 400, 70, 50
    x_range = np.log2([STEPS[0], STEPS[-1]])
    every = np.log10(np.concatenate(list(found.values())))
    y_range = np.array([np.floor(every.min()), np.ceil(every.max())])

    def place(steps: Any, milliseconds: Any) -> NDArray[np.float64]:
        x = left + (np.log2(steps) - x_range[0]) / np.ptp(x_range) * (width - left - 150)
        y = height - bottom - (np.log10(milliseconds) - y_range[0]) / np.ptp(y_range) * (height - bottom - 30)
        return np.stack(np.broadcast_arrays(x, y), axis=-1)

    def text(at: NDArray[np.float64], words: str, anchor: str = "middle", color: str = "#333") -> str:
        return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="{color}">{words}</text>'

    parts = []
    for steps in STEPS:
        low, high = place(steps, 10.0**y_range)
        parts.append(f'<line x1="{low[0]:.1f}" y1="{low[1]:.1f}" x2="{high[0]:.1f}" y2="{high[1]:.1f}" stroke="#ddd"/>')
        parts.append(text(low + np.array([0, 18]), str(steps)))
    for power in range(int(y_range[0]), int(y_range[1]) + 1):
        begin, end = place(np.array([STEPS[0], STEPS[-1]]), 10.0**power)
        parts.append(f'<line x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" stroke="#ddd"/>')
        parts.append(text(begin + np.array([-8, 4]), f"{10.0**power:g}", "end"))
    for color, (name, milliseconds) in zip(("#1f77b4", "#d62728", "#2ca02c"), found.items(), strict=True):
        points = place(np.array(STEPS), milliseconds)
        fitted = line(milliseconds)
        steps = np.geomspace(STEPS[0], STEPS[-1], 40)
        straight = place(steps, fitted["fixed"] + fitted["each"] * steps)
        for shown, style in (
            (straight, f'stroke="{color}" stroke-dasharray="2 4"'),
            (points, f'stroke="{color}" stroke-width="2"'),
        ):
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in shown)
            parts.append(f'<polyline points="{joined}" fill="none" {style}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
        parts.append(text(points[-1] + np.array([8, 4]), name, "start", color))
    parts.append(
        text(np.array([left + (width - left - 150) / 2, height - 8]), "samples a unit length (dotted: straight lines)")
    )
    parts.append(text(np.array([10, 16]), "milliseconds", "start"))
    svg = "\n".join(parts)
    with atomic_path(path) as temporary:
        temporary.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n{svg}\n</svg>\n',
            encoding="utf-8",
        )


def main(options: Options) -> None:
    """Measure, and write the figures."""
    device = get_device()
    recorder = device.record()
    rays = camera_rays(device, recorder, [Camera.look_at((0.5, 0.5, -0.8), (0.5, 0.5, 0.5), (0, 1, 0), 45, SIDE, SIDE)])
    recorder.submit()
    found = times(device, rays, options.repeats)
    results: dict[str, Any] = {
        **header(device),
        "steps a unit": STEPS,
        "milliseconds": found,
        "lines": {kind: line(row) for kind, row in found.items()},
        "bytes": bytes_taken(device, rays),
    }
    if options.plot is not None:
        draw(options.plot, found)
    if options.out is None:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        write_json(options.out, results)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
