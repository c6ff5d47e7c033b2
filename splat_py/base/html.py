"""Tables and histograms in HTML, for objects that a notebook shows."""

from collections.abc import Mapping
from html import escape

import numpy as np
from numpy.typing import ArrayLike

# Bars of a histogram.
_BARS = 40


def table(title: str, rows: Mapping[str, object]) -> str:
    """A table of names and values under a title; all are escaped."""
    cells = "".join(f"<tr><th style='text-align:left'>{escape(n)}</th><td>{escape(str(v))}</td></tr>" for n, v in rows.items())
    return f"<p><b>{escape(title)}</b></p><table>{cells}</table>"


def histogram(title: str, values: ArrayLike) -> str:
    """Counts of finite values in equal intervals from the least to the largest, as an SVG with both ends."""
    numbers = np.asarray(values, np.float64).reshape(-1)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return ""
    counts, edges = np.histogram(numbers, _BARS)
    bars = "".join(
        f"<rect x='{4 * i}' y='{40 - height:.1f}' width='3' height='{height:.1f}'/>"
        for i, height in enumerate(40 * counts / counts.max())
    )
    svg = f"<svg width='{4 * _BARS}' height='40' fill='currentColor'>{bars}</svg>"
    caption = f"{escape(title)}<br>{edges[0]:.3g} … {edges[-1]:.3g}"
    return f"<div style='display:inline-block;margin-right:2em'>{svg}<br>{caption}</div>"
