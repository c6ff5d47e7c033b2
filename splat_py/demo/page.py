"""The pages that `splat demo` writes: each system with its pictures, curve and times, in files without scripts."""

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from splat_py.base.files import atomic_path
from splat_py.fit.run_folder import recorded_metrics
from splat_py.fit.steps import psnr_of
from splat_py.gpu.device import Device
from splat_py.image.fitting import FitReport, fit
from splat_py.image.pictures import read_picture
from splat_py.portable import splat, splat_slang
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.pictures import write_image
from splat_py.train.run import RunFolder

_WIDTH, _HEIGHT, _MARGIN = 520, 340, 48
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
# Sides of the blobs' picture, as multiples of the photograph's.
_ENLARGED = 4
# Points of a curve are means over so many around them, since single photographs differ by several dB.
_SMOOTHED = 9
# Steps to the flat colour, the share of the remaining way that a step goes, and repetitions of a timed pass.
_STEPS, _SHARE, _REPEATS = 40, 0.15, 5


@dataclass(frozen=True)
class Curve:
    """A label, and points: x, y, and half the length of the bar through it, 0 for none."""

    label: str
    points: Sequence[tuple[float, float, float]]


def curves_svg(curves: Sequence[Curve], x_label: str, y_label: str) -> str:
    """Return an `<svg>` of curves, each with at least one point, with x from 0."""
    points = [point for curve in curves for point in curve.points]
    last = max(max(x for x, _, _ in points), 1e-9)
    low = min(y - bar for _, y, bar in points)
    high = max(max(y + bar for _, y, bar in points), low + 1e-3)

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = x / last, (y - low) / (high - low)
        return _MARGIN + across * (_WIDTH - 2 * _MARGIN), _HEIGHT - _MARGIN - up * (_HEIGHT - 2 * _MARGIN)

    parts = []
    left, bottom = at(0, low)
    for label, y in _ticks(low, high):
        _, down = at(0, y)
        line = f'x1="{left}" y1="{down:.1f}" x2="{_WIDTH - _MARGIN}" y2="{down:.1f}"'
        parts.append(f'<line {line} stroke="currentColor" stroke-opacity="0.15"/>')
        parts.append(f'<text x="{left - 6}" y="{down + 4:.1f}" font-size="12" text-anchor="end">{label}</text>')
    for label, x in _ticks(0, last):
        across, _ = at(x, low)
        parts.append(f'<text x="{across:.1f}" y="{bottom + 16}" font-size="12" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{_MARGIN}" y="20" font-size="13">{escape(y_label)}</text>')
    parts.append(f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 8}" font-size="13" text-anchor="end">{escape(x_label)}</text>')
    for i, curve in enumerate(curves):
        color = _COLORS[i % len(_COLORS)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(x, y) for x, y, _ in curve.points))
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{color}" stroke-width="2"/>')
        for x, y, bar in curve.points:
            (across, top), (_, foot) = at(x, y + bar), at(x, y - bar)
            if bar:
                parts.append(f'<line x1="{across:.1f}" y1="{top:.1f}" x2="{across:.1f}" y2="{foot:.1f}" stroke="{color}"/>')
        down = _HEIGHT - _MARGIN - 16 * (len(curves) - i)
        place = f'x="{_WIDTH - _MARGIN}" y="{down}" font-size="13"'
        parts.append(f'<text {place} style="fill: {color}" text-anchor="end">{escape(curve.label)}</text>')
    body = "\n".join(parts)
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" fill="currentColor">\n{body}\n</svg>'


def _ticks(low: float, high: float) -> list[tuple[str, float]]:
    """Return labels and values of the round numbers between two."""
    wanted = (high - low) / 5
    power = math.floor(math.log10(wanted))
    step = next(nice * 10.0**power for nice in (1, 2, 5, 10) if nice * 10.0**power >= wanted * 0.999)
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [(f"{i * step:.{max(-math.floor(math.log10(step)), 0)}f}", i * step) for i in range(first, last + 1)]


@dataclass(frozen=True)
class Section:
    title: str  # plain text, like `text`
    text: str
    facts: Sequence[tuple[str, str]]  # names and values, time and PSNR first
    curve: Curve  # PSNR in dB over seconds
    large: Sequence[tuple[Path, str]] = ()  # pictures and videos beside the curve, and their captions
    figures: Sequence[tuple[Path, str]] = ()  # small ones below
    links: Sequence[tuple[Path, str]] = ()  # files and the texts of their links


