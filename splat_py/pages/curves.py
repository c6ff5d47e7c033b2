"""Curves as SVG, in the text's colour: alone in a file, or inside a page, light or dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _MARGIN = 520, 340, 48
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
# Lines across the plot, about.
_LINES = 5


@dataclass(frozen=True)
class Curve:
    """What a curve is called, and its points: x, y, and half the bar through it, 0 for none."""

    label: str
    points: Sequence[tuple[float, float, float]]


def curves_svg(curves: Sequence[Curve], x_label: str, y_label: str) -> str:
    """An `<svg>` of curves that have a point at least, x from 0 on."""
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
    """Labels and values of the round numbers between two."""
    wanted = (high - low) / _LINES
    power = math.floor(math.log10(wanted))
    step = next(nice * 10.0**power for nice in (1, 2, 5, 10) if nice * 10.0**power >= wanted * 0.999)
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [(f"{i * step:.{max(-math.floor(math.log10(step)), 0)}f}", i * step) for i in range(first, last + 1)]
