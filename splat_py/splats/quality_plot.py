"""The curves of `splat bench --quality` as an SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from splat_py.files import atomic_path

_WIDTH, _HEIGHT, _MARGIN = 640, 400, 50
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
# Lines across the plot.
_LINES = 5


def draw(path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """PSNR in dB against processor seconds, a curve of means for each result and bars of one standard deviation."""
    rows = [row for found in results.values() for row in found["mean"]]
    last = max(row["processor_seconds"] for row in rows)
    low = min(row["psnr"] - row["psnr_spread"] for row in rows)
    high = max(max(row["psnr"] + row["psnr_spread"] for row in rows), low + 1e-3)

    def at(seconds: float, psnr: float) -> tuple[float, float]:
        across, up = seconds / last, (psnr - low) / (high - low)
        return _MARGIN + across * (_WIDTH - 2 * _MARGIN), _HEIGHT - _MARGIN - up * (_HEIGHT - 2 * _MARGIN)

    parts = []
    for i in range(_LINES + 1):
        seconds, psnr = last * i / _LINES, low + (high - low) * i / _LINES
        (left, y), (x, bottom) = at(0, psnr), at(seconds, low)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{_WIDTH - _MARGIN}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end">{psnr:.1f}</text>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" font-size="11" text-anchor="middle">{seconds:.0f}</text>')
    parts.append(f'<text x="{_MARGIN}" y="20" font-size="12">PSNR of held-out views, dB</text>')
    parts.append(f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 8}" font-size="12" text-anchor="end">processor seconds</text>')
    for i, (name, found) in enumerate(results.items()):
        color = _COLORS[i % len(_COLORS)]
        points = [(*at(row["processor_seconds"], row["psnr"]), row) for row in found["mean"]]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{color}" stroke-width="2"/>')
        for x, _, row in points:
            (_, top), (_, foot) = (at(0, row["psnr"] + sign * row["psnr_spread"]) for sign in (1, -1))
            parts.append(f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{foot:.1f}" stroke="{color}"/>')
        label = escape(f"{name}, {found['steps']:,} steps")
        y = _HEIGHT - _MARGIN - 16 * (len(results) - i)
        parts.append(f'<text x="{_WIDTH - _MARGIN}" y="{y}" font-size="12" fill="{color}" text-anchor="end">{label}</text>')
    body = "\n".join(parts)
    with atomic_path(path) as temporary:
        temporary.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n',
            encoding="utf-8",
        )