def write_page(
    path: Path, title: str, summary: str, sections: Sequence[Section], links: Sequence[tuple[Path, str]] = ()
) -> None:
    """Write a page atomically, with links to files and their texts at its end; all addresses are relative to it."""
    body = "\n".join(_section(path.parent, section) for section in sections) + _links(path.parent, links)
    write_html(path, title, summary, body)


def write_html(path: Path, title: str, summary: str, body: str) -> None:
    """Write a page atomically; `title` and `summary` are plain text, and `body` is HTML."""
    template = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    text = template.substitute(title=escape(title), summary=escape(summary), sections=body)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _section(folder: Path, section: Section) -> str:
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in section.facts)
    links, curve = _links(folder, section.links), curves_svg([section.curve], "seconds", "PSNR, dB")
    large, figures = ("".join(_figure(folder, *figure) for figure in part) for part in (section.large, section.figures))
    return (
        f"<section>\n<h2>{escape(section.title)}</h2>\n<p>{escape(section.text)}</p>\n<dl>{facts}</dl>\n{links}\n"
        f'<div class="wide">{large}<figure>{curve}</figure></div>\n<div class="many">{figures}</div>\n</section>'
    )


def _links(folder: Path, links: Sequence[tuple[Path, str]]) -> str:
    return "".join(f'<p><a href="{_address(folder, file)}">{escape(text)}</a></p>' for file, text in links)


def _figure(folder: Path, path: Path, caption: str) -> str:
    address, caption = _address(folder, path), escape(caption)
    if path.suffix in (".mp4", ".webm"):
        shown = f'<video src="{address}" aria-label="{caption}" controls autoplay muted loop playsinline></video>'
    else:
        shown = f'<img src="{address}" alt="{caption}">'
    return f"<figure>{shown}<figcaption>{caption}</figcaption></figure>"


def _address(folder: Path, file: Path) -> str:
    """Return a relative address, with the special characters of the file's name escaped."""
    return "./" + quote(Path(os.path.relpath(file, folder)).as_posix())


def scene_section(folder: RunFolder, video: Path) -> Section:
    metrics = folder.metrics()
    return Section(
        "A scene of 3D Gaussians",
        "Trained on photographs and their cameras. Held-out photographs are compared with renders. The curve falls where "
        "training continues with larger photographs, which are harder.",
        [
            _time(metrics["seconds"]),
            ("PSNR, held out", f"{metrics['held_out']['psnr']:.2f} dB"),
            ("SSIM, held out", f"{metrics['held_out']['ssim']:.4f}"),
            ("steps", f"{metrics['steps']:,}"),
            ("Gaussians", f"{metrics['gaussians']:,}"),
        ],
        _smoothed(metrics),
        [(video, "Turntable")],
        _pairs(folder.pictures.glob("*.png"), "render"),
        [(folder.page, "Walk through the scene"), (folder.scene, "The scene as a PLY")],
    )


def image_section(
    photograph: Path, out: Path, blobs: int, steps: int, device: Device, on_report: Callable[[FitReport], None]
) -> Section:
    """Fit 2D Gaussians to a photograph, and draw them enlarged into the folder `out`."""
    curve, begin = [], time.perf_counter()

    def report(now: FitReport) -> None:
        curve.append((time.perf_counter() - begin, now.psnr))
        on_report(now)

    result = fit(read_picture(photograph), blobs, steps, device=device, on_report=report)
    seconds = time.perf_counter() - begin
    out.mkdir(exist_ok=True)
    large = out / "fit.png"
    write_image(large, result.render(_ENLARGED * result.width, device=device))
    result.save(out / "blobs.safetensors")
    return Section(
        "An image as 2D Gaussians",
        "Each blob is nine numbers, drawn by the rasteriser of the scene above and moved by the gradients that Slang "
        f"derives. Any size can be drawn: the picture here has {_ENLARGED} times the photograph's sides.",
        [_time(seconds), ("PSNR", f"{result.psnr:.2f} dB"), ("steps", f"{steps:,}"), ("Gaussians", f"{blobs:,}")],
        _curve("the photograph", curve),
        [(photograph, "Photograph"), (large, f"{blobs:,} Gaussians, drawn {_ENLARGED} times as large")],
    )


