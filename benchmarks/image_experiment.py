"""The published experiment of image splatting, run to its end: PSNR over time for each way in which a pixel finds its blobs.

    python benchmarks/image_experiment.py --methods tiles group autodiff --out benchmarks/image_experiment.json \
        --plot benchmarks/image_experiment.svg

512×512 pixels of scikit-image's astronaut, 10,000 steps: 40,960 blobs by tiles and by the single kernel (`group`), 200 by
`autodiff`. The picture is compared about every 100 steps, which counts as no time, and the curve so far is written then:
--seconds, of processor time, ends a curve early, and a second call with other --methods or --blobs adds to the same file. If a
curve ends early, the JSON has its last step, and `extrapolated` is the time of all steps at the same pace.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import skimage.data
import tyro
from numpy.typing import NDArray

from splat_py.base.files import atomic_path, write_json
from splat_py.gpu.device import get_device
from splat_py.image.fitting import ImageFitter, blobs_on_detail
from splat_py.image.pictures import Picture, read_picture, to_picture
from splat_py.image.rasterizers import rasterizer_for
from splat_py.train.benchmark import header

BLOBS = {"tiles": 40_960, "group": 40_960, "autodiff": 200}
SIDE = 512
NOTE = "others use the machine as well: compare seconds of processors, not those by the clock"
# Processor seconds between two points, if steps take long.
LONGEST = 30.0


@dataclass
class Options:
    """Options of this benchmark."""

    # Curves to measure; with none, the stored ones are only drawn.
    methods: tuple[Literal["tiles", "group", "autodiff"], ...] = ("tiles", "group", "autodiff")
    # JSON file; curves of other methods stay in it.
    out: Path = Path("benchmarks/image_experiment.json")
    # SVG file.
    plot: Path | None = None
    # Steps of a run; the learning rates fall over them.
    steps: int = 10_000
    # Steps between two points of a curve.
    every: int = 100
    # End a curve after this much processor time.
    seconds: float = 900.0
    # A number of blobs other than the experiment's; it appears in the curves' names.
    blobs: int | None = None
    # A picture to fit a square of; its name appears in the curves' names.
    picture: Path | None = None


def square(path: Path) -> Picture:
    """The middle 512×512 pixels of a picture file."""
    import cv2

    picture = read_picture(path)
    side = min(picture.shape[:2])
    top, left = ((size - side) // 2 for size in picture.shape[:2])
    cut = picture[top : top + side, left : left + side]
    return np.ascontiguousarray(cv2.resize(cut, (SIDE, SIDE), interpolation=cv2.INTER_AREA), np.float32)


def measure(method: Any, options: Options, picture: Picture, name: str) -> None:
    """Measure one curve, and write it to the file as it grows."""
    device = get_device()
    blobs = options.blobs or BLOBS[method]
    params = blobs_on_detail(picture, blobs, np.random.default_rng(42))
    rasterizer = rasterizer_for(device, blobs, SIDE, SIDE, method)
    # Compile first.
    warm = ImageFitter(picture, params, options.steps, device=device, rasterizer=rasterizer)
    warm.advance()
    warm.finish()
    fitter = ImageFitter(picture, params, options.steps, device=device, rasterizer=rasterizer)
    curve: dict[str, Any] = {"blobs": blobs, "steps": options.steps, **header(device), "note": NOTE}
    points = [[0, 0.0, 0.0, fitter.report().psnr]]
    wall = busy = 0.0
    while fitter.step < options.steps and busy < options.seconds:
        begin, began = time.perf_counter(), time.process_time()
        goal = min(fitter.step // options.every * options.every + options.every, options.steps)
        while fitter.step < goal and time.process_time() - began < LONGEST:
            fitter.advance()
            # Steps that are repeated because lists lacked capacity count, too.
            if fitter.step == goal:
                fitter.finish()
        fitter.finish()
        wall, busy = wall + time.perf_counter() - begin, busy + time.process_time() - began
        points.append([fitter.step, round(wall, 2), round(busy, 2), round(fitter.report().psnr, 3)])
        curve |= {"reached": fitter.step, "finished": fitter.step == options.steps}
        if fitter.step < options.steps:
            curve["extrapolated processor seconds of all steps"] = round(busy / fitter.step * options.steps)
        else:
            curve.pop("extrapolated processor seconds of all steps", None)
        curve["step, seconds, processor seconds, PSNR"] = points
        found = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
        write_json(options.out, found | {name: curve})
        print(name, points[-1], flush=True)


def draw(path: Path, curves: dict[str, Any]) -> None:
    """Draw PSNR against the logarithm of processor time, as SVG."""
    left, top, width, height, right, bottom = 60, 30, 760, 400, 190, 50
    points = {name: np.array(curve["step, seconds, processor seconds, PSNR"])[1:, 2:] for name, curve in curves.items()}
    every = np.concatenate(list(points.values()))
    low = np.array([np.floor(np.log10(every[:, 0].min())), np.floor(every[:, 1].min() / 5) * 5])
    high = np.array([np.ceil(np.log10(every[:, 0].max()) * 4) / 4, np.ceil(every[:, 1].max() / 5) * 5])

    def place(seconds: Any, psnr: Any) -> NDArray[np.float64]:
        x = (np.log10(seconds) - low[0]) / (high[0] - low[0]) * (width - left - right) + left
        y = height - bottom - (np.asarray(psnr) - low[1]) / (high[1] - low[1]) * (height - top - bottom)
        return np.stack(np.broadcast_arrays(x, y), axis=-1)

    parts = []

    def text(at: Any, words: str, anchor: str = "middle", color: str = "#333") -> None:
        place = f'x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}"'
        parts.append(f'<text {place} fill="{color}" font-size="13">{words}</text>')

    def line(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
        parts.append(f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="#ddd"/>')

    for power in range(int(low[0]), int(np.floor(high[0])) + 1):
        line(place(10.0**power, low[1]), place(10.0**power, high[1]))
        text(place(10.0**power, low[1]) + np.array([0, 18]), f"{10.0**power:g}")
    for psnr in np.arange(low[1], high[1] + 1, 5):
        line(place(10.0 ** low[0], psnr), place(10.0 ** high[0], psnr))
        text(place(10.0 ** low[0], psnr) + np.array([-8, 4]), f"{psnr:g}", "end")
    # Put labels beside the ends of their curves, one below the other if these come together.
    heights: dict[str, float] = {}
    for name in sorted(points, key=lambda name: -points[name][-1, 1]):
        at = place(*points[name][-1])[1]
        heights[name] = max([at, *(height + 36 for height in heights.values())])
    for color, (name, found) in zip(("#1f77b4", "#d62728", "#2ca02c", "#9467bd"), points.items(), strict=False):
        at = place(found[:, 0], found[:, 1])
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="2"/>')
        curve = curves[name]
        parts.append(f'<circle cx="{at[-1, 0]:.1f}" cy="{at[-1, 1]:.1f}" r="3" fill="{color}"/>')
        label = np.array([width - right + 12, heights[name]])
        text(label + np.array([0, -4]), name if "blobs" in name else f"{name}, {curve['blobs']:,} blobs", "start", color)
        text(label + np.array([0, 12]), f"{curve['reached']:,} of {curve['steps']:,} steps", "start", color)
    text(np.array([(left + width - right) / 2, height - 10]), "seconds of processors")
    text(np.array([10, 18]), "PSNR, dB", "start")
    body = "\n".join(parts)
    with atomic_path(path) as temporary:
        temporary.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n',
            encoding="utf-8",
        )


def main(options: Options) -> None:
    """Measure the curves, write and draw them."""
    picture = to_picture(skimage.data.astronaut()) if options.picture is None else square(options.picture)
    for method in options.methods:
        parts = [method, options.picture and options.picture.stem, options.blobs and f"{options.blobs:,} blobs"]
        measure(method, options, picture, ", ".join(part for part in parts if part))
    if options.plot is not None:
        draw(options.plot, json.loads(options.out.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