def field_section(folder: Path) -> Section:
    metrics = recorded_metrics(folder / "metrics.json")
    first, *others = _pairs((folder / "held-out").glob("*.png"), "radiance field")
    return Section(
        "A radiance field by path replay",
        "Density and view-dependent colour in a grid of voxels. Gradients come from marching each ray a second time and "
        "undoing it step by step, so that nothing is stored along rays.",
        [
            _time(metrics["seconds"]),
            ("PSNR, held out", f"{metrics['held_out']['psnr']:.2f} dB"),
            ("steps", f"{metrics['steps']:,}"),
            ("voxels", "×".join(map(str, metrics["curve"][-1]["voxels"]))),
        ],
        _smoothed(metrics),
        [first],
        others,
    )


def flat_color_section(gaussians: Gaussians, photograph: Path, picture: Path, device: Device) -> Section:
    """Show the portable operator: optimise the colours of white Gaussians to the flat colour with the least error."""
    target = torch.from_numpy(read_picture(photograph))
    height, width, _ = target.shape
    colors = torch.ones((len(gaussians), 3), requires_grad=True)
    ignored, opacities = (gaussians.means, gaussians.scales, gaussians.quats), gaussians.opacities[:, None]

    def drawn(operator: Callable[..., Tensor], **how: Any) -> Tensor:
        return operator(*ignored, opacities, colors, gaussians.sh, width, height, **how).view(height, width, 4)[..., :3]

    def gradient(operator: Callable[..., Tensor], **how: Any) -> Tensor:
        (v_colors,) = torch.autograd.grad(((drawn(operator, **how) - target) ** 2).mean(), colors)
        return v_colors

    gradients, milliseconds = [], []
    for operator, how in ((splat, {}), (splat_slang, {"device": device})):
        gradients.append(gradient(operator, **how))
        samples = []
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            gradient(operator, **how)
            samples.append((time.perf_counter() - begin) * 1e3)
        milliseconds.append(float(np.median(samples)))
    difference = float((gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max())
    # The mean colour moves by the rate times ∂L/∂mean · Σ opacity² / N², and ∂L/∂mean is two thirds of its error.
    rate = 1.5 * _SHARE * len(gaussians) ** 2 / float((opacities**2).sum())
    curve, begin = [], time.perf_counter()
    for _ in range(_STEPS):
        loss = ((drawn(splat) - target) ** 2).mean()
        curve.append((time.perf_counter() - begin, psnr_of(loss.item())))
        (v_colors,) = torch.autograd.grad(loss, colors)
        colors = (colors - rate * v_colors).detach().requires_grad_()
    write_image(picture, drawn(splat).detach().numpy())
    return Section(
        "The portable operator",
        "The smallest operator with the renderer's interface, in torch's primitives and in Slang: the mean of the "
        "Gaussians' colours, weighted by opacity, fills the image. It draws no picture: a new platform runs it first, and "
        "its gradients have a closed form. Here it learns the flat colour with the least error.",
        [
            _time(curve[-1][0]),
            ("PSNR", f"{curve[-1][1]:.2f} dB"),
            ("Gaussians", f"{len(gaussians):,}"),
            ("torch, a pass and its gradient", f"{milliseconds[0]:.1f} ms"),
            ("Slang, the same", f"{milliseconds[1]:.1f} ms"),
            ("gradients differ by", f"{difference:.1g} of the largest"),
        ],
        _curve("the photograph", curve),
        [(photograph, "Photograph"), (picture, "One colour")],
    )


def _time(seconds: float) -> tuple[str, str]:
    return "time", f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def _pairs(pictures: Iterable[Path], rendered: str) -> list[tuple[Path, str]]:
    return [(path, f"{path.stem}: photograph | {rendered}") for path in sorted(pictures)]


def _curve(label: str, points: Iterable[tuple[float, float]]) -> Curve:
    return Curve(label, [(seconds, psnr, 0.0) for seconds, psnr in points])


def _smoothed(metrics: dict[str, Any]) -> Curve:
    rows = metrics["curve"]
    psnr = np.array([row["psnr"] for row in rows])
    places = np.arange(len(rows))
    around = np.minimum(_SMOOTHED // 2, np.minimum(places, places[::-1]))
    means = [float(psnr[i - n : i + n + 1].mean()) for i, n in enumerate(around)]
    return _curve("photographs of the steps", zip((row["seconds"] for row in rows), means, strict=True))
